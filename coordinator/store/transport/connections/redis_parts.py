"""The private parts of redis-py that the pools use. They are checked when this package is imported."""

from __future__ import annotations

import redis
import redis.asyncio

# The parts that the pools override or read. pyproject.toml bounds the version of redis for the same reason.
_CLASSES: tuple[tuple[type, tuple[str, ...]], ...] = (
    (redis.ConnectionPool, ("reset", "make_connection", "get_connection", "release", "disconnect")),
    (redis.Connection, ("can_read", "is_connected", "send_packed_command", "read_response")),
    (redis.UnixDomainSocketConnection, ("_connect",)),
    (redis.SSLConnection, ("disconnect", "send_packed_command")),
    (redis.asyncio.ConnectionPool, ("ensure_connection", "get_connection", "release", "disconnect")),
    (redis.asyncio.Connection, ("_close", "_reader", "_writer", "can_read", "is_connected", "send_packed_command")),
    (redis.asyncio.UnixDomainSocketConnection, ("_connect",)),
)
_OBJECTS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (redis.ConnectionPool, ("pid",)),
    (redis.Connection, ("_sock", "pid")),
    (redis.UnixDomainSocketConnection, ("path",)),
    (redis.asyncio.ConnectionPool, ("_available_connections", "_in_use_connections")),
    (redis.asyncio.UnixDomainSocketConnection, ("path",)),
)


def missing_parts() -> list[str]:
    """Return the names of the attributes that the pools use and that the installed redis-py does not have."""
    holders: list[tuple[type, object, tuple[str, ...]]] = [(kind, kind, names) for kind, names in _CLASSES]
    holders += [(kind, kind(), names) for kind, names in _OBJECTS]
    return [
        f"{kind.__module__}.{kind.__name__}.{name}"
        for kind, holder, names in holders
        for name in names
        if not hasattr(holder, name)
    ]


def check_redis_py() -> None:
    """Check that redis-py has the parts that the pools use.

    Raises:
        ImportError: A part is missing. Without this check, requests would fail later with errors that do not name the cause.
    """
    if missing := missing_parts():
        raise ImportError(
            f"run-coordinator can't work with redis {redis.__version__}, which has no {', '.join(missing)}: "
            "pip install 'redis[hiredis]>=8.1,<9'"
        )
