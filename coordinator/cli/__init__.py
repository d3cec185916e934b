"""The command `coordinator`: one module per group of commands, and the options that all commands share."""
