"""`memory://name`: fakeredis, with one store per name in this process. For tests and for trying things out."""

from __future__ import annotations

from typing import Any

from coordinator.errors import NotConfigured

_servers: dict[str, Any] = {}


def _server(name: str) -> Any:
    try:
        import fakeredis  # an optional extra: only users of memory:// need it
    except ImportError:
        raise NotConfigured("memory:// needs the extra: pip install 'run-coordinator[memory]'") from None
    return _servers.setdefault(name, fakeredis.FakeServer())


def sync_client(name: str) -> Any:
    """Return a client of the named store, for threads."""
    import fakeredis

    return fakeredis.FakeRedis(server=_server(name), decode_responses=False, protocol=2)


def async_client(name: str) -> Any:
    """Return a client of the named store, for an event loop."""
    import fakeredis

    return fakeredis.FakeAsyncRedis(server=_server(name), decode_responses=False, protocol=2)
