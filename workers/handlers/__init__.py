"""What the author of a handler uses: the registry, the run, its messages and its checkpoint."""
