"""The waits of attempts: for signals, children, enqueues and rates of calls."""
