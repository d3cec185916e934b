"""Lanes: the node of each request, and the requests that are sent together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from coordinator.model.address import HERE, Address, Node
from coordinator.store.script import Request
from coordinator.store.transport.error_mapping import SlotMoved, TransientError
from coordinator.store.transport.topology import make_topology
from coordinator.store.transport.topology.sentinel import MasterCheckTimer

MOST_REDIRECTS = 5  # for one try of a request


class Lane(NamedTuple):
    """A lane: requests of one lane are sent together.

    Requests that wait for replicas have a lane of their own, so that they do not delay the others.

    Attributes:
        node: The node to which the requests are sent.
        replicas: The number of replicas that must confirm their writes.
    """

    node: Node
    replicas: int


class LaneFinder:
    """A finder of lanes: it chooses the lane of each request, and updates the topology after errors.

    Attributes:
        topology: The object that knows which node serves which partition.
        master_check: The timer for checks of the master of a Sentinel group.
        only_lane: For a single server, the lane of every request that does not wait for replicas; otherwise None.
    """

    def __init__(self, address: Address) -> None:
        self.topology = make_topology(address)
        self.master_check = MasterCheckTimer(self.topology)
        self.only_lane = Lane(HERE, 0) if address.kind == "one" else None  # made once, because every request needs it

    def find(self, request: Request) -> Lane | None:
        """Return the lane of a request, or None while no node is known to serve its partition."""
        replicas = request.replicas
        if self.only_lane is not None and not replicas:
            return self.only_lane
        node = self.topology.where(request.at)
        return None if node is None else Lane(node, replicas)

    def learn(self, lane: Lane, answers: Sequence[Any]) -> None:
        """Update the topology from the errors among the answers of one trip."""
        for answer in answers:
            if isinstance(answer, SlotMoved):
                self.topology.moved(answer.slot, answer.node)
            elif isinstance(answer, TransientError) and answer.rediscover:
                self.topology.doubt(lane.node)
                return
