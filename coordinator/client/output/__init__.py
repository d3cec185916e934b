"""Read the outputs of runs: all readers of a client share one blocking connection for each partition."""
