"""The client side: enqueue runs, read them, change them, and wait for their endings."""

from coordinator.client.async_client import AsyncClient
from coordinator.client.client import Client
from coordinator.client.handles import AsyncHandle, Handle

__all__ = ["AsyncClient", "AsyncHandle", "Client", "Handle"]
