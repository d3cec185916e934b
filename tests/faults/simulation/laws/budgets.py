"""The laws of budgets: nothing counts twice, and no more is spent than the budget and what was under way at a crash."""

from __future__ import annotations

from collections import Counter, defaultdict

from coordinator.model.policies.budget import TOPIC
from tests.faults.simulation.facts import GRANTED, LIMIT, Facts
from tests.faults.simulation.laws.step import Broken, Step

OWNERS_ENDINGS = ("complete", "fail", "retry", "release", "reject", "suspend")
UNDER_WAY = 2  # requests that one lost attempt may have made without the server's knowledge


class Budgets:
    """The spending of all runs of a partition."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._children: dict[str, set[str]] = defaultdict(set)
        self._limited: set[str] = set()
        self._lost: Counter[str] = Counter()  # run -> attempts that were taken from their owners
        self.granted: Counter[str] = Counter()
        self._grants: set[tuple[str, str]] = set()

    def see(self, step: Step) -> None:
        if step.call == "enqueue":
            for item in step.given[1]:
                parent, joined, _ = item["parent"].partition(" ")
                if joined:
                    self._children[parent].add(item["id"])
                if item["route"].partition("@")[0].endswith((":thrifty", ":begging")):
                    self._limited.add(item["id"])
        if step.call == "send" and step.given[0]["topic"] == TOPIC and step.words[0] == "sent":
            grant = (step.given[0]["id"], step.given[0]["operation"])
            if grant not in self._grants:
                self._grants.add(grant)
                self.granted[grant[0]] += GRANTED
        self._count_losses(step)
        if self._facts.spent:
            self._look(step)

    def _count_losses(self, step: Step) -> None:
        """Count attempts that lose their run. The process of such an attempt may live and spend something afterwards."""
        if step.call in OWNERS_ENDINGS:
            return
        for id, run in step.after.items():
            was = step.before.get(id)
            if was is not None and was.token and (run is None or not run.token):
                self._lost[id] += 1

    def _look(self, step: Step) -> None:
        for id, run in step.after.items():
            was = step.before.get(id)
            if run is None or not run.spend:
                continue
            if was is not None and run.requests < was.requests:
                raise Broken(f"{step.call} reduced what run {id} has spent from {was.requests} to {run.requests}")
            if run.requests > (real := self._real(id)):
                raise Broken(f"run {id} and its children have spent {real} requests, but {run.requests} are counted")
        for id in self._limited:
            most = LIMIT + self.granted[id] + UNDER_WAY * self._lost[id]
            if self._facts.spent[id] > most:
                raise Broken(f"run {id} has spent {self._facts.spent[id]} requests, at most {most} were allowed")

    def _real(self, id: str) -> int:
        return self._facts.spent[id] + sum(self._real(child) for child in self._children.get(id, ()))

    def check_totals(self, after: dict[str, int]) -> None:
        """Demand at the end that a parent's total is the sum of its children's totals. Parents spend nothing themselves."""
        for id, children in self._children.items():
            total = sum(after.get(child, 0) for child in children)
            if id in after and not self._facts.spent[id] and after[id] != total:
                raise Broken(f"the children of run {id} have spent {total} requests, but {after[id]} are counted")
