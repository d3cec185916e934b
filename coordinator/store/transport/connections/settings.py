"""Settings that all connections share."""

from __future__ import annotations

from typing import Any

from coordinator.model.address import Address, Node

CONNECT_SECONDS = 5.0


def connection_settings(address: Address, connect_seconds: float, protocol: int = 2) -> dict[str, Any]:
    """Return the keyword arguments for connections of redis-py that the pools for threads and for event loops share."""
    # Without driver_info, redis-py does not introduce itself with CLIENT SETINFO. It ignores errors of that command, and so would
    # lose the reason for which a server refuses the connection.
    settings: dict[str, Any] = {"decode_responses": False, "protocol": protocol, "driver_info": None}
    if address.nodes:
        settings |= {"socket_connect_timeout": connect_seconds, "socket_keepalive": True}
    return settings


def connection_url(address: Address, node: Node, *, sentinel: bool) -> str:
    """Return the URL with which redis-py connects to a node, including the password."""
    return address.url_of(node, sentinel=sentinel) if node.host else address.url()
