"""The command `coordinator` in a process with a TracerProvider that exports spans to a file."""

from __future__ import annotations

from coordinator.cli.app import main
from tests.e2e.traced_app import provider

if __name__ == "__main__":
    try:
        main()
    finally:
        provider.shutdown()
