"""Histories of a parent and its joined children: every ending counts once, no wake-up is lost, and no child is left.

Calls come in any order, from owners that have lost their run too, and are repeated late. Hypothesis shrinks a history that fails.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from coordinator.model.run_id import child_id
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans.workers import Claimed
from tests.lua.store import Store
from tests.servers import Server

DEEPER = int(os.environ.get("RUNS_TEST_DEPTH", "1"))
SIZES = {
    "01hf7wz8001hf7wz800z-00": 3,
    "01hf7wz8001hf7wz9000-00": 2,
}  # the base of each step, and the number of its children
ENDED = ("completed", "failed", "dead", "cancelled")
MANY = 60  # rounds in which everything must come to its end

bases = st.sampled_from(sorted(SIZES))
places = st.integers(0, 30)
seldom = st.integers(0, 9).map(lambda number: number == 9)  # A parent that ends early drops all its children.


class Joins(RuleBasedStateMachine):
    """A parent with two steps, its children, and every process that has ever claimed one of them."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store(self.url, f"t{uuid.uuid4().hex[:10]}")
        self.parent = self.store.enqueue()
        self.owners: list[tuple[Claimed, int]] = []  # each claim, with the life of the run at that time
        self.sent: list[Callable[[], Any]] = []
        self.revived: set[str] = set()
        self.called: dict[str, int] = {}  # the number of the last call of join_children.lua that took effect, by token
        self.workers = 0
        self.last = "nothing"

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            self.store.close()

    def send(self, call: Callable[[], Any]) -> Any:
        self.sent.append(call)
        return call()

    def ids(self) -> list[str]:
        """Return the children that exist."""
        found = [child_id(base, index) for base, size in SIZES.items() for index in range(size)]
        return [id for id in found if self.store.status(id) != "missing"]

    def choose(self, place: int, of_parent: bool) -> tuple[Claimed, int] | None:
        """Return a claim of the parent or of a child, which may have been lost since. Small numbers mean late claims."""
        found = [one for one in self.owners if (one[0].id == self.parent) == of_parent]
        return found[-1 - place % len(found)] if found else None

    # -- how a history begins

    @initialize(
        steps=st.lists(bases, max_size=2, unique=True),
        spawned=st.sampled_from([3, 2, 0]),
        ended=st.integers(0, 3),
        last=st.sampled_from(["complete", "fail", "cancel", "nothing"]),
    )
    def begin(self, steps: list[str], spawned: int, ended: int, last: str) -> None:
        """Claim the parent, and enqueue and end the first children of some steps. The histories are about what comes then."""
        self.last = last
        self.claim(alone=False, want=1)
        owner, life = self.owners[0]
        for base in steps:
            self.store.join_children(owner, base, SIZES[base])
            for index in range(min(spawned, SIZES[base])):
                self.store.child(owner, base, index, life)
        for _ in range(ended):
            self.end_a_child(0, "complete")

    # -- calls

    @rule(alone=st.booleans(), want=st.integers(1, 4))
    def claim(self, alone: bool, want: int) -> None:
        self.workers += 1
        worker = f"w{self.workers}"
        self.store.join(worker)
        for run in self.store.claim(worker, want, alone=alone)[1]:
            self.owners.append((run, self.store.counters(run.id).life))

    @rule(place=places, base=bases)
    def announce(self, place: int, base: str) -> None:
        if found := self.choose(place, of_parent=True):
            order = next(self.store.orders)
            self.send(
                lambda: self.check_order(
                    found[0].token, order, self.store.join_children(found[0], base, SIZES[base], order)[0]
                )
            )

    @rule(place=places, base=bases)
    def drop_steps(self, place: int, base: str) -> None:
        if found := self.choose(place, of_parent=True):
            order = next(self.store.orders)
            self.send(
                lambda: self.check_order(found[0].token, order, self.store.drop_steps(found[0], base, order=order))
            )

    def check_order(self, token: str, order: int, answer: str) -> None:
        """Check that a call does not take effect after a later call of the same owner."""
        last = self.called.get(token, 0)
        assert answer in (("ok", "fenced") if order >= last else ("late", "fenced"))
        if answer == "ok":
            self.called[token] = order

    @rule(place=places, base=bases, index=st.integers(0, 3))
    def spawn(self, place: int, base: str, index: int) -> None:
        if found := self.choose(place, of_parent=True):
            self.send(lambda: self.store.child(found[0], base, index, found[1]))

    @rule(place=places, base=bases, need=st.integers(1, 3))
    def suspend(self, place: int, base: str, need: int) -> None:
        if found := self.choose(place, of_parent=True):
            self.send(lambda: self.store.suspend(found[0], children={base: min(need, SIZES[base])}))

    @rule(place=places, of_parent=seldom, how=st.sampled_from(["complete", "fail", "retry", "again", "release"]))
    def end(self, place: int, of_parent: bool, how: str) -> None:
        if found := self.choose(place, of_parent):
            run = found[0]
            if how == "again":
                self.send(lambda: self.store.retry(run, from_start=True))
            else:
                self.send(lambda: getattr(self.store, how)(run))

    @rule(place=places, how=st.sampled_from(["complete", "fail", "cancel"]))
    def end_a_child(self, place: int, how: str) -> None:
        """End a child that is queued or running, by its present owner."""
        if ids := [id for id in self.ids() if self.store.status(id) in ("queued", "running")]:
            self.claim(alone=False, want=10)
            id = ids[place % len(ids)]
            found = [run for run, _ in self.owners if run.id == id]
            if how == "cancel" or not found:
                operation = uuid.uuid4().hex
                self.send(lambda: self.store.cancel(id, operation, grace=1))
            else:
                self.send(lambda: getattr(self.store, how)(found[-1]))

    @rule(place=places)
    def revive_a_child(self, place: int) -> None:
        if ids := [id for id in self.ids() if self.store.status(id) in ("failed", "dead", "cancelled")]:
            self.revive(ids[place % len(ids)])

    @rule(place=places, of_parent=seldom)
    def crash(self, place: int, of_parent: bool) -> None:
        if found := self.choose(place, of_parent):
            self.send(lambda: self.store.crash(found[0]))

    @rule(place=places, of_parent=seldom, how=st.sampled_from(["cancel", "revive", "discard"]))
    def change(self, place: int, of_parent: bool, how: str) -> None:
        ids = [self.parent] if of_parent else self.ids() or [self.parent]
        id, operation = ids[place % len(ids)], uuid.uuid4().hex
        match how:
            case "cancel":
                self.send(lambda: self.store.cancel(id, operation, grace=1))
            case "revive":
                self.revive(id)
            case _ if id != self.parent:
                self.send(lambda: self.store.do(client_plans.discard(self.store.keys, id)))

    def revive(self, id: str) -> None:
        operation = uuid.uuid4().hex
        self.revived.add(id)
        self.send(lambda: self.store.revive(id, operation))

    @rule(seconds=st.sampled_from([0, 1, 61, -1]))
    def coordinate(self, seconds: int) -> None:
        self.store.later(1000 * seconds)
        self.store.due()

    @rule(place=places)
    def resend_an_earlier_call(self, place: int) -> None:
        if self.sent:
            self.sent[-1 - place % len(self.sent)]()

    # -- what always holds

    @invariant()
    def each_ending_counts_once(self) -> None:
        joins, results = self.stored_joins()
        for base, (_, ended) in joins.items():
            ordered = [results[f"{base}#{order}"] for order in range(1, ended + 1)]
            assert sorted(ordered) == sorted(
                {name.partition(":")[2] for name in results if name.startswith(f"{base}:")}
            )
            assert len(set(ordered)) == ended

    @invariant()
    def waiting_parent_with_enough_endings_is_due(self) -> None:
        run = self.store.run(self.parent)
        if run.get("status") == "waiting":
            _, base, need = next(part for part in run["wait"].split() if part.startswith("c:")).split(":")
            ended = self.stored_joins()[0].get(base, (0, 0))[1]
            if ended >= int(need):
                score = self.store.score(self.store.keys.waiting(), self.parent)
                assert score is not None
                assert score <= self.store.now + 2000, "a clock that went back by a second does not matter"

    def stored_joins(self) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
        """Return the announced and the ended children of each step, and all results of the parent."""
        joins = self.store.client.hgetall(self.store.keys.joins(self.parent))
        results = self.store.client.hgetall(self.store.keys.results(self.parent))
        numbers = {base.decode(): tuple(map(int, text.split())) for base, text in joins.items()}
        return numbers, {name.decode(): value.decode() for name, value in results.items()}  # type: ignore[return-value]

    # -- the end of every history

    def finish(self) -> None:
        """Let healthy workers and a coordinator go on. Everything must come to its end, and nothing may be left over."""
        self.end_the_parent()
        if self.store.status(self.parent) in ENDED:
            self.check_that_the_children_end_with_their_parent()
        for number in range(MANY):
            if all(self.store.status(id) in (*ENDED, "missing") for id in (self.parent, *self.ids())) and number > 2:
                break
            self.lose_all_workers()
            for alone in (False, True):
                worker = f"f{number}{alone}"
                self.store.join(worker)
                for run in self.store.claim(worker, 10, alone=alone)[1]:
                    if run.id == self.parent and number < 4:
                        self.store.suspend(run, children=dict(list(SIZES.items())[:1]))
                    else:
                        self.store.complete(run)
            if number == MANY // 2 and self.store.status(self.parent) == "waiting":
                # It waits for children that were never enqueued.
                joins, _ = self.stored_joins()
                base, size = next(iter(SIZES.items()))
                assert joins.get(base, (0, 0))[1] < size
                self.store.cancel(self.parent, "the last")
        statuses = {id: self.store.status(id) for id in (self.parent, *self.ids())}
        assert all(status in (*ENDED, "missing") for status in statuses.values()), statuses
        for _ in SIZES:
            self.store.later(61_000)
            self.store.due()
        assert self.store.line(self.store.keys.parting()) == []
        if statuses[self.parent] == "completed":
            assert self.stored_joins() == ({}, {})

    def lose_all_workers(self) -> None:
        """Abandon every process of the history, and let a coordinator do what is due."""
        for owner in {run.token.split("-", 2)[2] for run, _ in self.owners}:
            self.store.abandon(owner)
        self.owners.clear()
        self.store.later(61_000)
        self.store.due()

    def end_the_parent(self) -> None:
        """End the parent in the way that the history has drawn, if it has not ended."""
        if self.last == "cancel":
            self.store.cancel(self.parent, "the end")
        elif self.last != "nothing":
            self.claim(alone=False, want=10)
            for run, _ in self.owners:
                if run.id == self.parent:
                    getattr(self.store, self.last)(run)
            if self.store.status(self.parent) not in ENDED:
                self.store.cancel(self.parent, "the end")

    def check_that_the_children_end_with_their_parent(self) -> None:
        """Check that a coordinator alone ends all children of an ended parent, but for those that somebody has revived."""
        for _ in range(4):
            self.lose_all_workers()
        left = {id: self.store.status(id) for id in self.ids() if id not in self.revived}
        assert all(status in ENDED for status in left.values()), left


@pytest.mark.matrix("searches for unknown bugs")
@pytest.mark.timeout(300 * DEEPER)
def test_every_history_of_a_parent_and_its_children_comes_to_its_end(valkey_server: Server) -> None:
    Joins.url = valkey_server.url
    run_state_machine_as_test(
        Joins,
        settings=settings(
            max_examples=150 * DEEPER, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
