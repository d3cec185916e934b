"""Run the command as `python -m coordinator.cli`."""

from coordinator.cli.app import main

main()
