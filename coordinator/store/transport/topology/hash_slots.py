"""Hash slots of a Redis Cluster: the hash slot of a key, and the node that serves a hash slot. This module does no I/O."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from coordinator.model.address import Node

SLOTS = 16384


@lru_cache(maxsize=4096)
def slot_of(key: str) -> int:
    """Return the hash slot of a key. If the key has text in braces, only that text is hashed; otherwise the whole key."""
    start = key.find("{")
    end = key.find("}", start + 1)
    hashed = key[start + 1 : end] if start >= 0 and end > start + 1 else key
    return crc_hqx(hashed.encode(), 0) % SLOTS


def tag_of(key: str) -> str:
    """Return the hash tag of a key, with its braces. All keys of a partition have the same tag."""
    return key[: key.find("}") + 1]


def masters_from_reply(reply: Sequence[Any], asked: Node) -> list[Node | None]:
    """Return the master of each hash slot, or None for a hash slot that no node serves.

    Args:
        reply: The reply to CLUSTER SLOTS.
        asked: The node that sent the reply. A master without a host name in the reply is this node, which may not know its name.
    """
    found: list[Node | None] = [None] * SLOTS
    for first, last, master, *_ in reply:
        host = master[0].decode() if master[0] else ""
        node = Node(asked.host if host in ("", "?") else host.lower(), int(master[1]))
        found[int(first) : int(last) + 1] = [node] * (int(last) - int(first) + 1)
    return found
