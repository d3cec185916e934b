"""Random histories of runs with groups: every call, repeated and late ones too, and changes of limits. Each step is checked."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from coordinator.model.policies.groups import KEEP
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import doctor as doctor_plans
from coordinator.store.plans.clients import NewRun
from coordinator.store.plans.workers import Claimed
from coordinator.store.replies import text, word
from coordinator.store.script import Call
from coordinator.store.scripts import LIMIT
from tests.lua.groups import find_wrong_places, places_of
from tests.lua.store import ROUTES, Store

T = TypeVar("T")
Choose = Callable[[Sequence[Any]], Any]
GROUPS = ("a", "b")
EACH = ""  # a limit of this group is the limit of each group that has none of its own
LIMITS = ("0", "1", "2", "3", "-", "")
RATES = ("-", "2 1000 1", "", "5 1000 3")
OPEN = ("queued", "delayed", "running", "waiting")


@dataclass(frozen=True)
class Change:
    """A request that changes the limit or the rate of a group, as a client sends it: `seen` is what the client knew."""

    group: str
    limit: str
    rate: str
    seen: str
    operation: str


@dataclass
class Limits:
    """The limits and rates that the server must have, according to the changes that it has to accept."""

    places: dict[str, str] = field(default_factory=dict)
    rates: dict[str, str] = field(default_factory=dict)
    _newest: dict[str, str] = field(default_factory=dict)
    _made: set[str] = field(default_factory=set)

    def apply(self, change: Change) -> str:
        """Return the word that the server must answer. Repeated changes, and those of a client that knows less, change nothing."""
        if change.operation in self._made:
            return "made"
        if change.seen.partition("@")[0] != self._newest.get(change.group, ""):
            return "changed"
        self._newest[change.group] = change.operation
        self._made.add(change.operation)
        for values, value in ((self.places, change.limit), (self.rates, change.rate)):
            if value == "":
                values.pop(change.group, None)
            elif value != KEEP:
                values[change.group] = value
        return "made"

    def limit_of(self, group: str) -> float:
        """Return the number of places of a group. Without any limit, no run is admitted."""
        limit = self.places.get(group, self.places.get(EACH, "0"))
        return float("inf") if limit == "-" else int(limit)

    def rate_of(self, group: str) -> tuple[float, int] | None:
        """Return the starts that a group may have in a ms, and its burst; None if it has no rate."""
        rate = self.rates.get(group, self.rates.get(EACH, "-"))
        if rate == "-":
            return None
        amount, per, burst = map(int, rate.split())
        return amount / per, burst


class AdmissionHistory:
    """A namespace with runs of two groups, and the calls that were made on them.

    Args:
        url: The server.
        rate: The rate of starts of each group at the beginning, in its stored form.
    """

    def __init__(self, url: str, rate: str = "-") -> None:
        self.store = Store(url, f"t{uuid.uuid4().hex[:10]}")
        self.limits = Limits()
        self.ids: list[str] = []
        self.held: list[Claimed] = []
        self.calls: list[Callable[[], Any]] = []
        self.made: list[str] = []
        self._number = self._claims = 0
        self._places = dict[str, set[str]]()
        # For each group: its rate, the runs that were admitted under it and not claimed yet, and when others were claimed.
        self._rates = dict[str, tuple[float, int] | None]()
        self._unstarted: dict[str, set[str]] = {group: set() for group in GROUPS}
        self._starts: dict[str, list[int]] = {group: [] for group in GROUPS}
        self._worker, self._lost = "", list[str]()
        self._send(self._change(EACH, "2", rate))
        self._join()

    def close(self) -> None:
        self.store.close()

    def _join(self) -> None:
        self._number += 1
        self._worker = f"w{self._number}"
        self.store.join(self._worker)

    def _call(self, name: str, call: Callable[[], T]) -> T:
        """Make a call, and remember it, so that it can be sent again later."""
        self.calls.append(call)
        answer = call()
        self.made.append(f"{name}: {answer!r:.80}")
        return answer

    # -- actions

    def enqueue(self, choose: Choose) -> None:
        id = self.store.id()
        how = choose([{}, {}, {}, {"due": "+500"}, {"expires": "700"}, {"priority": 3}])
        run = NewRun(id, ROUTES[0], b"spec", group=choose(GROUPS), **how)
        self.ids.append(id)
        self._call("enqueue", lambda: self.store.ask_enqueue(run))

    def claim(self, choose: Choose) -> None:
        self.held += self._claim(choose([1, 2, 5]), choose([False, True]))

    def _claim(self, want: int, alone: bool) -> list[Claimed]:
        self._claims += 1
        worker, number = self._worker, self._claims
        _, runs = self.store.claim(worker, want, alone=alone, number=number)
        # A repeated claim gets the same runs. A claim that arrives after a later one gets none.
        self.calls.append(lambda: self.store.claim(worker, want, alone=alone, number=number))
        self.made.append(f"claim: {[run.id for run in runs]}")
        for group in GROUPS:
            started = self._unstarted[group] & {run.id for run in runs}
            self._starts[group] += [self.store.now] * len(started)
            self._unstarted[group] -= started
        return runs

    def end_an_attempt(self, choose: Choose) -> None:
        if not self.held:
            self.claim(choose)
        if not self.held:
            return
        run = self.held.pop(choose(range(len(self.held))))
        delay, until = choose([0, 0.4]), self.store.now + 300
        name, end = choose(
            [
                ("complete", lambda: self.store.complete(run)),
                ("fail", lambda: self.store.fail(run)),
                ("retry", lambda: self.store.retry(run, delay=delay)),
                ("release", lambda: self.store.release(run)),
                ("stop unasked", lambda: self.store.release(run, mode="unasked")),
                ("reject", lambda: self.store.reject(run)),
                ("suspend", lambda: self.store.suspend(run, t=0)),
                ("sleep", lambda: self.store.suspend(run, deadline=until)),
                ("kill and release", lambda: (self.store.kill(run), self.store.release(run))),
                ("kill and retry", lambda: (self.store.kill(run), self.store.retry(run, delay=delay))),
            ]
        )
        self._call(f"{name} {run.id}", end)

    def lose_the_worker(self, choose: Choose) -> None:
        """Let a supervisor report the end of the worker."""
        gone = self._replace_the_worker()
        self._call(f"abandon {gone}", lambda: self.store.abandon(gone))

    def lose_the_host(self, choose: Choose) -> None:
        """Let the lease of the worker expire, and let a coordinator recover some or all of its runs."""
        self.store.beat(self._worker, lease=1000)
        gone = self._replace_the_worker()
        self._lost.append(gone)
        for _ in range(100):
            if gone in self.store.judge()[0]:
                break
            self._pass(1000)
        else:
            raise AssertionError(f"no coordinator may recover worker {gone}")
        batch = choose([1, 100])
        self._call(f"recover {gone}", lambda: self.store.recover(gone, batch=batch))

    def _replace_the_worker(self) -> str:
        """Let a new worker join. The calls of the worker before it may still arrive. Return its id."""
        gone = self._worker
        self.calls += [lambda run=run: self.store.complete(run) for run in self.held]  # type: ignore[misc]
        self.held.clear()
        self._join()
        return gone

    def call_as_client(self, choose: Choose) -> None:
        if not self.ids:
            self.enqueue(choose)
        id, mark = choose(self.ids), uuid.uuid4().hex
        name, call = choose(
            [
                ("cancel", lambda: self.store.cancel(id, mark, grace=0.2)),
                ("revive", lambda: self.store.revive(id, mark)),
                ("send", lambda: self.store.send(id, operation=mark)),
                ("discard", lambda: self.store.do(client_plans.discard(self.store.keys, id))),
                ("pause", lambda: self.store.do(client_plans.pause(self.store.keys, "kind:k", mark))),
                ("unpause", lambda: self.store.do(client_plans.unpause(self.store.keys, "kind:k", mark))),
            ]
        )
        self._call(f"{name} {id}", call)

    def change_a_limit(self, choose: Choose) -> None:
        """Change the limit of a group or of each group. The request may arrive late, and again."""
        self._send_some_time(self._change(choose((*GROUPS, EACH)), choose(LIMITS), KEEP), choose)

    def change_a_rate(self, choose: Choose) -> None:
        """Change the rate of starts of a group or of each group. The limits of places stay."""
        self._send_some_time(self._change(choose((*GROUPS, EACH)), KEEP, choose(RATES)), choose)

    def _send_some_time(self, change: Change, choose: Choose) -> None:
        self.calls.append(lambda: self._send(change))
        if choose([True, True, False]):
            self._send(change)

    def _change(self, group: str, limit: str, rate: str) -> Change:
        """Return the change that a client sends after its first request has told it what the server knows."""
        operation = uuid.uuid4().hex
        reply = self._ask_for(Change(group, limit, rate, "", operation))
        return Change(group, limit, rate, text(reply[1]), operation)

    def _ask_for(self, change: Change) -> Any:
        def plan() -> Generator[Call, Any, Any]:
            return (
                yield LIMIT.call(
                    self.store.keys.at, kind="k", group=change.group, at_once=change.limit, rate=change.rate, seen=change.seen,
                    operation=change.operation,
                )
            )  # fmt: skip

        return self.store.do(plan())

    def _send(self, change: Change) -> str:
        answer, expected = word(self._ask_for(change)), self.limits.apply(change)
        self.made.append(f"{change}: {answer}")
        assert (answer == "changed") == (expected == "changed"), "\n".join([expected, *self.made[-40:]])
        return answer

    def _pass(self, ms: int) -> None:
        """Move the time. The worker lives, and renews its lease."""
        self.store.later(ms)
        self.store.beat(self._worker)

    def let_time_pass(self, choose: Choose) -> None:
        self._pass(choose([1, 100, 600, 5000]))
        self.store.due()
        self.made.append("due")

    def sweep(self, choose: Choose) -> None:
        self.made.append(f"sweep: {self.store.sweep()}")

    def resend_a_call(self, choose: Choose) -> None:
        if self.calls:
            number = choose(range(len(self.calls)))
            self.made.append(f"again: {self.calls[number]()!r:.80}")

    @property
    def actions(self) -> list[Callable[[Choose], None]]:
        return [
            self.enqueue, self.enqueue, self.claim, self.end_an_attempt, self.end_an_attempt, self.lose_the_worker,
            self.lose_the_host, self.call_as_client, self.change_a_limit, self.change_a_rate, self.let_time_pass, self.sweep,
            self.resend_a_call,
        ]  # fmt: skip

    # -- checks

    def check(self) -> None:
        """Check that every run is in its one place, that no group got a place above its limit, and no start above its rate."""
        wrong = find_wrong_places(self.store)
        for id, faults in zip(self.ids, self.store.do(doctor_plans.examine(self.store.keys, self.ids)), strict=True):
            wrong += [f"run {id}: {fault}" for fault in faults]
        places = places_of(self.store)
        for group in GROUPS:
            now, before = places.get(f"k:{group}", set()), self._places.get(f"k:{group}", set())
            limit = self.limits.limit_of(group)
            if len(now) > limit and not now <= before:
                wrong.append(f"group {group} has {len(now)} places, and its limit is {limit}")
            wrong += self._check_starts(group, now, before)
        self._places = places
        assert wrong == [], "\n".join([*wrong, "after", *self.made[-40:]])

    def _check_starts(self, group: str, places: set[str], before: set[str]) -> list[str]:
        """Return a sentence for each time in which more runs started than the rate allows.

        A start is the first claim of a run after it got its place. A run that got its place before the rate was set does not count.
        """
        rate = self.limits.rate_of(group)
        if rate != self._rates.get(group):
            self._rates[group] = rate
            self._unstarted[group].clear()
            self._starts[group].clear()
        elif rate is not None:
            self._unstarted[group] |= places - before
        self._unstarted[group] &= places
        starts, wrong = self._starts[group], []
        for first, begin in enumerate(starts):
            count, allowed = len(starts) - first, 0.0 if rate is None else rate[1] + rate[0] * (starts[-1] - begin)
            if rate is not None and count > allowed + 1e-6:
                wrong.append(
                    f"group {group} had {count} starts in {starts[-1] - begin} ms, and {allowed:g} are allowed"
                )
        return wrong

    def finish(self) -> None:
        """Let every run end, with one place for each group. A run that does not end starves."""
        for group in GROUPS:
            self._send(self._change(group, "1", KEEP))
        for worker in self._lost:
            while self.store.recover(worker).left:
                pass
        self.store.do(client_plans.unpause(self.store.keys, "kind:k", uuid.uuid4().hex))
        for run in self.held:
            self.store.complete(run)
        for id in self.ids:
            self.store.send(id, operation=uuid.uuid4().hex)
        for _ in range(2 * len(self.ids) + 4):
            self._pass(400_000)
            self.store.due()
            self.store.sweep()
            for alone in (True, False):
                for run in self._claim(10, alone):
                    self.store.complete(run)
            left = {id: self.store.status(id) for id in self.ids}
            if all(status not in OPEN for status in left.values()):
                break
        self.check()
        left = {id: self.store.status(id) for id in self.ids}
        open_runs = {id: status for id, status in left.items() if status in OPEN}
        assert open_runs == {}, "\n".join(["these runs do not end", *open_runs, "after", *self.made[-40:]])
