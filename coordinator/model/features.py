"""The features that processes announce.

Each process sends its own version of the Lua scripts to the server: a process of an older version ends a run with older scripts. If
these would damage runs that use a feature, the feature is used only when every live worker and coordinator of the partition has
announced it.
"""

from __future__ import annotations

from typing import Final

WAITS: Final = "waits"  # runs that wait: the status waiting, signals, and the part `more` of a checkpoint
OUTPUT: Final = "output"  # the output of a run, which gets its end from the script that ends the run
GROUPS: Final = "groups"  # runs with a group: their scripts admit runs, and free their places
STARTS: Final = "starts"  # the rate of starts of a group: the claim of a run counts as its start
KNOWN: Final = (WAITS, OUTPUT, GROUPS, STARTS)


def announce(coordinator: str) -> str:
    """Return the name under which a coordinator announces itself: its id and the features that this version supports.

    Args:
        coordinator: The id of the coordinator.
    """
    return "+".join((coordinator, *KNOWN))


def split_announced(name: str) -> tuple[str, frozenset[str]]:
    """Return the id and the features of a coordinator from the name that it announced."""
    id, *features = name.split("+")
    return id, frozenset(features)
