"""The laws of groups: no claim exceeds the limit of a group, and only its ready and running runs have places."""

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
        for id in self._of:
            self._check_place(step, id)
        if step.call == "claim" and self._of:
            running = Counter(group for id, group in self._of.items() if _is_running(step, id))
            for group, count in running.items():
                if count > self._most:
                    raise Broken(f"{count} runs of group {group} are running, at most {self._most} may")

    def _check_place(self, step: Step, id: str) -> None:
        """A queued run has a place in its group or is in the line for one, a running run has a place, any other run has neither."""
        run = step.after.get(id)
        if run is None:
            return
        queued, running = run.status is Status.QUEUED, run.status is Status.RUNNING
        if queued + running != run.admitted + run.in_line or (running and not run.admitted):
            place = f"{run.admitted=}, {run.in_line=}"
            raise Broken(f"run {id} of group {self._of[id]} is {run.status} after {step.call}, with {place}")


def _is_running(step: Step, id: str) -> bool:
    run = step.after.get(id)
    return run is not None and run.status is Status.RUNNING
