"""What supervisors and those who ask them for something say to each other, as plans: rolls, drains, and who is there.

A roll is a fact in partition 0: who asked, and a part for each supervisor of the fleet. A part is `waiting`, `going`, `done`,
`failed` (a sentence says why), `stopped` (another one failed) or `left` (its supervisor was stopped), and how many processes were
replaced of how many.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.store.keys import Keys
from coordinator.store.replies import pairs, text, word
from coordinator.store.script import Request, read
from coordinator.store.scripts import DRAIN, ROLL, ROLL_PART, SUPERVISE, UNLOCK

SILENCE = 15.0  # a supervisor that was not seen for so long is taken for lost
MOST = 1000  # workers that are looked at

UNFINISHED = ("waiting", "going")


@dataclass(frozen=True, slots=True)
class RollPart:
    """What one supervisor does in a roll."""

    state: str
    replaced: int = 0
    total: int = 0
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.state} {self.replaced} {self.total} {self.reason}".strip()

    @classmethod
    def read(cls, told: str) -> RollPart:
        state, replaced, total, reason = [*told.split(" ", 3), "", "", ""][:4]
        return cls(state, int(replaced or 0), int(total or 0), reason)


# ---- supervisors -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RollOrder:
    """A roll as one supervisor is told of it."""

    roll: str
    at_once: int
    part: RollPart


def supervise(
    keys: Keys, fleet: str, supervisor: str, *, leaves: bool = False, now: str = ""
) -> Generator[Request, Any, RollOrder | None]:
    """Says that a supervisor is there, or leaves. The roll in which it has a part, if there is one."""
    reply = yield SUPERVISE.call(keys.at, now=now, fleet=fleet, supervisor=supervisor, leaves=int(leaves))
    if len(reply) == 1:
        return None
    return RollOrder(text(reply[1]), int(reply[2]), RollPart.read(text(reply[3])))


def report_part(keys: Keys, fleet: str, roll: str, supervisor: str, part: RollPart) -> Generator[Request, Any, bool]:
    """Tells how far a supervisor has come; whether the roll still counts on it."""
    reply = yield ROLL_PART.call(
        keys.at, fleet=fleet, roll=roll, supervisor=supervisor, part=str(part), state=part.state
    )
    return word(reply) == "ok"


def unlock(keys: Keys, name: str, token: str) -> Generator[Request, Any, bool]:
    """Gives a lock back; False where another holds it."""
    reply = yield UNLOCK.call(keys.at, lock=name, token=token)
    return word(reply) == "ok"


def read_process_marks(keys: Keys) -> Generator[Request | list[Request], Any, list[tuple[str, str]]]:
    """Each worker of a partition with the mark of its process; empty where it has none."""
    listed = yield read(keys.at, "ZRANGE", keys.workers(), 0, MOST - 1)
    workers = [text(worker) for worker in listed]
    found = yield [read(keys.at, "HGET", keys.worker(worker), "mark") for worker in workers]
    return [(worker, text(mark)) for worker, mark in zip(workers, found, strict=True) if isinstance(mark, bytes)]


# ---- those who ask -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RollAnswer:
    """The answer to who asked for a roll: ok; nobody (the fleet has no supervisor); busy, with who asked before, and when."""

    word: str
    by: str = ""
    ago: float = 0.0


def request_roll(
    keys: Keys, fleet: str, roll: str, *, at_once: int, by: str, now: str = ""
) -> Generator[Request, Any, RollAnswer]:
    reply = yield ROLL.call(
        keys.at, now=now, fleet=fleet, roll=roll, at_once=at_once, by=by, silence=round(SILENCE * 1000)
    )
    if word(reply) == "busy":
        return RollAnswer("busy", text(reply[1]), int(reply[2]) / 1000)
    return RollAnswer(word(reply))


@dataclass(frozen=True, slots=True)
class RollView:
    """How far a roll has come. `lost` are supervisors with an unfinished part that were not seen for a while."""

    roll: str
    parts: dict[str, RollPart]
    lost: frozenset[str]

    @property
    def under_way(self) -> bool:
        return any(part.state in UNFINISHED for name, part in self.parts.items() if name not in self.lost)


def read_roll(keys: Keys, fleet: str) -> Generator[list[Request], Any, RollView]:
    """The last roll of a fleet."""
    found = yield [
        read(keys.at, "HGETALL", keys.roll(fleet)),
        read(keys.at, "ZRANGE", keys.supervisors(fleet), 0, -1, "WITHSCORES"),
        read(keys.at, "TIME"),
    ]
    for reply in found:
        if isinstance(reply, Exception):
            raise reply
    facts, seen, now = found
    of = {field: text(value) for field, value in pairs(facts).items()}
    alive = _seen_since(seen, int(now[0]) - SILENCE)
    parts = {name[5:]: RollPart.read(told) for name, told in of.items() if name.startswith("part:")}
    lost = frozenset(name for name, part in parts.items() if part.state in UNFINISHED and name not in alive)
    return RollView(of.get("roll", ""), parts, lost)


def _seen_since(seen: Sequence[Any], since: float) -> set[str]:
    return {text(seen[i]) for i in range(0, len(seen), 2) if float(seen[i + 1]) / 1000 > since}


def drain(keys: Keys, worker: str, now: str = "") -> Generator[Request, Any, bool]:
    """Asks a worker to drain, or says that it does; whether it is there."""
    reply = yield DRAIN.call(keys.at, now=now, worker=worker)
    return word(reply) == "ok"
