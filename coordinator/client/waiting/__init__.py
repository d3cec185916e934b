"""Wait for the endings of runs: read hints from the server, deliver them to waiting calls, and decide when a call asks it."""
