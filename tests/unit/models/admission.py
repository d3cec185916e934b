"""A small model of a group with a limit: runs that enter and leave, losses, late and repeated calls, and changes of the limit.

The model was written from the design. A variant of it contains one bug, which must break an invariant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Run(NamedTuple):
    """A run: its status, and the calls of its owners that are still on their way, as (what, whether the caller owns the run)."""

    status: str = "new"  # new, line, ready, running, delayed, waiting, ended, discarded
    late: tuple[tuple[str, bool], ...] = ()
    claimed: bool = False  # a run that was claimed does not expire any more


class State(NamedTuple):
    runs: tuple[Run, ...]
    places: frozenset[int]
    limit: int | None  # None: not known yet
    counter: int = 0  # of the variant that counts places instead of naming the runs that have them
    line: tuple[int, ...] = ()
    faults: tuple[int, ...] = ()
    broken: str = ""


FREEING = {"complete": "ended", "retry": "delayed", "suspend": "waiting"}
PLACED = ("ready", "running")
OVER = ("ended", "discarded")


@dataclass(frozen=True)
class Model:
    """The steps of the model.

    Attributes:
        faults: How often each fault may happen: late, crash, change (of the limit), cancel, revive, expire, discard.
        count: The number of runs.
        bug: The bug of this variant.
        limit: The limit at the start; None if none is known.
    """

    faults: Mapping[str, int]
    count: int = 3
    bug: str = ""
    limit: int | None = 1

    def start(self) -> State:
        return State((Run(),) * self.count, frozenset(), self.limit, faults=tuple(self.faults.values()))

    def is_end(self, state: State) -> bool:
        return all(run.status in OVER for run in state.runs)

    def check(self, state: State) -> str | None:
        if state.broken:
            return state.broken
        for number, run in enumerate(state.runs):
            if (run.status == "line") != (number in state.line):
                return "a run is lost"
            if self.bug != "counter" and (run.status in PLACED) != (number in state.places):
                return "the places are not those of the runs"
        if len(set(state.line)) != len(state.line):
            return "a run is in the line twice"
        return None

    # -- faults

    def _spend(self, state: State, fault: str) -> State | None:
        number = list(self.faults).index(fault) if fault in self.faults else -1
        if number < 0 or not state.faults[number]:
            return None
        left = list(state.faults)
        left[number] -= 1
        return state._replace(faults=tuple(left))

    # -- what the scripts do

    def _taken(self, state: State) -> int:
        return state.counter if self.bug == "counter" else len(state.places)

    def _fill(self, state: State) -> State:
        limit = state.limit
        if limit is None:
            return state
        while state.line and self._taken(state) < limit:
            number = state.line[0]
            state = self._set(state, number, status="ready")._replace(line=state.line[1:])
            more = 1 if self.bug == "counter" else 0
            state = state._replace(places=state.places | {number}, counter=state.counter + more)
            if sum(run.status in PLACED for run in state.runs) > limit:
                state = state._replace(broken="the limit is exceeded")
        return state

    def _enter(self, state: State, number: int) -> State:
        if number in state.places and self.bug != "place lost":
            return self._set(state, number, status="ready")
        if self.bug == "put back" and state.limit is not None and self._taken(state) < state.limit:
            # A new run takes a free place although other runs are in the line.
            state = self._set(state, number, status="ready")._replace(places=state.places | {number})
            return state._replace(broken="a run overtakes the line") if state.line else state
        state = self._set(state, number, status="line")
        return self._fill(state._replace(line=tuple(sorted({*state.line, number}))))

    def _leave(self, state: State, number: int, status: str) -> State:
        state = self._set(state, number, status=status)
        if self.bug == "counter":
            state = state._replace(counter=state.counter - 1, places=state.places - {number})
            return self._fill(state)
        if number in state.places:
            state = state._replace(places=state.places - {number})
            return self._fill(state)
        return state._replace(line=tuple(one for one in state.line if one != number))

    @staticmethod
    def _set(state: State, number: int, **fields: object) -> State:
        runs = list(state.runs)
        runs[number] = runs[number]._replace(**fields)  # type: ignore[arg-type]
        return state._replace(runs=tuple(runs))

    def _fence(self, state: State, number: int) -> State:
        """Give the run a new epoch: the calls that are on their way come from a former owner then."""
        late = tuple((what, False) for what, _ in state.runs[number].late)
        return self._set(state, number, late=late)

    def _end_attempt(self, state: State, number: int, what: str, owner: bool = True) -> State:
        """Carry out the call of an owner. The call of a former owner changes nothing."""
        status = state.runs[number].status
        if not owner and not (self.bug == "no fence" and status in (*PLACED, *OVER)):
            return state
        if status in OVER:
            return state._replace(broken="an ended run continues")
        state = self._fence(state, number)
        return self._enter(state, number) if what == "release" else self._leave(state, number, FREEING[what])

    # -- steps

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, run in enumerate(state.runs):
            yield from self._steps_of(state, number, run)
        for limit in (0, 1, 2):
            changed = self._spend(state, "change")
            if changed is not None and limit != state.limit:
                yield f"limit {limit}", changed._replace(limit=limit)
        if self.bug != "no sweep":
            yield "sweep", self._fill(state)
        if self._spend(state, "change") is None:
            yield "limit 1", state._replace(limit=1)  # An operator gives the group a place in the end.

    def _steps_of(self, state: State, number: int, run: Run) -> Iterator[tuple[str, State]]:
        name = f"run {number}"
        if run.status == "new":
            yield f"enqueue {name}", self._enter(state, number)
        if run.status == "ready":
            yield f"claim {name}", self._set(self._fence(state, number), number, status="running", claimed=True)
        if run.status in ("delayed", "waiting"):
            yield f"wake {name}", self._enter(state, number)
        if run.status == "running":
            for what in (*FREEING, "release"):
                yield f"{what} {name}", self._end_attempt(state, number, what)
                if (late := self._spend(state, "late")) is not None:
                    sent = self._set(late, number, late=tuple(sorted((*run.late, (what, True)))))
                    yield f"send a late {what} of {name}", sent
            if (lost := self._spend(state, "crash")) is not None:
                yield f"recover {name}", self._enter(self._fence(lost, number), number)
        for index, (what, owner) in enumerate(run.late):
            left = self._set(state, number, late=run.late[:index] + run.late[index + 1 :])
            yield f"execute a late {what} of {name}", self._end_attempt(left, number, what, owner)
        if run.status not in ("new", *OVER) and (cancel := self._spend(state, "cancel")) is not None:
            yield f"cancel {name}", self._leave(self._fence(cancel, number), number, "ended")
        if (
            run.status in ("line", "ready")
            and not run.claimed
            and (expired := self._spend(state, "expire")) is not None
        ):
            keeps = self.bug == "expired run keeps its place"
            ended = self._set(expired, number, status="ended") if keeps else self._leave(expired, number, "ended")
            yield f"expire {name}", ended
        if run.status == "ended" and (discarded := self._spend(state, "discard")) is not None:
            yield f"discard {name}", self._set(discarded, number, status="discarded")
        if run.status == "ended" and (revived := self._spend(state, "revive")) is not None:
            yield f"revive {name}", self._enter(self._fence(revived, number), number)
