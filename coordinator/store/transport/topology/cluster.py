"""Cluster discovery: find the node that serves each hash slot of a Redis Cluster. This module does no I/O."""

from __future__ import annotations

from coordinator.model.address import Address, Node
from coordinator.store.transport.topology.hash_slots import masters_from_reply, slot_of
from coordinator.store.transport.topology.question import Question, Search, search_error


class Cluster:
    """The topology of a Redis Cluster: nodes that share the hash slots.

    The known masters stay in use while a search is under way: only requests to the nodes that changed fail meanwhile.

    Attributes:
        stale: True if the nodes must be asked which of them serves which hash slot.
    """

    def __init__(self, address: Address) -> None:
        self._address, self._nodes = address, list(address.nodes)
        self._masters: list[Node | None] = []
        self._doubted: set[Node] = set()
        self.stale = True

    def where(self, at: str) -> Node | None:
        """Return the master of a partition's hash slot; None while it is unknown. `at` is a key or hash tag of the partition."""
        node = self._masters[slot_of(at)] if self._masters else None
        if node is None:  # a hash slot that no node served at the last search may be served by now
            self.stale = True
        return node

    def doubt(self, node: Node) -> None:
        """Mark a node as failed. The next search asks this node last, and looks for its successor."""
        self.stale = True
        self._doubted.add(node)
        if node in self._nodes:
            self._nodes.remove(node)
            self._nodes.append(node)

    def recheck(self) -> None:
        """Mark the topology as stale, so that the next search asks the nodes again."""
        self.stale = True

    def moved(self, slot: int, node: Node) -> None:
        """Follow a MOVED redirect: the node is the new master of the hash slot."""
        self.stale = True
        if self._masters:
            self._masters[slot] = node
        # The next search asks this node first. Other nodes may not know of the move yet, and would send us back.
        self._nodes = [node, *(other for other in self._nodes if other != node)]

    def search(self) -> Search:
        """Ask one node after the other for the masters of all hash slots, until an answer names no failed master.

        This is a generator that yields the questions and receives the answers. A node that is cut off from the others continues to
        report the old masters. So an answer that names a failed master is used only if no node gives another answer.

        Raises:
            TransientError: No node answered.
        """
        why: object = ""
        fallback: tuple[list[Node | None], Node] | None = None
        doubted = frozenset(self._doubted)
        for node in list(self._nodes):
            if fallback is not None and node in doubted:
                break  # this node failed just now, and others answered
            reply = yield Question(node, ("CLUSTER", "SLOTS"))
            if isinstance(reply, Exception) or not reply:
                why = reply or f"{node} reports no hash slots"
                continue
            found = masters_from_reply(reply, node)
            if doubted.isdisjoint(found):
                return self._learn(found, node)
            fallback = fallback or (found, node)
        if fallback is None:
            raise search_error(why, f"no node of {self._address} says which nodes serve its hash slots")
        self._learn(*fallback)

    def _learn(self, found: list[Node | None], asked: Node) -> None:
        self._masters, self.stale = found, False
        self._doubted.clear()
        # The next search asks the node first that answered, then the masters, then the nodes that the URL names.
        self._nodes = list(
            dict.fromkeys([asked, *(node for node in dict.fromkeys(found) if node), *self._address.nodes])
        )
