"""The checkpoint that a handler works on: its messages, state, phases and bookkeeping, and its migration."""
