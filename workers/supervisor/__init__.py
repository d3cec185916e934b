"""The supervisor of one host: start worker processes, replace processes that end, and roll them to new code.

`supervisor.py` is the entry point. A `ChildPool` owns the child slots, a `ChildProcess` is one worker process, and
`child_state.py` holds the table of its states. `restart_backoff.py` decides how long a slot waits before its next process.
"""
