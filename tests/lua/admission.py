"""Random histories of runs with groups: every call, repeated and late ones too, and changes of limits. Each step is checked."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from coordinator.model.policies.groups import KEEP
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import doctor as doctor_plans
from coordinator.store.plans import groups as group_plans
from coordinator.store.plans.clients import NewRun
from coordinator.store.plans.workers import Claimed
from tests.lua.groups import find_wrong_places, places_of
from tests.lua.store import ROUTES, Store

T = TypeVar("T")
Choose = Callable[[Sequence[Any]], Any]
GROUPS = ("a", "b")
LIMITS = (0, 1, 2, 3)
RATES = ("-", "2 1000 1", "5 1000 3")
OPEN = ("queued", "delayed", "running", "waiting")


class AdmissionHistory:
    """A namespace with runs of two groups, and the calls that were made on them."""

    def __init__(self, url: str) -> None:
        self.store = Store(url, f"t{uuid.uuid4().hex[:10]}")
        self.limits = dict.fromkeys(GROUPS, 1)
        self.ids: list[str] = []
        self.held: list[Claimed] = []
        self.calls: list[Callable[[], Any]] = []
        self.made: list[str] = []
        self._number = 0
        self._places = dict[str, set[str]]()
        self._worker = ""
        self.store.limit(1)
        self._join()

    def close(self) -> None:
        self.store.close()

    def _join(self) -> None:
        self._number += 1
        self._worker = f"w{self._number}"
        self.store.join(self._worker, lease=10**9)

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
        want, alone = choose([1, 2, 5]), choose([False, True])
        _, runs = self.store.claim(self._worker, want, alone=alone)
        self.made.append(f"claim: {[run.id for run in runs]}")
        self.held += runs

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
            ]
        )
        self._call(f"{name} {run.id}", end)

    def lose_the_worker(self, choose: Choose) -> None:
        gone = self._worker
        self._call("abandon", lambda: self.store.abandon(gone))
        self.calls += [lambda run=run: self.store.complete(run) for run in self.held]  # type: ignore[misc]
        self.held.clear()
        self._join()

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
        group, limit = choose(GROUPS), choose(LIMITS)
        self.limits[group] = limit
        self.made.append(f"limit of {group}: {limit}")
        self.store.limit(limit, group=group)

    def change_a_rate(self, choose: Choose) -> None:
        """Change the rate of starts of a group. The limit of its places stays."""
        group, rate, mark = choose(GROUPS), choose(RATES), uuid.uuid4().hex
        self.store.do(group_plans.set_limit(self.store.keys, "k", group, KEEP, mark, rate))
        self.made.append(f"rate of {group}: {rate}")

    def let_time_pass(self, choose: Choose) -> None:
        self.store.later(choose([1, 100, 600, 5000]))
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
            self.call_as_client, self.change_a_limit, self.change_a_rate, self.let_time_pass, self.sweep, self.resend_a_call,
        ]  # fmt: skip

    # -- checks

    def check(self) -> None:
        """Check that every run is in its one place, and that no group got a place above its limit."""
        wrong = find_wrong_places(self.store)
        for id, faults in zip(self.ids, self.store.do(doctor_plans.examine(self.store.keys, self.ids)), strict=True):
            wrong += [f"run {id}: {fault}" for fault in faults]
        places = places_of(self.store)
        for group, limit in self.limits.items():
            now, before = places.get(f"k:{group}", set()), self._places.get(f"k:{group}", set())
            if len(now) > limit and not now <= before:
                wrong.append(f"group {group} has {len(now)} places, and its limit is {limit}")
        self._places = places
        assert wrong == [], "\n".join([*wrong, "after", *self.made[-40:]])

    def finish(self) -> None:
        """Let every run end, with one place for each group. A run that does not end starves."""
        for group in GROUPS:
            self.limits[group] = 1
            self.store.limit(1, group=group)
        self.store.do(client_plans.unpause(self.store.keys, "kind:k", uuid.uuid4().hex))
        for run in self.held:
            self.store.complete(run)
        for id in self.ids:
            self.store.send(id, operation=uuid.uuid4().hex)
        for _ in range(2 * len(self.ids) + 4):
            self.store.later(400_000)
            self.store.due()
            self.store.sweep()
            for alone in (True, False):
                for run in self.store.claim(self._worker, alone=alone)[1]:
                    self.store.complete(run)
            left = {id: self.store.status(id) for id in self.ids}
            if all(status not in OPEN for status in left.values()):
                break
        self.check()
        left = {id: self.store.status(id) for id in self.ids}
        open_runs = {id: status for id, status in left.items() if status in OPEN}
        assert open_runs == {}, "\n".join(["these runs do not end", *open_runs, "after", *self.made[-40:]])
