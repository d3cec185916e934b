"""The topology of a single server: every partition is at the address in the URL."""

from __future__ import annotations

from coordinator.model.address import HERE, Node
from coordinator.store.transport.topology.question import Search


class SingleServer:
    """A server that is neither in a Sentinel group nor in a Cluster, so that no search is needed."""

    stale = False

    def where(self, at: str) -> Node | None:
        """Return the only server, for any partition."""
        return HERE

    def doubt(self, node: Node) -> None:
        """Do nothing: the server may come back, and there is no other node to ask."""

    def recheck(self) -> None:
        """Do nothing: there is no node to ask."""

    def moved(self, slot: int, node: Node) -> None:
        """Do nothing: a single server never answers MOVED."""

    def search(self) -> Search:
        """Yield no questions: the address of the server is already known."""
        yield from ()
