"""Find the nodes that serve a namespace. A request about a server, and not about a partition, is sent once to each node."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from coordinator.errors import Unconfirmed, Unreachable
from coordinator.model.address import HERE, Node
from coordinator.store.keys import Keys, Namespace
from coordinator.store.script import Request, read
from coordinator.store.transport.topology.hash_slots import SLOTS, masters_from_reply, slot_of

MOST_TAGS = 8 * SLOTS  # the number of tags to try; this number of tags reaches nearly every hash slot


def every_master(space: Namespace) -> Generator[list[Request], Any, dict[str, str]]:
    """Return a hash tag for each master of a Cluster, by the name of the master; an empty dict for a server without a Cluster.

    A request with the tag goes to that master. If the master serves a partition, the tag is the partition's. Otherwise it is any
    tag in one of the master's hash slots.
    """
    (reply,) = yield [read(space.keys(0).at, "CLUSTER", "SLOTS")]
    if isinstance(reply, (Unreachable, Unconfirmed)):
        raise reply
    if isinstance(reply, Exception) or not reply:
        return {}
    serving = masters_from_reply(reply, HERE)
    left = {node for node in serving if node is not None}
    found: dict[str, str] = {}
    for number in range(MOST_TAGS):
        tag = Keys(space.name, number).at
        node = serving[slot_of(tag)]
        if node in left:
            left.discard(node)
            found[f"the node of partition {number}" if number < space.partitions else f"node {node}"] = tag
        if not left:
            break
    return found


def one_for_each_node(space: Namespace) -> Generator[list[Request], Any, list[Keys]]:
    """Return the keys of one partition for each node that serves partitions. A single server serves all partitions."""
    first = space.keys(0)
    (reply,) = yield [read(first.at, "CLUSTER", "SLOTS")]
    if isinstance(reply, (Unreachable, Unconfirmed)):
        raise reply
    if isinstance(reply, Exception) or not reply:
        return [first]
    by_node: dict[Node | None, Keys] = {}
    serving = masters_from_reply(reply, HERE)
    for keys in space.everywhere():
        by_node.setdefault(serving[slot_of(keys.at)], keys)
    return list(by_node.values())
