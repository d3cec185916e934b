"""On which nodes a namespace is, as one partition for each: for what is asked of servers and not of partitions."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from coordinator.errors import Unconfirmed, Unreachable
from coordinator.model.address import HERE, Node
from coordinator.store.keys import Keys, Namespace
from coordinator.store.script import Request, read
from coordinator.store.transport.topology.hash_slots import SLOTS, masters_from_reply, slot_of

MOST_TAGS = 8 * SLOTS  # after so many nearly every slot has come up


def every_master(space: Namespace) -> Generator[list[Request], Any, dict[str, str]]:
    """For each master of a Cluster, what to call it, and a tag by which it is asked: a partition's where it serves one, else one
    that is in a slot of it. Empty for a server that stands alone."""
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
    """For each node that serves partitions of the namespace, the first of them. A server that stands alone serves all."""
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
