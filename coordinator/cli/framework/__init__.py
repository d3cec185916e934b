"""The parts that all commands share: common options, filters, inputs, exit codes, and groups of commands."""
