"""Show that a worker process is alive: its leases, their heartbeats, and a watchdog for its event loop."""
