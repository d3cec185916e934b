"""Fires schedules: computes their fire times, and moves each from the one that is expected to the next.

No lock: the script compares what is expected, so whoever comes second changes nothing. A schedule that can't be read here, because
its rules are broken or its time zone is unknown on this machine, holds up no other, and is left to the others for a moment.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from coordinator.errors import BadOption, CoordinatorError, Unreadable
from coordinator.model.schedule import Firing, ScheduleState, firings, rules_from, run_id
from coordinator.services.service_loop import LONGEST_REST, Partition
from coordinator.store.plans import schedules as plans
from coordinator.store.plans.schedules import DueSchedule, Fire

log = logging.getLogger(__name__)

BATCH = 100
CANCEL_GRACE = 30.0
LEFT_TO_OTHERS_MS = 2000  # a coordinator that knows the time zone comes first
LOOK_AGAIN = 30.0
STEPS = 200  # of one call: the server does nothing else meanwhile


@dataclass(frozen=True, slots=True)
class SchedulerReport:
    """How many runs were enqueued, how many fire times were skipped because of an overlap, how many schedules are in trouble."""

    fired: int = 0
    skipped: int = 0
    troubled: int = 0
    rest: float = LONGEST_REST


class Scheduler:
    """The schedules of one partition."""

    def __init__(self, partition: Partition, batch: int = BATCH) -> None:
        self._partition, self._batch = partition, batch
        self._said: dict[str, str] = {}
        self.name = f"scheduler of partition {partition.keys.partition}"

    async def tick(self) -> SchedulerReport:
        fired = skipped = troubled = 0
        while True:
            found = await self._partition.ask(
                plans.upcoming(self._partition.keys, batch=self._batch, now=self._partition.now())
            )
            steps, troubles = self._decide(found.entries, found.now)
            words = await self._fire(steps, troubles)
            for entry, error in troubles:
                troubled += await self._say(entry, error, found.now)
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
        for part in _batches(steps, STEPS):
            plan = plans.fire(self._partition.keys, part, grace=CANCEL_GRACE, now=self._partition.now())
            for step, (word, run) in zip(part, await self._partition.ask(plan), strict=True):
                words.append(word)
                _log(step, word, run)
                if word in ("bad", "unreadable"):
                    troubles.append(
                        (steps[step], Unreadable("a key of the server that its run needs holds something else"))
                    )
        return words

    async def _say(self, entry: DueSchedule, error: CoordinatorError, now: int) -> bool:
        """Whether the trouble was ours to say."""
        if now - (entry.after if entry.next is None else entry.next) < LEFT_TO_OTHERS_MS:
            return False
        plan = plans.postpone(
            self._partition.keys, entry, plans.shorten_error(error), LOOK_AGAIN, self._partition.now()
        )
        if await self._partition.ask(plan) != "ok":
            return False
        if self._said.get(entry.name) != str(error):
            log.warning("schedule %s does not fire: %s", entry.name, error)
            self._said[entry.name] = str(error)
        return True


def _log(step: Fire, word: str, run: str) -> None:
    if word == "fired":
        log.debug("schedule %s fired run %s", step.name, run)
    elif word == "skipped":
        log.info("schedule %s skipped a fire time: run %s has not ended", step.name, run)
    if word in ("fired", "skipped", "moved") and step.expected and step.at != step.expected:
        log.warning(
            "schedule %s missed fire times before %s, and does not make up for them", step.name, step.at or step.next
        )


def _batches(steps: Iterable[Fire], size: int) -> Iterator[list[Fire]]:
    rest = list(steps)
    for start in range(0, len(rest), size):
        yield rest[start : start + size]
