"""Plans of groups: set and read limits, and admit the runs that wait in the lines of their groups."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from coordinator.errors import BadCall, Changed, Unreadable
from coordinator.model.limits import MOST_AT_ONCE
from coordinator.model.policies.groups import KEEP, NO_LIMIT, GroupLimit, decode_starts
from coordinator.store.keys import Keys
from coordinator.store.replies import pairs, text, word
from coordinator.store.script import Request, read
from coordinator.store.scripts import LIMIT, SWEEP

TRIES = 20  # how often a change is tried while other clients change the same limit


def set_limit(
    keys: Keys, kind: str, group: str | None, at_once: str, operation: str, rate: str = KEEP
) -> Generator[Request, Any, bool]:
    """Set or remove a limit in a partition. Return False if the limit already had this value.

    Args:
        keys: The keys of the partition.
        kind: The kind.
        group: The group; None for each group of the kind.
        at_once: The limit in its stored form; empty to remove it, KEEP to keep it.
        operation: A random mark of this change, by which the server recognises a repeated call.
        rate: The rate of starts in its stored form; empty to remove it, KEEP to keep it.

    Raises:
        Changed: Other clients kept changing the limit at the same time.
        Unreadable: The key of the limits has another type.
    """
    seen = ""
    for _ in range(TRIES):
        reply = yield LIMIT.call(
            keys.at, kind=kind, group=group or "", at_once=at_once, rate=rate, seen=seen, operation=operation
        )
        match word(reply):
            case "changed":
                seen = text(reply[1])
            case "unreadable":
                raise Unreadable("the key of the limits holds a value of another type; 'coordinator doctor' finds it")
            case "bad":
                raise BadCall(f"the server refused the limit {at_once!r} and the rate {rate!r} of kind {kind!r}")
            case answer:
                return answer == "ok"
    raise Changed(f"the limit of kind {kind!r} was not changed: other clients keep changing it; call again")


def read_limits(keys: Keys) -> Generator[Request, Any, list[GroupLimit]]:
    """Return the limits that a partition knows. A kind without a limit is left out, unless an operator has set "no limit".

    A group without a limit of its own has the limit of its kind, and a kind without one has the limit that its handler publishes.
    """
    stored = {field: text(value) for field, value in pairs((yield read(keys.at, "HGETALL", keys.limits()))).items()}
    sources: dict[tuple[str, str], Literal["operator", "handler"]] = {}
    for field, value in stored.items():
        what, _, name = field.removeprefix("rate:").partition(":")
        kind, _, group = name.partition(":")
        if what in ("kind", "group"):
            sources[kind, group] = "operator"
        elif what == "handler" and value != NO_LIMIT:
            sources.setdefault((kind, ""), "handler")
    found = []
    for (kind, group), source in sources.items():
        places = find_limit(stored, kind, group)
        rate, burst = find_rate(stored, kind, group)
        at_once = None if places == MOST_AT_ONCE else places
        known = places is not None
        found.append(GroupLimit(kind, group or None, at_once, source, rate=rate, burst=burst, known=known))
    return found


def find_limit(stored: Mapping[str, Any], kind: str, group: str) -> int | None:
    """Return the limit of a group from the stored limits of its partition; None if none is known.

    If an operator has set "no limit", the result is MOST_AT_ONCE. `limit_of` in pace.lua does the same.
    """
    limit = _find(stored, "", kind, group)
    return MOST_AT_ONCE if limit == NO_LIMIT else int(limit) if limit.isdigit() else None


def find_rate(stored: Mapping[str, Any], kind: str, group: str) -> tuple[str | None, int | None]:
    """Return the rate of starts of a group and its burst, from the stored limits of its partition; None and None if it has none."""
    return decode_starts(_find(stored, "rate:", kind, group))


def _find(stored: Mapping[str, Any], start: str, kind: str, group: str) -> str:
    for field in (f"{start}group:{kind}:{group}", f"{start}kind:{kind}", f"{start}handler:{kind}"):
        if field in stored:
            return text(stored[field])
    return ""


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of one call of `sweep`, which handles a part of the groups.

    Attributes:
        cursor: The cursor for the next call; "0" if all groups were handled.
        admitted: The number of runs that left their lines.
        groups: The number of groups that this call handled.
    """

    cursor: str
    admitted: int
    groups: int


def sweep(
    keys: Keys, cursor: str = "0", *, most: int = 200, turn: int = 0, now: str = ""
) -> Generator[Request, Any, Swept]:
    """Sweep some groups: give their free places to the runs in their lines, and examine the places of a part of the groups.

    Args:
        keys: The keys of the partition.
        cursor: The cursor of the call before; "0" to begin.
        most: About how many groups one call sweeps.
        turn: The number of the sweep, which decides of which groups the places are examined.
        now: The time in ms, for namespaces with the test clock.
    """
    reply = yield SWEEP.call(keys.at, now=now, cursor=cursor, most=most, turn=turn)
    return Swept(text(reply[1]), int(reply[2]), int(reply[3]))
