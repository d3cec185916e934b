"""The benchmark against other queues: its programs, one for each queue, and their pinned versions."""
