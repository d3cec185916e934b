"""Fire schedules: compute their fire times, enqueue their runs, and move each schedule from its fire time to the next.

No lock is needed: the script fires only if the schedule still waits for the expected fire time, so a second coordinator changes
nothing. If this coordinator can't read a schedule, because its rules are damaged or this machine does not know its time zone, the
other schedules still fire. For two seconds, another coordinator may fire the schedule. After that, this coordinator stores the
problem with the schedule. It does the same if the server's memory is full.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from coordinator.errors import BadOption, CoordinatorError, ServerFull, Unconfirmed, Unreadable
from coordinator.model.policies.schedule import Firing, ScheduleState, firings, rules_from, run_id
from coordinator.services.service_loop import LONGEST_REST, Partition
from coordinator.store.plans import schedules as plans
from coordinator.store.plans.schedules import DueSchedule, Fire

log = logging.getLogger(__name__)

BATCH = 100
CANCEL_GRACE = 30.0
LEFT_TO_OTHERS_MS = (
    2000  # how long a schedule with a problem is left to other coordinators, which may know its time zone
)
LOOK_AGAIN = 30.0  # seconds after which a schedule with a problem is tried again
LOOK_AGAIN_IF_FULL = 5.0  # the same, if the server's memory is full: memory becomes free when runs end
STEPS = 200  # fire times in one call, during which the server does nothing else


@dataclass(frozen=True, slots=True)
class SchedulerReport:
    """The result of a tick.

    Attributes:
        fired: The number of runs that were enqueued.
        skipped: The number of fire times that were skipped because the previous run had not ended.
        troubled: The number of schedules whose problem was stored.
        rest: Seconds until the next tick.
    """

    fired: int = 0
    skipped: int = 0
    troubled: int = 0
    rest: float = LONGEST_REST


class Scheduler:
    """The service that fires the schedules of one partition."""

    def __init__(self, partition: Partition, batch: int = BATCH) -> None:
        self._partition, self._batch = partition, batch
        self._logged: dict[str, str] = {}
        self.name = f"scheduler of partition {partition.keys.partition}"

    async def tick(self) -> SchedulerReport:
        """Fire all schedules that are due, and return the report."""
        fired = skipped = troubled = 0
        while True:
            found = await self._partition.ask(
                plans.upcoming(self._partition.keys, batch=self._batch, now=self._partition.now())
            )
            steps, troubles = self._decide(found.entries, found.now)
            words = await self._fire(steps, troubles)
            for entry, error in troubles:
                troubled += await self._report(entry, error, found.now)
            fired, skipped = fired + words.count("fired"), skipped + words.count("skipped")
            if found.next_ms is None or found.next_ms > 0:
                rest = LONGEST_REST if found.next_ms is None else min(LONGEST_REST, found.next_ms / 1000)
                return SchedulerReport(fired, skipped, troubled, rest)
            if not {"fired", "skipped", "moved", "changed"} & set(words):
                return SchedulerReport(fired, skipped, troubled)

    def _decide(
        self, entries: tuple[DueSchedule, ...], now: int
    ) -> tuple[dict[Fire, DueSchedule], list[tuple[DueSchedule, CoordinatorError]]]:
        steps: dict[Fire, DueSchedule] = {}
        troubles: list[tuple[DueSchedule, CoordinatorError]] = []
        for entry in entries:
            try:
                found = firings(
                    entry.name, rules_from(entry.rules), ScheduleState(entry.next, entry.offset, entry.after), now
                )
            except (BadOption, Unreadable) as error:
                troubles.append((entry, error))
                continue
            steps |= {self._step(entry, firing): entry for firing in found}
        return steps, troubles

    def _step(self, entry: DueSchedule, firing: Firing) -> Fire:
        expected = "" if firing.expected is None else str(firing.expected)
        at, id = "", ""
        if firing.at is not None:
            at, id = str(firing.at), run_id(entry.name, firing.at, self._partition.keys.partition)
        then, due, offset = str(firing.next), str(firing.due), str(firing.offset)
        return Fire(entry.name, entry.generation, expected, at, then, due, offset, id)

    async def _fire(
        self, steps: dict[Fire, DueSchedule], troubles: list[tuple[DueSchedule, CoordinatorError]]
    ) -> list[str]:
        words: list[str] = []
        unconfirmed: Unconfirmed | None = None
        for part in _batches(steps, STEPS):
            plan = plans.fire(self._partition.keys, part, grace=CANCEL_GRACE, now=self._partition.now())
            try:
                answers = await self._partition.ask(plan)
            except ServerFull as error:
                troubles += [(entry, error) for entry in {steps[step].name: steps[step] for step in part}.values()]
                continue
            except Unconfirmed as error:  # the other parts are tried too
                unconfirmed = error
                continue
            for step, (word, run) in zip(part, answers, strict=True):
                words.append(word)
                _log_step(step, word, run)
                if word in ("bad", "unreadable"):
                    troubles.append(
                        (steps[step], Unreadable("a key that its run needs has a wrong type: run 'coordinator doctor'"))
                    )
        if unconfirmed is not None:
            raise unconfirmed
        return words

    async def _report(self, entry: DueSchedule, error: CoordinatorError, now: int) -> bool:
        """Store the problem with the schedule, and log the problem once.

        Returns:
            False if nothing was stored: another coordinator may still fire the schedule, or the schedule has changed meanwhile.
        """
        if now - (entry.after if entry.next is None else entry.next) < LEFT_TO_OTHERS_MS:
            return False
        wait = LOOK_AGAIN_IF_FULL if isinstance(error, ServerFull) else LOOK_AGAIN
        plan = plans.postpone(self._partition.keys, entry, plans.shorten_error(error), wait, self._partition.now())
        if await self._partition.ask(plan) != "ok":
            return False
        if self._logged.get(entry.name) != str(error):
            log.warning("schedule %s does not fire: %s", entry.name, error)
            self._logged[entry.name] = str(error)
        return True


def _log_step(step: Fire, word: str, run: str) -> None:
    if word == "fired":
        log.debug("schedule %s fired run %s", step.name, run)
    elif word == "skipped":
        log.info("schedule %s skipped a fire time: run %s has not ended", step.name, run)
    if word in ("fired", "skipped", "moved") and step.expected and step.at != step.expected:
        log.warning(
            "schedule %s missed fire times before %s: no runs are created for them (catch_up)",
            step.name,
            step.at or step.next,
        )


def _batches(steps: Iterable[Fire], size: int) -> Iterator[list[Fire]]:
    rest = list(steps)
    for start in range(0, len(rest), size):
        yield rest[start : start + size]
