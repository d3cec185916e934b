"""The command `workers`: one module per group of commands."""
