"""How durable a namespace's writes are: none, local, synced, replicated(n). Recorded when it is founded, kept by every trip."""

from __future__ import annotations

import re
from functools import cache

from coordinator.errors import BadOption

LEVELS = ("none", "local", "synced")
MOST_REPLICAS = 9


@cache
def replicas_of(level: str) -> int:
    """How many replicas must have a write before it counts."""
    found = re.fullmatch(r"replicated\((\d)\)", level)
    return int(found[1]) if found else 0


def checked(level: str) -> str:
    """The level, if it is one."""
    if level not in LEVELS and not 1 <= replicas_of(level) <= MOST_REPLICAS:
        raise BadOption(
            f"durability {level!r} is none of none, local, synced, replicated(1) to replicated({MOST_REPLICAS})"
        )
    return level
