"""Connections to servers: pools of redis-py's connections, the exchange of bytes, and the embedded and in-memory servers."""
