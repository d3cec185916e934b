"""The durability of a namespace's writes: none, local, synced, managed or replicated(n). It is fixed at creation."""

from __future__ import annotations

import re
from functools import cache

from coordinator.errors import BadOption

LEVELS = ("none", "local", "synced", "managed")
MOST_REPLICAS = 9


@cache
def replicas_of(level: str) -> int:
    """Return the number of replicas that must confirm each write: N for the level `replicated(N)`, 0 for other levels."""
    found = re.fullmatch(r"replicated\((\d)\)", level)
    return int(found[1]) if found else 0


def check_durability(level: str) -> str:
    """Return the durability level if it is valid.

    Raises:
        BadOption: If the text is not a durability level.
    """
    if level not in LEVELS and not 1 <= replicas_of(level) <= MOST_REPLICAS:
        raise BadOption(
            f"durability {level!r} is not valid: use none, local, synced, managed or replicated(1) to replicated({MOST_REPLICAS})"
        )
    return level
