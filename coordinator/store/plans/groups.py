"""Plans of groups: set and read limits, and admit the runs that wait in the lines of their groups."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.errors import BadCall, Changed, Unreadable
from coordinator.model.limits import MOST_AT_ONCE
from coordinator.model.policies.groups import NO_LIMIT, GroupLimit
from coordinator.store.keys import Keys
from coordinator.store.replies import pairs, text, word
from coordinator.store.script import Request, read
from coordinator.store.scripts import LIMIT, SWEEP

TRIES = 20  # how often a change is tried while other clients change the same limit


def set_limit(keys: Keys, kind: str, group: str | None, at_once: str, operation: str) -> Generator[Request, Any, bool]:
    """Set or remove a limit in a partition. Return False if the limit was like this before.

    Args:
        keys: The keys of the partition.
        kind: The kind.
        group: The group; None for each group of the kind.
        at_once: The limit in its stored form; empty to remove it.
        operation: A random mark of this change, by which the server recognises a repeated call.

    Raises:
        Changed: Other clients kept changing the limit at the same time.
        Unreadable: The key of the limits has another type.
    """
    seen = ""
    for _ in range(TRIES):
        reply = yield LIMIT.call(keys.at, kind=kind, group=group or "", at_once=at_once, seen=seen, operation=operation)
        match word(reply):
            case "changed":
                seen = text(reply[1])
            case "unreadable":
                raise Unreadable("the key of the limits holds a value of another type; 'coordinator doctor' finds it")
            case "bad":
                raise BadCall(f"the server refused the limit {at_once!r} of kind {kind!r}")
            case answer:
                return answer == "ok"
    raise Changed(f"the limit of kind {kind!r} was not changed: other clients keep changing it; call again")


def read_limits(keys: Keys) -> Generator[Request, Any, list[GroupLimit]]:
    """Return the limits that a partition knows. A kind without a limit is left out, unless an operator has set that."""
    stored = pairs((yield read(keys.at, "HGETALL", keys.limits())))
    found = []
    for field, value in stored.items():
        what, _, name = field.partition(":")
        kind, _, group = name.partition(":")
        limit = text(value)
        if what == "handler" and (limit == NO_LIMIT or f"kind:{kind}" in stored):
            continue
        if what in ("handler", "kind", "group") and (limit == NO_LIMIT or limit.isdigit()):
            at_once = None if limit == NO_LIMIT else int(limit)
            found.append(GroupLimit(kind, group or None, at_once, "handler" if what == "handler" else "operator"))
    return found


def find_limit(stored: Mapping[str, Any], kind: str, group: str) -> int | None:
    """Return the limit of a group from the stored limits of its partition; None if none is known. See limit_of in groups.lua.

    A limit that was lifted is MOST_AT_ONCE.
    """
    for field in (f"group:{kind}:{group}", f"kind:{kind}", f"handler:{kind}"):
        if field in stored:
            limit = text(stored[field])
            return MOST_AT_ONCE if limit == NO_LIMIT else int(limit) if limit.isdigit() else None
    return None


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a page of a sweep.

    Attributes:
        cursor: Where the next page begins; "0" after the last page.
        admitted: The number of runs that left their lines.
        groups: The number of groups of the page.
    """

    cursor: str
    admitted: int
    groups: int


def sweep(
    keys: Keys, cursor: str = "0", *, most: int = 200, turn: int = 0, now: str = ""
) -> Generator[Request, Any, Swept]:
    """Give the free places of some groups to the runs in their lines. Examine the places of the groups whose turn it is."""
    reply = yield SWEEP.call(keys.at, now=now, cursor=cursor, most=most, turn=turn)
    return Swept(text(reply[1]), int(reply[2]), int(reply[3]))
