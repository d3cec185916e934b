"""The laws of groups: no claim exceeds the limit of a group, only its ready and running runs have places, and no run is without."""

from __future__ import annotations

from collections import Counter

from coordinator.model.limits import PRIORITY_STEP
from coordinator.model.names import parse_route
from coordinator.model.run import Status
from tests.faults.simulation.laws.step import Broken, Step

PUBLISHED = 2  # the limit that the handler publishes
OLDER_MS = 1000  # A run whose score is older than this also stores when it enters the line.


class Groups:
    """The groups of a partition. A limit that was lowered stops no run, so the highest limit of the seed counts."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._most = PUBLISHED
        self._limited = set[str]()  # the kinds whose limit is known to the server

    def see(self, step: Step) -> None:
        if step.call == "limit" and step.words[0] in ("ok", "again"):
            self._most = max(self._most, int(step.given[0]["at_once"] or 0))
            self._limited.add(step.given[0]["kind"])
        if step.call == "enqueue":
            self._check_group(step)
            self._of |= {item["id"]: item["group"] for item in step.given[1] if item["group"]}
        for id in self._of:
            self._check_place(step, id)
            self._check_held(step, id)
        if step.call == "claim" and self._of:
            running = Counter(group for id, group in self._of.items() if _is_running(step, id))
            for group, count in running.items():
                if count > self._most:
                    raise Broken(f"{count} runs of group {group} are running, at most {self._most} may")

    def _check_group(self, step: Step) -> None:
        """A kind with a limit gets no run without a group."""
        for item, answer in step.items():
            kind = parse_route(item["route"])[1]
            new = answer[0] == b"created" and step.before.get(item["id"]) is None
            if new and not item["group"] and kind in self._limited:
                raise Broken(f"run {item['id']} of the limited kind {kind} was enqueued without a group")

    def _check_held(self, step: Step, id: str) -> None:
        """A run that enters the line with an old score stores the time. Nothing else changes it."""
        before, run = step.before.get(id), step.after.get(id)
        if run is None or run.line_score is None:
            return
        held = before.held if before else 0
        if (before is None or not before.in_line) and step.now - run.line_score % PRIORITY_STEP > OLDER_MS:
            held = step.now
        if run.held != held:
            raise Broken(
                f"run {id} is in the line after {step.call} at {step.now}, held since {run.held} instead of {held}"
            )

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
