"""Wait for the endings of runs: hints from the server, mailboxes, and the decision when to ask."""
