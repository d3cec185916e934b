"""The commands about runs: enqueue, read, follow, change."""
