"""Plans of supervisors, and of the commands that ask for a roll of a fleet or a drain of a worker.

A roll is stored in partition 0: the process that asked for it, and a part for each supervisor of the fleet. A part has a state,
the number of replaced processes and of all processes. Its state is `waiting`, `going`, `done`, `failed` (with a reason), `stopped`
(another part failed) or `left` (its supervisor was stopped).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.store.keys import Keys
from coordinator.store.replies import pairs, require_all, text, word
from coordinator.store.script import Request, read
from coordinator.store.scripts import DRAIN, ROLL, ROLL_PART, SUPERVISE, UNLOCK

SILENCE = 15.0  # seconds without a call after which a supervisor counts as lost
MOST = 1000  # the most workers of a partition that are read

UNFINISHED = ("waiting", "going")


@dataclass(frozen=True, slots=True)
class RollPart:
    """The part of one supervisor in a roll.

    Attributes:
        state: waiting, going, done, failed, stopped or left (see above).
        replaced: The number of processes that were replaced.
        total: The number of processes to replace.
        reason: Why the part failed; empty otherwise.
    """

    state: str
    replaced: int = 0
    total: int = 0
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.state} {self.replaced} {self.total} {self.reason}".strip()

    @classmethod
    def read(cls, stored: str) -> RollPart:
        """Return the part from its stored form, the text that `str` returns."""
        state, replaced, total, reason = [*stored.split(" ", 3), "", "", ""][:4]
        return cls(state, int(replaced or 0), int(total or 0), reason)


# ---- supervisors -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RollOrder:
    """A roll that a supervisor takes part in.

    Attributes:
        roll: The id of the roll.
        at_once: The number of processes that the supervisor may replace at the same time.
        part: The progress of this supervisor's part of the roll.
    """

    roll: str
    at_once: int
    part: RollPart


def supervise(
    keys: Keys, fleet: str, supervisor: str, *, leaves: bool = False, renews: bool = True, now: str = ""
) -> Generator[Request, Any, RollOrder | None]:
    """Record that a supervisor is alive, or that it leaves. Return the roll that it takes part in, or None.

    Args:
        keys: The keys of partition 0.
        fleet: The fleet.
        supervisor: The id of the supervisor.
        leaves: True if the supervisor shuts down.
        renews: True to renew the list of supervisors, which expires after one minute.
        now: The time in ms, for namespaces with the test clock.
    """
    reply = yield SUPERVISE.call(
        keys.at, now=now, fleet=fleet, supervisor=supervisor, leaves=int(leaves), renews=int(renews)
    )
    if len(reply) == 1:
        return None
    return RollOrder(text(reply[1]), int(reply[2]), RollPart.read(text(reply[3])))


def report_part(keys: Keys, fleet: str, roll: str, supervisor: str, part: RollPart) -> Generator[Request, Any, bool]:
    """Store the progress of a supervisor in a roll. Return False if its part is already over, or another roll has begun."""
    reply = yield ROLL_PART.call(
        keys.at, fleet=fleet, roll=roll, supervisor=supervisor, part=str(part), state=part.state
    )
    return word(reply) == "ok"


def unlock(keys: Keys, name: str, token: str) -> Generator[Request, Any, bool]:
    """Release a lock. Return False if another token holds it."""
    reply = yield UNLOCK.call(keys.at, lock=name, token=token)
    return word(reply) == "ok"


@dataclass(frozen=True, slots=True)
class MarkedWorker:
    """A worker whose process has a mark, by which its supervisor recognises the process.

    Attributes:
        id: The worker's id.
        mark: The mark of its process.
        deadline: The end of its lease, in ms of the server's clock.
        lease: The length of its lease, in seconds.
        silent: Seconds since its last heartbeat.
    """

    id: str
    mark: str
    deadline: str
    lease: float
    silent: float


def read_process_marks(keys: Keys) -> Generator[Request | list[Request], Any, list[MarkedWorker]]:
    """Return each worker of a partition that has a process mark."""
    flat = yield read(keys.at, "ZRANGE", keys.workers(), 0, MOST - 1, "WITHSCORES")
    scores = [(text(flat[i]), text(flat[i + 1])) for i in range(0, len(flat), 2)]
    requests: list[Request] = [read(keys.at, "HMGET", keys.worker(id), "mark", "lease") for id, _ in scores]
    *found, now = yield [*requests, read(keys.at, "TIME")]
    seconds, micro = require_all([now])[0]
    clock = int(seconds) + int(micro) / 1e6
    marked = []
    for (id, deadline), known in zip(scores, found, strict=True):
        mark, length = known if isinstance(known, list) else (None, None)  # a damaged worker is left to the doctor
        if mark and length:
            lease = int(text(length)) / 1000
            marked.append(MarkedWorker(id, text(mark), deadline, lease, clock - (float(deadline) / 1000 - lease)))
    return marked


# ---- asking for a roll or a drain -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RollAnswer:
    """The answer to a request for a roll.

    Attributes:
        word: `ok`; `nobody` (the fleet has no supervisor); or `busy` (a roll is under way).
        by: The user who asked for the roll that is under way.
        ago: Seconds since that roll was asked for.
    """

    word: str
    by: str = ""
    ago: float = 0.0


def request_roll(
    keys: Keys, fleet: str, roll: str, *, at_once: int, by: str, now: str = ""
) -> Generator[Request, Any, RollAnswer]:
    """Ask the supervisors of a fleet to replace their processes. Return the answer.

    Args:
        keys: The keys of partition 0.
        fleet: The fleet.
        roll: A random id for the roll.
        at_once: The number of processes that each supervisor may replace at the same time.
        by: The user who asks for the roll.
        now: The time in ms, for namespaces with the test clock.
    """
    reply = yield ROLL.call(
        keys.at, now=now, fleet=fleet, roll=roll, at_once=at_once, by=by, silence=round(SILENCE * 1000)
    )
    if word(reply) == "busy":
        return RollAnswer("busy", text(reply[1]), int(reply[2]) / 1000)
    return RollAnswer(word(reply))


@dataclass(frozen=True, slots=True)
class RollView:
    """The progress of a roll.

    Attributes:
        roll: The id of the roll; empty if the fleet has no roll.
        parts: The part of each supervisor, by its id.
        lost: The supervisors with an unfinished part that have made no call for 15 seconds.
    """

    roll: str
    parts: dict[str, RollPart]
    lost: frozenset[str]

    @property
    def under_way(self) -> bool:
        """Return True if the roll is under way: a supervisor that is alive has not finished its part."""
        return any(part.state in UNFINISHED for name, part in self.parts.items() if name not in self.lost)


def read_roll(keys: Keys, fleet: str) -> Generator[list[Request], Any, RollView]:
    """Return the progress of the last roll of a fleet."""
    found = yield [
        read(keys.at, "HGETALL", keys.roll(fleet)),
        read(keys.at, "ZRANGE", keys.supervisors(fleet), 0, -1, "WITHSCORES"),
        read(keys.at, "TIME"),
    ]
    facts, seen, now = require_all(found)
    of = {field: text(value) for field, value in pairs(facts).items()}
    alive = _seen_since(seen, int(now[0]) - SILENCE)
    parts = {name[5:]: RollPart.read(told) for name, told in of.items() if name.startswith("part:")}
    lost = frozenset(name for name, part in parts.items() if part.state in UNFINISHED and name not in alive)
    return RollView(of.get("roll", ""), parts, lost)


def _seen_since(seen: Sequence[Any], since: float) -> set[str]:
    return {text(seen[i]) for i in range(0, len(seen), 2) if float(seen[i + 1]) / 1000 > since}


def drain(keys: Keys, worker: str, now: str = "") -> Generator[Request, Any, bool]:
    """Ask a worker to drain, or record that it drains. Return False if the worker is not registered."""
    reply = yield DRAIN.call(keys.at, now=now, worker=worker)
    return word(reply) == "ok"
