"""The waits of attempts: for signals, children, enqueued runs, and calls under a rate."""
