"""What a doctor asks of one partition, as plans: a page of keys or members, what is wrong with them, and one repair.

Every look and every repair is bounded: a page of a SCAN, some dozens of runs in a script.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Sequence
from functools import cache
from typing import Any

from coordinator.store import scripts
from coordinator.store.keys import Keys
from coordinator.store.replies import text, word
from coordinator.store.script import Call, Request, read

RUNS_PER_SCRIPT = 25  # runs or members that one script looks at: less than a millisecond
PAGE = 500  # of the keyspace, or of a large set

Faults = list[tuple[str, str]]  # word, detail


@cache
def key_types() -> dict[str, str]:
    """What type a key is to have, by its name or by the first part of it; as keys.py says beside each."""
    keys, found = Keys("-", 0), {}
    for method, function in inspect.getmembers(Keys, inspect.isfunction):
        if method.startswith("_") or method == "set_aside":
            continue
        arguments = len(inspect.signature(function).parameters) - 1
        name: str = function(keys, *[""] * arguments).removeprefix(f"{keys.at}:")
        found[name.split(":")[0] if arguments else name] = (function.__doc__ or "").split(":")[0]
    return found


# ---- pages -------------------------------------------------------------------------------------------------------------


def scan_keys(at: str, namespace: str, cursor: int) -> Generator[Request, Any, tuple[int, list[str]]]:
    """The next cursor, and some keys of the namespace: of all its partitions that are on the node of this one."""
    reply = yield read(at, "SCAN", cursor, "MATCH", f"{{{namespace}:*}}:*", "COUNT", PAGE)
    return int(reply[0]), [key.decode(errors="surrogateescape") for key in reply[1]]


def read_members(keys: Keys, key: str, kind: str, cursor: int) -> Generator[Request, Any, tuple[int, list[str]]]:
    """The next cursor, and some members of a set or a zset."""
    scanning, step = ("SSCAN", 1) if kind == "set" else ("ZSCAN", 2)
    reply = yield read(keys.at, scanning, raw(key), cursor, "COUNT", PAGE)
    return int(reply[0]), [member.decode(errors="surrogateescape") for member in reply[1][::step]]


def read_types(keys: Keys, names: Sequence[str]) -> Generator[list[Request], Any, list[str]]:
    """The type of each key."""
    replies = yield [read(keys.at, "TYPE", raw(name)) for name in names]
    return [text(reply) for reply in _all(replies)]


# ---- looking -----------------------------------------------------------------------------------------------------------


def examine(keys: Keys, ids: Sequence[str]) -> Generator[list[Request], Any, list[Faults]]:
    """For each run what is wrong with it."""
    calls = [scripts.EXAMINE.call(keys.at, [(id,) for id in part]) for part in _parts(ids)]
    return (yield from _asked(calls))


def examine_entries(
    keys: Keys, place: str, name: str, members: Sequence[str], now: str = ""
) -> Generator[list[Request], Any, list[Faults]]:
    """For each member of a set or zset what is wrong with it."""
    calls = [
        scripts.EXAMINE_ENTRIES.call(keys.at, [(raw(member),) for member in part], now=now, place=place, name=raw(name))
        for part in _parts(members)
    ]
    return (yield from _asked(calls))


def examine_keys(
    keys: Keys, family: str, expected: str, names: Sequence[str]
) -> Generator[list[Request], Any, list[Faults]]:
    """For each key of a family what is wrong with it."""
    calls = [
        scripts.EXAMINE_KEYS.call(keys.at, [(raw(name),) for name in part], family=family, expected=expected)
        for part in _parts(names)
    ]
    return (yield from _asked(calls))


def _asked(calls: list[Call]) -> Generator[list[Request], Any, list[Faults]]:
    """One call at a time: who else uses the server gets its turn between two."""
    found: list[Faults] = []
    for call in calls:
        (reply,) = _all((yield [call]))
        found += [[(text(row[i]), _shown(row[i + 1])) for i in range(0, len(row), 2)] for row in reply]
    return found


# ---- mending -----------------------------------------------------------------------------------------------------------


def repair_runs(
    keys: Keys, seen: Sequence[tuple[str, str]], jitter: float = 0.5, now: str = ""
) -> Generator[list[Request], Any, list[str]]:
    """What became of each (run, fault)."""
    return (
        yield from _mended(
            [scripts.REPAIR_RUN.call(keys.at, now=now, id=id, fault=fault, jitter=jitter) for id, fault in seen]
        )
    )


def repair_entries(
    keys: Keys, place: str, name: str, seen: Sequence[tuple[str, str]], now: str = ""
) -> Generator[list[Request], Any, list[str]]:
    """What became of each (member, fault)."""
    calls = [
        scripts.REPAIR_ENTRY.call(keys.at, now=now, place=place, name=raw(name), member=raw(member), fault=fault)
        for member, fault in seen
    ]
    return (yield from _mended(calls))


def repair_keys(
    keys: Keys, family: str, expected: str, seen: Sequence[tuple[str, str]]
) -> Generator[list[Request], Any, list[str]]:
    """What became of each (name, fault)."""
    calls = [
        scripts.REPAIR_KEY.call(keys.at, family=family, name=raw(name), expected=expected, fault=fault)
        for name, fault in seen
    ]
    return (yield from _mended(calls))


def repair_type(keys: Keys, key: str, name: str, expected: str) -> Generator[Request, Any, str]:
    reply = yield scripts.REPAIR_TYPE.call(keys.at, key=raw(key), name=raw(name), expected=expected)
    return word(reply)


def _mended(calls: Sequence[Call]) -> Generator[list[Request], Any, list[str]]:
    """Each repair is a command of its own, and some of them share a trip."""
    outcomes: list[str] = []
    for start in range(0, len(calls), RUNS_PER_SCRIPT):
        replies = yield [*calls[start : start + RUNS_PER_SCRIPT]]
        outcomes += [word(reply) for reply in _all(replies)]
    return outcomes


# ---- shared ------------------------------------------------------------------------------------------------------------


def raw(name: str) -> bytes:
    """The bytes of a name that may be anything: what is damaged need not be text."""
    return name.encode(errors="surrogateescape")


def _shown(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _parts(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + RUNS_PER_SCRIPT] for start in range(0, len(names), RUNS_PER_SCRIPT)]


def _all(replies: Sequence[Any]) -> Sequence[Any]:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
