"""How a worker process shows that it is alive: its leases, their heartbeats, and a watchdog for its event loop."""
