"""Claim runs for the free slots of a worker process, and start the claimed runs."""
