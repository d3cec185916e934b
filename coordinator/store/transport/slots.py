"""Slots of a Cluster: which one a key is in, and which node serves it. Pure, no I/O."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from coordinator.model.address import Node

SLOTS = 16384


@lru_cache(maxsize=4096)
def slot_of(key: str) -> int:
    """The slot of a key: of what stands in its first braces, where something does."""
    start = key.find("{")
    end = key.find("}", start + 1)
    hashed = key[start + 1 : end] if start >= 0 and end > start + 1 else key
    return crc_hqx(hashed.encode(), 0) % SLOTS


def tag_of(key: str) -> str:
    """The part of a key by which a partition's keys stay together."""
    return key[: key.find("}") + 1]


def masters(reply: Sequence[Any], asked: Node) -> list[Node | None]:
    """For each slot its master, from what CLUSTER SLOTS answers. A node that does not know its own name is the one we asked."""
    found: list[Node | None] = [None] * SLOTS
    for first, last, master, *_ in reply:
        host = master[0].decode() if master[0] else ""
        node = Node(asked.host if host in ("", "?") else host.lower(), int(master[1]))
        found[int(first) : int(last) + 1] = [node] * (int(last) - int(first) + 1)
    return found
