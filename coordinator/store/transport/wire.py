"""The public names of the transport. Other packages import them from this module."""

from coordinator.store.transport.async_bell import AsyncBell, Entries
from coordinator.store.transport.async_wire import AsyncWire
from coordinator.store.transport.bell import Bell
from coordinator.store.transport.connections.embedded_connection import detach
from coordinator.store.transport.drivers import Plan, drive, drive_after_token, drive_async
from coordinator.store.transport.key_watch import watch_keys
from coordinator.store.transport.sync_wire import Wire

__all__ = [
    "AsyncBell",
    "AsyncWire",
    "Bell",
    "Entries",
    "Plan",
    "Wire",
    "detach",
    "drive",
    "drive_after_token",
    "drive_async",
    "watch_keys",
]
