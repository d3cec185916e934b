"""The law of groups: no claim gives out more runs of a group than its limit allows."""

from __future__ import annotations

from collections import Counter

from coordinator.model.run import Status
from tests.faults.simulation.laws.step import Broken, Step

PUBLISHED = 2  # the limit that the handler publishes


class Groups:
    """The groups of a partition. A limit that was lowered stops no run, so the highest limit of the seed counts."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._most = PUBLISHED

    def see(self, step: Step) -> None:
        if step.call == "limit" and step.words[0] in ("ok", "again"):
            self._most = max(self._most, int(step.given[0]["at_once"] or 0))
        if step.call == "enqueue":
            self._of |= {item["id"]: item["group"] for item in step.given[1] if item["group"]}
        if step.call == "claim" and self._of:
            running = Counter(group for id, group in self._of.items() if _is_running(step, id))
            for group, count in running.items():
                if count > self._most:
                    raise Broken(f"{count} runs of group {group} are running, at most {self._most} may")


def _is_running(step: Step, id: str) -> bool:
    run = step.after.get(id)
    return run is not None and run.status is Status.RUNNING
