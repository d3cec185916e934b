"""The command `coordinator` in a process that holds its spans and metrics until it exits."""

from __future__ import annotations

import tests.e2e.exiting_app  # noqa: F401  # sets the providers
from coordinator.cli.app import main

if __name__ == "__main__":
    main()
