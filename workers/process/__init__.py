"""One worker process: join, claim, execute, renew leases, and drain."""
