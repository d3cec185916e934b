"""A small model of a run that waits for children: its workers, its children, coordinators, crashes, revives and restarts.

Every call of a worker can lose its reply, so that it is repeated, and can be executed late. The model was written from the design.
A variant of it contains one bug, which must break an invariant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

COUNT = 2  # children of the step


class Base(NamedTuple):
    """The base of the step, as the checkpoint has it: its number, its life, the enqueued children, the base of an earlier life."""

    number: int = 0
    life: int = 0
    made: int = 0
    old: int = 0


class Attempt(NamedTuple):
    """One process that works on the parent, or believes so."""

    token: int
    life: int
    at: str  # the next step: begin, save, join, spawn, look, suspend, complete, fail
    base: Base


class Call(NamedTuple):
    """A call that is executed by the server, now or late."""

    what: str
    token: int = 0
    life: int = 0
    base: Base = Base()


class State(NamedTuple):
    """Everything: the server, the processes, the calls on their way, and the faults that may still happen."""

    faults: tuple[int, ...]
    status: str = "queued"
    life: int = 1
    epoch: int = 0
    token: int = 0
    is_due: bool = False
    saved: Base = Base()
    joins: tuple[tuple[int, int], ...] = ()  # how many children have ended, by base
    children: tuple[tuple[int, int, int, str], ...] = ()  # base, life of the parent, index, status
    results: frozenset[tuple[int, int, str]] = frozenset()  # base, index, status
    parting: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()  # children whose results a revived parent keeps
    attempts: tuple[Attempt, ...] = ()
    late: frozenset[Call] = frozenset()
    bases: int = 0
    restarts: int = 0
    broken: str = ""

    @property
    def open(self) -> bool:
        return self.status in ("queued", "running", "waiting")

    def ended(self, base: int) -> int | None:
        return dict(self.joins).get(base)


FAULTS = ("lost", "late", "crash", "pause", "fail", "revive", "restart", "bad", "again")


@dataclass(frozen=True)
class Model:
    """A parent that gathers two children and completes, and a bounded number of faults.

    Attributes:
        faults: How often each fault happens at most: a lost reply, a late call, a crash, a pause of a process that then works on, a
            parent that fails, its revive, a retry from the start, a child that fails, a child that is revived and ends again.
        bug: The bug of this variant; empty for none.
    """

    faults: dict[str, int] = field(default_factory=dict)
    bug: str = ""

    def start(self) -> State:
        return State(tuple(self.faults.get(name, 0) for name in FAULTS))

    def is_end(self, state: State) -> bool:
        return not state.open and not state.parting and all(child[3] != "open" for child in state.children)

    def check(self, state: State) -> str | None:
        if state.broken:
            return state.broken
        for base, life, index, status in state.children:
            waited = state.open and life == state.life and state.ended(base) is not None
            if status == "open" and not waited and base not in state.parting:
                return f"child {index} is left, and nobody cancels it"
        created = [(life, index) for _, life, index, _ in state.children]
        if len(created) != len(set(created)) and not state.restarts:
            return "a child was created twice"
        for base, ended in state.joins:
            if ended != len([one for one in state.results if one[0] == base]):
                return "an ending was counted twice"
        if state.status == "waiting" and not state.is_due and state.ended(state.saved.number) in (None, COUNT):
            return "a wake-up was lost"
        return None

    # -- steps

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.status == "queued":
            attempt = Attempt(state.epoch + 1, state.life, "begin", state.saved)
            taken = state._replace(status="running", epoch=state.epoch + 1, token=state.epoch + 1)
            yield "claim", taken._replace(attempts=(*state.attempts, attempt))
        if state.is_due:
            yield "wake", state._replace(status="queued", is_due=False)
        for base in state.parting:
            yield "part", self._part(state, base)
        for call in state.late:
            yield f"late {call.what}", self._execute(state._replace(late=state.late - {call}), call)[0]
        for attempt in state.attempts:
            yield from self._work(state, attempt)
        yield from self._faults(state)
        for child in state.children:
            if child[3] == "open":
                yield f"child {child[2]} completes", self._end(state, child, "completed")
                if left := self._spend(state, "bad"):
                    yield f"child {child[2]} fails", self._end(left, child, "failed")
            elif child[3] == "failed" and (left := self._spend(state, "again")):
                yield f"child {child[2]} ends again", self._end(left, child, "completed")

    def _faults(self, state: State) -> Iterator[tuple[str, State]]:
        if state.status == "running":
            requeued = state._replace(status="queued", token=0, epoch=state.epoch + 1)
            mine = tuple(attempt for attempt in state.attempts if attempt.token != state.token)
            if left := self._spend(requeued, "crash"):
                yield "crash", left._replace(attempts=mine)
            if left := self._spend(requeued, "pause"):
                yield "lost, and works on", left
            if left := self._spend(requeued, "restart"):
                gone = left if self.bug == "restart forgets children" else self._drop(left)
                gone = gone._replace(saved=Base(), joins=(), results=frozenset(), attempts=mine, restarts=1)
                yield "retry from the start", gone
        if state.status == "failed" and (left := self._spend(state, "revive")):
            kept = frozenset(index for _, index, status in state.results if status == "completed")
            yield "revive", left._replace(status="queued", life=state.life + 1, epoch=state.epoch + 1, kept=kept)

    def _spend(self, state: State, fault: str) -> State | None:
        at = FAULTS.index(fault)
        if not state.faults[at]:
            return None
        return state._replace(faults=(*state.faults[:at], state.faults[at] - 1, *state.faults[at + 1 :]))

    # -- the worker

    def _work(self, state: State, attempt: Attempt) -> Iterator[tuple[str, State]]:
        base = attempt.base
        if attempt.at == "begin":
            at = "join"
            if base.life != attempt.life:
                old = base.old or base.number
                base = Base(state.bases + 1, attempt.life, 0, old)
                state = state._replace(bases=state.bases + 1)
                at = "join" if self.bug == "base unsaved" else "save"
            yield "begin", self._to(state, attempt, at, base)
            return
        if attempt.at == "look":
            ended = state.ended(base.number)
            if attempt.token != state.token or ended is None:
                yield "look", self._gone(state, attempt)
            else:
                yield "look", self._to(state, attempt, "complete" if ended >= COUNT else "suspend", base)
            return
        if attempt.at in ("spawn", "suspend") and (left := self._spend(state, "fail")):
            yield "the handler fails", self._to(left, attempt, "fail", base)
        call = Call(attempt.at, attempt.token, attempt.life, base)
        if attempt.at == "save" and self.bug == "old forgotten":
            call = call._replace(base=base._replace(old=0))
        if attempt.at == "save" and self.bug == "counted early":
            call = call._replace(base=base._replace(made=COUNT))
        done, answer = self._execute(state, call)
        if left := self._spend(done, "lost"):
            yield f"{attempt.at}, and its reply is lost", left
        if call not in state.late and (left := self._spend(state, "late")):
            yield f"{attempt.at} is delayed, and repeated", left._replace(late=left.late | {call})
        if answer != "ok":
            yield f"{attempt.at}: {answer}", self._gone(done, attempt)
        elif attempt.at == "save":
            yield "save", self._to(done, attempt, "join", base)
        elif attempt.at in ("join", "spawn"):
            base = base._replace(old=0, made=base.made + (attempt.at == "spawn"))
            yield attempt.at, self._to(done, attempt, "spawn" if base.made < COUNT else "look", base)
        else:
            yield attempt.at, self._gone(done, attempt)

    def _to(self, state: State, attempt: Attempt, at: str, base: Base) -> State:
        moved = attempt._replace(at=at, base=base)
        return state._replace(attempts=tuple(moved if one == attempt else one for one in state.attempts))

    def _gone(self, state: State, attempt: Attempt) -> State:
        return state._replace(attempts=tuple(one for one in state.attempts if one.token != attempt.token))

    # -- the server

    def _execute(self, state: State, call: Call) -> tuple[State, str]:
        if call.what == "spawn":
            return self._spawn(state, call)
        if call.token != state.token:
            return state, "fenced"
        base = call.base
        if call.what == "save":
            return state._replace(saved=base), "ok"
        if call.what == "join":
            return self._join(state, base), "ok"
        left = state._replace(token=0, epoch=state.epoch + 1)
        if call.what == "suspend":
            left = left._replace(saved=base, status="waiting")
            holds = left.ended(base.number) in (None, COUNT) and self.bug != "unchecked"
            return left._replace(status="queued" if holds else "waiting"), "ok"
        if call.what == "fail":
            left = left._replace(saved=base)
            return (left if self.bug == "not dropped" else self._drop(left))._replace(status="failed"), "ok"
        if {index for number, index, _ in state.results if number == base.number} != set(range(COUNT)):
            left = left._replace(broken="the parent completed without a child")
        return self._drop(left)._replace(status="completed", joins=(), results=frozenset()), "ok"

    def _join(self, state: State, base: Base) -> State:
        joins, results = dict(state.joins), state.results
        if base.number not in joins:
            moved = [one for one in results if one[0] == base.old and one[2] == "completed"]
            joins[base.number] = len(moved)
            results |= {(base.number, index, status) for _, index, status in moved}
        state = self._drop(state, base.number)
        results = frozenset(one for one in results if one[0] == base.number)
        return state._replace(joins=((base.number, joins[base.number]),), results=results)

    def _spawn(self, state: State, call: Call) -> tuple[State, str]:
        base, index = call.base.number, call.base.made
        if any(child[0] == base and child[2] == index for child in state.children):
            return state, "ok"
        if any(one[:2] == (base, index) for one in state.results):
            return state, "ok"
        known = state.ended(base) is not None or self.bug == "not announced"
        alive = (state.open and call.life == state.life) or self.bug in ("no life", "not announced")
        if not known or not alive:
            return state, "stale"
        if index in state.kept and not state.restarts:
            state = state._replace(broken="a child that had completed runs again")
        return state._replace(children=(*state.children, (base, call.life, index, "open"))), "ok"

    def _end(self, state: State, child: tuple[int, int, int, str], status: str) -> State:
        base, life, index, before = child
        ended = (base, life, index, status if before == "open" else "ended again")
        state = state._replace(children=tuple(ended if one == child else one for one in state.children))
        count = state.ended(base)
        if not state.open or life != state.life or count is None:
            return state
        if any(one[:2] == (base, index) for one in state.results) and self.bug != "counted twice":
            return state
        joins = tuple(
            (number, count + (number == base)) if number == base else (number, n) for number, n in state.joins
        )
        wakes = state.status == "waiting" and state.saved.number == base and count + 1 >= COUNT
        return state._replace(
            joins=joins, results=state.results | {(base, index, status)}, is_due=state.is_due or wakes
        )

    def _drop(self, state: State, but: int = 0) -> State:
        parting = {base for base, ended in state.joins if base != but and ended < COUNT}
        return state._replace(parting=state.parting | parting)

    def _part(self, state: State, base: int) -> State:
        children = tuple(
            (*child[:3], "cancelled") if child[0] == base and child[3] == "open" else child for child in state.children
        )
        return state._replace(parting=state.parting - {base}, children=children)
