"""Carry plans to the servers: connections, topology, lanes, retries, and bells."""
