"""Run the command as `python -m workers.cli`."""

from workers.cli.app import main

main()
