"""A short timeout for calls that get no reply.

It is set only around such calls. A client with a short timeout from the start would take a busy machine for an outage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coordinator import AsyncClient, Client
from coordinator.store.transport.wire import AsyncWire, Wire


@contextmanager
def impatient(wire: Wire | AsyncWire, seconds: float = 0.2) -> Iterator[None]:
    """Let calls inside the block time out after some seconds. Existing connections keep their own timeout."""
    before, wire.timeout = wire.timeout, seconds
    try:
        yield
    finally:
        wire.timeout = before


def wire_of(client: Client | AsyncClient) -> Any:
    """Return the wire of a client that has been used."""
    if isinstance(client, AsyncClient):
        (session,) = client._sessions.values()
        return session.wire
    assert client._session is not None, "the client has not been used yet"
    return client._session.wire
