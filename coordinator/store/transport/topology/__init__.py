"""Find the node that serves a partition: a single server, the master of a Sentinel group, or a node of a Redis Cluster.

A topology does no I/O: its search is a generator that yields questions for nodes and receives their answers, so that threads and
event loops share it. `discovery` asks the questions. The Sentinel and Cluster clients of redis-py are not used: they retry on their
own, load each script on every master, and cannot pipeline scripts. The transport only needs to know which node serves a partition.
"""

from __future__ import annotations

from coordinator.model.address import Address
from coordinator.store.transport.topology.cluster import Cluster
from coordinator.store.transport.topology.sentinel import SentinelGroup
from coordinator.store.transport.topology.single_server import SingleServer

Topology = SingleServer | SentinelGroup | Cluster


def make_topology(address: Address) -> Topology:
    """Return a new topology for an address. The masters of a Sentinel group or a Cluster are unknown until a search."""
    if address.kind == "sentinel":
        return SentinelGroup(address)
    return Cluster(address) if address.kind == "cluster" else SingleServer()
