"""The HTTP API: one resource for each run."""
