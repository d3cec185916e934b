"""Wait for the endings of runs: block in the calling thread, or read hints from the server for all calls that wait."""
