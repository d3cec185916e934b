"""The parts of coordinator.web that need no server."""
