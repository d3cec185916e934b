"""The evidence of one lab: histories, journal, and the final state of the server. Data only; the rules are elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from coordinator.model.run import Counters
from tests.e2e.processes import Event
from tests.faults.judge.history import History, Operation

ENDED = ("completed", "failed", "cancelled", "dead")
ACCEPTED = ("ok", "waiting", "delayed", "dead", "cancelled", "failed")


@dataclass(frozen=True, slots=True)
class FinalRun:
    """A run as the server stores it at the end.

    `expected` is the expected result and `result` the stored one. A `bare` run was discarded: only a tombstone is left.
    `may_fail` is set if the handler fails under some faults, as its promise says. `events` are what a reader of settled events
    gets; None if the output is not kept. `effects` is the number of effects, `budget` what the run may spend, `spent` what the
    server has counted.
    """

    status: str
    counters: Counters
    last: str = ""
    result: object = None
    expected: object = None
    expected_status: str = "completed"
    bare: bool = False
    may_fail: bool = False
    events: Sequence[object] | None = None
    expected_events: Sequence[object] = ()
    effects: int = 0
    budget: int = 0
    spent: int = 0


@dataclass(frozen=True)
class Final:
    """The final state of the server.

    `leaks` are keys that should be gone. `records` are the checkpoints of programs that use `workers.durable`, with the
    number of the stored save.
    """

    runs: Mapping[str, FinalRun]
    findings: Sequence[str] = ()
    leaks: Sequence[str] = ()
    records: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """A run as a worker received it. `seq` is the number of its checkpoint, or None if the worker had to load it."""

    id: str
    token: str
    epoch: int
    life: int
    attempt: int
    seq: int | None
    generation: int
    chunks: Mapping[str, str]
    alone: bool
    invoked: int
    ended: int


@dataclass(frozen=True, slots=True)
class Save:
    """An acknowledged save of a run."""

    seq: int
    generation: int
    base: int
    count: int
    chunk: str
    invoked: int
    ended: int


@dataclass
class Evidence:
    """All evidence of one lab. `excused` are runs that were damaged on purpose, for which nothing is promised."""

    history: History
    events: Sequence[Event]
    final: Final
    excused: frozenset[str] = frozenset()

    @cached_property
    def acknowledged(self) -> set[str]:
        # A revived parent keeps the results of its children. The enqueue of a child with such a result creates no run.
        found = {
            str(op.answer[1])
            for op in self.history.of("enqueue")
            if op.word in ("created", "found") and str(op.given.get("parent", "")).split(" ")[0] not in self.excused
        }
        fired = {str(op.answer[1]) for op in self.history.of("fire") if op.word == "fired"}
        return (found | fired) - self.excused

    @cached_property
    def invoked(self) -> set[str]:
        fires = (op for op in self.history.of("fire") if op.word == "fired" or op.outcome == "unknown")
        return {op.id for op in (*self.history.of("enqueue"), *fires)}

    @cached_property
    def discarded(self) -> set[str]:
        """The runs that may have been discarded: the answer says so, or there was no answer."""
        return {op.id for op in self.history.of("discard") if op.word == "discarded" or op.outcome == "unknown"}

    @cached_property
    def claims(self) -> dict[str, list[Claim]]:
        """The claims of each run, in the order of the requests."""
        heads = (op for op in self.history.of("load") if op.word == "ok" and isinstance(op.answer[1], str))
        loaded = {(op.id, op.token): op.answer[1] for op in heads}
        found: dict[str, list[Claim]] = defaultdict(list)
        for op in self.history.of("claim"):
            for row in op.answer[1] if op.word in ("ok", "suspect") else ():
                if row["id"] in self.excused:
                    continue
                head = row.get("head", "0")
                if head == "paged":
                    head = loaded.get((row["id"], row["token"]), "")
                numbered = row["counters"].split()
                numbers = [int(number) for number in str(head).split()]
                found[row["id"]].append(
                    Claim(
                        row["id"], row["token"], epoch_of(row["token"]), int(numbered[0]), int(numbered[1]),
                        numbers[0] if numbers else None, numbers[1] if len(numbers) > 1 else 0,
                        row.get("chunks", {}), op.word == "suspect", op.invoked, op.ended,
                    )
                )  # fmt: skip
        return found

    @cached_property
    def from_start(self) -> dict[str, list[Operation]]:
        """The revives from the start, by run."""
        found: dict[str, list[Operation]] = defaultdict(list)
        for op in self.history.of("revive"):
            if str(op.given.get("from_start")) == "1" and (op.word == "queued" or op.outcome == "unknown"):
                found[op.id].append(op)
        return found

    @cached_property
    def life_of(self) -> dict[tuple[str, str], int]:
        """The life of a run in which a token was issued."""
        return {(claim.id, claim.token): claim.life for claims in self.claims.values() for claim in claims}

    @cached_property
    def saves(self) -> dict[str, list[Save]]:
        """The acknowledged saves of each run."""
        found: dict[str, list[Save]] = defaultdict(list)
        for op in self.history.of("checkpoint", "release", "retry", "suspend", "fail"):
            delta = op.given.get("delta")
            if op.word in ACCEPTED and isinstance(delta, dict):
                parts = (delta["seq"], delta["generation"], delta["base"], delta["count"], delta["chunk"])
                found[op.id].append(Save(*parts, op.invoked, op.ended))
        return found


def epoch_of(token: str) -> int:
    return int(token.partition("-")[0])
