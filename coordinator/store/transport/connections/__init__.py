"""Connections to servers: pools of redis-py's connections, the exchange of bytes, and the embedded and in-memory servers."""

from coordinator.store.transport.connections.redis_parts import check_redis_py

check_redis_py()
