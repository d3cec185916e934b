"""The objects that handler code uses: the registry, the run, its messages and its checkpoint."""
