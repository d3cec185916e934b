"""The store of `memory://name`: fakeredis, with one store per name in this process. It is for tests and experiments."""

from __future__ import annotations

from typing import Any

from coordinator.errors import NotConfigured

_servers: dict[str, Any] = {}


def _import_fakeredis() -> Any:
    """Import and return fakeredis, with the Lua interpreter that it needs for scripts. Only users of memory:// need them.

    Raises:
        NotConfigured: The extra `memory` is not installed.
    """
    try:
        import lupa  # noqa: F401  # first: a fakeredis that is imported without it never knows EVAL

        import fakeredis  # isort: skip
    except ImportError as error:
        raise NotConfigured(
            f"memory:// needs an optional package ({error}): pip install 'run-coordinator[memory]'"
        ) from error
    return fakeredis


def sync_client(name: str) -> Any:
    """Return a client of the named store, for threads.

    Raises:
        NotConfigured: The extra `memory` is not installed.
    """
    fakeredis = _import_fakeredis()
    server = _servers.setdefault(name, fakeredis.FakeServer())
    return fakeredis.FakeRedis(server=server, decode_responses=False, protocol=2)


def async_client(name: str) -> Any:
    """Return a client of the named store, for an event loop.

    Raises:
        NotConfigured: The extra `memory` is not installed.
    """
    fakeredis = _import_fakeredis()
    server = _servers.setdefault(name, fakeredis.FakeServer())
    return fakeredis.FakeAsyncRedis(server=server, decode_responses=False, protocol=2)
