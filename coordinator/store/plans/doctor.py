"""Plans of the doctor: read a page of keys or members of a partition, find their faults, and repair them.

Every plan has a bounded size: it reads one page of a SCAN, or sends scripts that examine some dozens of runs each.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Sequence
from functools import cache
from typing import Any

from coordinator.store import scripts
from coordinator.store.keys import Keys, type_of_key
from coordinator.store.replies import require_all, text, word
from coordinator.store.script import Call, Request, read

RUNS_PER_SCRIPT = 25  # runs or members that one script examines, in less than a millisecond
PAGE = 500  # entries of one page of the keyspace or of a large set

Faults = list[tuple[str, str]]  # word, detail


@cache
def key_types() -> dict[str, str]:
    """Return the type that each key must have, by the name of the key, or by the part of its name before the first colon."""
    keys, found = Keys("-", 0), {}
    for method, function in inspect.getmembers(Keys, inspect.isfunction):
        if method.startswith("_") or method == "set_aside":
            continue
        arguments = len(inspect.signature(function).parameters) - 1
        name: str = function(keys, *[""] * arguments).removeprefix(f"{keys.at}:")
        found[name.split(":")[0] if arguments else name] = type_of_key(function)
    return found


# ---- pages -------------------------------------------------------------------------------------------------------------


def scan_keys(at: str, namespace: str, cursor: int) -> Generator[Request, Any, tuple[int, list[str]]]:
    """Return the next cursor of a SCAN, and some keys of the namespace, of all partitions on one node.

    Args:
        at: The hash tag of a partition on the node.
        namespace: The name of the namespace.
        cursor: The cursor of the page before; 0 for the first page.
    """
    reply = yield read(at, "SCAN", cursor, "MATCH", f"{{{namespace}:*}}:*", "COUNT", PAGE)
    return int(reply[0]), [key.decode(errors="surrogateescape") for key in reply[1]]


def read_members(keys: Keys, key: str, kind: str, cursor: int) -> Generator[Request, Any, tuple[int, list[str]]]:
    """Return the next cursor of a scan, and some members of a set or a sorted set.

    Args:
        keys: The keys of the partition.
        key: The set or sorted set.
        kind: `set`, or `zset` for a sorted set.
        cursor: The cursor of the page before; 0 for the first page.
    """
    scanning, step = ("SSCAN", 1) if kind == "set" else ("ZSCAN", 2)
    reply = yield read(keys.at, scanning, raw(key), cursor, "COUNT", PAGE)
    return int(reply[0]), [member.decode(errors="surrogateescape") for member in reply[1][::step]]


def read_types(keys: Keys, names: Sequence[str]) -> Generator[list[Request], Any, list[str]]:
    """Return the type of each key, as TYPE answers it: `none` if the key does not exist."""
    replies = yield [read(keys.at, "TYPE", raw(name)) for name in names]
    return [text(reply) for reply in require_all(replies)]


# ---- examining ---------------------------------------------------------------------------------------------------------


def examine(keys: Keys, ids: Sequence[str]) -> Generator[list[Request], Any, list[Faults]]:
    """Return the faults of each run, as (fault, detail) pairs; empty for a run without faults."""
    calls = [scripts.EXAMINE.call(keys.at, [(id,) for id in part]) for part in _parts(ids)]
    return (yield from _send_examinations(calls))


def examine_entries(
    keys: Keys, place: str, name: str, members: Sequence[str], now: str = ""
) -> Generator[list[Request], Any, list[Faults]]:
    """Return the faults of each member of a set or sorted set, as (fault, detail) pairs; empty for a member without faults.

    Args:
        keys: The keys of the partition.
        place: The family of the set: the part of its name before the first colon.
        name: The rest of the set's name; empty if it has none.
        members: The members to examine.
        now: The time in ms, for namespaces with the test clock.
    """
    calls = [
        scripts.EXAMINE_ENTRIES.call(keys.at, [(raw(member),) for member in part], now=now, place=place, name=raw(name))
        for part in _parts(members)
    ]
    return (yield from _send_examinations(calls))


def examine_keys(
    keys: Keys, family: str, expected: str, names: Sequence[str]
) -> Generator[list[Request], Any, list[Faults]]:
    """Return the faults of each key of a family, as (fault, detail) pairs; empty for a key without faults.

    Args:
        keys: The keys of the partition.
        family: The part of the keys' names before the first colon.
        expected: The type that the keys must have.
        names: The rest of each key's name.
    """
    calls = [
        scripts.EXAMINE_KEYS.call(keys.at, [(raw(name),) for name in part], family=family, expected=expected)
        for part in _parts(names)
    ]
    return (yield from _send_examinations(calls))


def _send_examinations(calls: list[Call]) -> Generator[list[Request], Any, list[Faults]]:
    """Send one call at a time, so that the server can serve other clients between two calls. Return the faults in order."""
    found: list[Faults] = []
    for call in calls:
        (reply,) = require_all((yield [call]))
        found += [[(text(row[i]), _shown(row[i + 1])) for i in range(0, len(row), 2)] for row in reply]
    return found


# ---- repairing ---------------------------------------------------------------------------------------------------------


def repair_runs(
    keys: Keys, seen: Sequence[tuple[str, str]], jitter: float = 0.5, now: str = ""
) -> Generator[list[Request], Any, list[str]]:
    """Repair runs, and return a word for each: repaired, kept, changed or blocked.

    `kept` means that the damaged run was moved to a key where it is kept for a week, `changed` that the run does not have the fault
    any more, and `blocked` that another fault must be repaired first.

    Args:
        keys: The keys of the partition.
        seen: The id of each run, and the fault that was found.
        jitter: A number from 0 to 1, which spreads delays.
        now: The time in ms, for namespaces with the test clock.
    """
    return (
        yield from _send_repairs(
            [scripts.REPAIR_RUN.call(keys.at, now=now, id=id, fault=fault, jitter=str(jitter)) for id, fault in seen]
        )
    )


def repair_entries(
    keys: Keys, place: str, name: str, seen: Sequence[tuple[str, str]], now: str = ""
) -> Generator[list[Request], Any, list[str]]:
    """Repair members of a set or sorted set, and return a word for each: repaired, changed or blocked (see `repair_runs`).

    Args:
        keys: The keys of the partition.
        place: The family of the set: the part of its name before the first colon.
        name: The rest of the set's name; empty if it has none.
        seen: Each member, and the fault that was found.
        now: The time in ms, for namespaces with the test clock.
    """
    calls = [
        scripts.REPAIR_ENTRY.call(keys.at, now=now, place=place, name=raw(name), member=raw(member), fault=fault)
        for member, fault in seen
    ]
    return (yield from _send_repairs(calls))


def repair_keys(
    keys: Keys, family: str, expected: str, seen: Sequence[tuple[str, str]]
) -> Generator[list[Request], Any, list[str]]:
    """Repair keys of a family, and return a word for each: repaired, changed or blocked (see `repair_runs`).

    Args:
        keys: The keys of the partition.
        family: The part of the keys' names before the first colon.
        expected: The type that the keys must have.
        seen: The rest of each key's name, and the fault that was found.
    """
    calls = [
        scripts.REPAIR_KEY.call(keys.at, family=family, name=raw(name), expected=expected, fault=fault)
        for name, fault in seen
    ]
    return (yield from _send_repairs(calls))


def repair_type(keys: Keys, key: str, name: str, expected: str) -> Generator[Request, Any, str]:
    """Move a key that has the wrong type aside, where it is kept for a week.

    Args:
        keys: The keys of the partition.
        key: The key.
        name: The name of the key without its hash tag.
        expected: The type that the key must have.

    Returns:
        `kept` (the key was moved) or `changed` (the key has the expected type by now, or is gone).
    """
    reply = yield scripts.REPAIR_TYPE.call(keys.at, key=raw(key), name=raw(name), expected=expected)
    return word(reply)


def _send_repairs(calls: Sequence[Call]) -> Generator[list[Request], Any, list[str]]:
    """Send each repair as a command of its own, several in one trip. Return the answer words in order."""
    outcomes: list[str] = []
    for start in range(0, len(calls), RUNS_PER_SCRIPT):
        replies = yield [*calls[start : start + RUNS_PER_SCRIPT]]
        outcomes += [word(reply) for reply in require_all(replies)]
    return outcomes


# ---- shared ------------------------------------------------------------------------------------------------------------


def raw(name: str) -> bytes:
    """Return the bytes of a name. The name of a damaged key may contain bytes that are not text."""
    return name.encode(errors="surrogateescape")


def _shown(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _parts(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + RUNS_PER_SCRIPT] for start in range(0, len(names), RUNS_PER_SCRIPT)]
