"""Wait for the endings of runs: hints from the server, the mailboxes of waiting calls, and when a call asks the server."""
