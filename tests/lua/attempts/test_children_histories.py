"""Random histories of a parent and its children: after each call, what is stored about the children fits together."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from coordinator.model.run import Counters
from coordinator.model.run_id import child_base, child_id
from coordinator.store.plans.workers import Claimed
from tests.lua.store import LEASE, Store, delta

COUNT = 3
ENDED = ("completed", "failed", "cancelled", "dead", "missing")


class History:
    """One parent, its steps, and calls that may be late or repeated."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store, self.dice = store, random.Random(seed)
        self.parent, self.life, self.saves = store.running("w1"), 1, 0
        self.bases: list[tuple[str, int]] = []
        self.claimed: list[Claimed] = []
        store.join("w2", lease=LEASE * 1000)

    def step(self) -> None:
        self.dice.choice([self.join, self.spawn, self.spawn, self.work, self.work, self.suspend, self.due, self.end])()

    def join(self) -> None:
        old = self.bases[-1][0] if self.bases and self.bases[-1][1] != self.life else ""
        if not self.bases or old or self.dice.random() < 0.4:
            self.bases.append((child_base(self.store.now / 1000, 0), self.life))
        self.store.join_children(self.parent, self.bases[-1][0], COUNT, old=old)

    def spawn(self) -> None:
        if self.bases:
            base, life = self.dice.choice(self.bases)
            self.store.child(self.parent, base, self.dice.randrange(COUNT), life)

    def work(self) -> None:
        for run in self.store.claim("w2", want=2)[1]:
            if run.id == self.parent.id:
                self.parent = run
            else:
                self.claimed.append(run)
        if self.claimed:
            child = self.dice.choice(self.claimed)  # It may have ended before: then the call is a late repetition.
            ways: list[Callable[[Claimed], object]] = [self.store.complete, self.store.fail, self.store.release]
            self.dice.choice(ways)(child)

    def suspend(self) -> None:
        if self.bases:
            self.store.suspend(self.parent, children={self.bases[-1][0]: self.dice.randint(1, COUNT)})

    def due(self) -> None:
        self.store.later(self.dice.choice([1, 1000, 70_000]))
        self.store.due(batch=self.dice.choice([1, 500]))

    def end(self) -> None:
        """End the parent now and then, and revive it, or let it start again."""
        if self.dice.random() < 0.7:
            return
        if self.dice.random() < 0.3:
            self.store.retry(self.parent, from_start=True)
        else:
            self.saves += 1
            self.store.fail(self.parent, last=delta(self.saves, state=b"%d" % self.saves).wire())
            self.store.revive(self.parent.id, f"revive {self.saves}")
            self.life = Counters.parse(self.store.run(self.parent.id)["counters"]).life

    def check(self) -> None:
        store, id = self.store, self.parent.id
        joins = {base.decode(): text for base, text in store.client.hgetall(store.keys.joins(id)).items()}
        results = {name.decode(): row for name, row in store.client.hgetall(store.keys.results(id)).items()}
        for base, text in joins.items():
            ended = int(text.split()[1])
            orders = sorted(int(row.split()[0]) for name, row in results.items() if name.startswith(f"{base}:"))
            assert orders == list(range(1, ended + 1)), "each ending has one place"
        assert {re.split("[:#]", name)[0] for name in results} <= set(joins), "no result is left of a step that is gone"
        parting = {entry.split(b" ")[0].decode() for entry in store.client.zrange(store.keys.parting(), 0, -1)}
        for base, life in self.bases:
            waited = base in joins and life == self.life
            for index in range(COUNT):
                run = store.run(child_id(base, index))
                done = not run or run["status"] in ENDED or "cancel" in run
                assert done or waited or base in parting, "an open child has a parent that waits, or departs"
        wait = store.run(id).get("wait", "") if store.status(id) == "waiting" else ""
        for base, need in re.findall(r" c:(\S+):(\d+)", wait):
            if base not in joins or int(joins[base].split()[1]) >= int(need):
                assert (store.score(store.keys.waiting(), id) or 0) <= store.now, (
                    "a parent whose children have ended is due"
                )


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("seed", range(12))
def test_random_history_leaves_no_child_and_loses_no_ending(store: Store, seed: int) -> None:
    history = History(store, seed)
    for _ in range(120):
        history.step()
        history.check()
    assert history.bases
