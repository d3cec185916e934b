"""The client side: enqueue runs, read them, change them, and wait for their endings."""

from coordinator.client.client import AsyncClient, AsyncHandle, Client, Handle

__all__ = ["AsyncClient", "AsyncHandle", "Client", "Handle"]
