"""Giving up soon, but only where no answer is to come: with little patience from the start a busy machine is an outage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coordinator import AsyncClient, Client
from coordinator.store.transport.wire import AsyncWire, Wire


@contextmanager
def impatient(wire: Wire | AsyncWire, seconds: float = 0.2) -> Iterator[None]:
    """What is asked meanwhile is given up after so many seconds. Its connections are those of before, and wait for as long."""
    before, wire.timeout = wire.timeout, seconds
    try:
        yield
    finally:
        wire.timeout = before


def wire_of(client: Client | AsyncClient) -> Any:
    """Of a client that has been used."""
    assert client._session is not None, "it has not come in yet"
    return client._session.wire
