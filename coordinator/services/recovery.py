"""Recover the runs of workers whose lease has expired: requeue them, or set them aside as dead after three strikes.

At each tick, each coordinator calls a script that checks the leases and stores the result, for example a pause of recovery, on the
server. This needs no lock. Only a coordinator that gets the lock takes runs. The lock only avoids double work, because the script
that takes the runs checks all conditions again.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.clock import Clock
from coordinator.errors import BadCall
from coordinator.model.features import announce
from coordinator.services.service_loop import Partition
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans.coordinators import Recovered

log = logging.getLogger(__name__)

# Seconds between two ticks. If no lease can expire soon, the script asks for twice this time. If no coordinator has ticked for
# three times the requested time, recovery is paused.
TICK = 1.0
LOCK = "recovery"
LOCK_SECONDS = 10.0
BATCH = 100
MAX_WORKERS = 100
NOTHING = Recovered("ok")


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The result of a tick of the recovery.

    Attributes:
        workers: The lost workers whose runs were all recovered.
        runs: The numbers of recovered runs by their new status.
        hold: Seconds for which the recovery of other workers is still paused.
        rest: Seconds until the next tick.
    """

    workers: tuple[str, ...] = ()
    runs: Recovered = NOTHING
    hold: float = 0.0
    rest: float = TICK


class Recovery:
    """The service that recovers the runs of lost workers in one partition.

    Args:
        partition: The partition.
        coordinator: The id of the coordinator.
        clock: The clock.
        jitter: Returns a number from 0 to 1, which spreads delays.
        on_recovered: Is called with the counts of each batch of recovered runs.
    """

    def __init__(
        self,
        partition: Partition,
        coordinator: str,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
        on_recovered: Callable[[Recovered], None] = lambda runs: None,
    ) -> None:
        self._partition, self._clock, self._jitter = partition, clock, jitter
        self._coordinator, self._on_recovered = coordinator, on_recovered
        self._paused = False
        self._locked_at = 0.0
        self.name = f"recovery of partition {partition.keys.partition}"

    async def tick(self) -> RecoveryReport:
        """Check the leases, recover the runs of lost workers, and return the report."""
        keys, now = self._partition.keys, self._partition.now()
        lost, held_ms, rest_ms = await self._partition.ask(
            coordinator_plans.judge(keys, announce(self._coordinator), tick=TICK, most=MAX_WORKERS, now=now)
        )
        self._log_pause(held_ms / 1000)
        if not lost or not await self._lock(LOCK_SECONDS):
            return RecoveryReport(hold=held_ms / 1000, rest=TICK if lost else rest_ms / 1000)
        done, total, problem = list[str](), NOTHING, None
        for worker in lost:
            try:
                part = await self._recover(worker)
            except BadCall as error:  # A key of this worker is damaged. The other workers are recovered first.
                problem = error
                continue
            total = add(total, part)
            if part.word == "unlocked":
                break
            if part.word == "ok":
                done.append(worker)
        # Release the lock if this coordinator still has it, so that other coordinators need not wait until the lock expires.
        await self._lock(0.001)
        if problem is not None:
            raise problem
        more = len(lost) == MAX_WORKERS and bool(done)
        return RecoveryReport(tuple(done), total, held_ms / 1000, 0.0 if more else TICK)

    async def _recover(self, worker: str) -> Recovered:
        """Recover all runs of a worker, batch by batch. Return the sums of all batches, with the answer word of the last one."""
        keys = self._partition.keys
        host, pid = await self._partition.ask(coordinator_plans.read_host_and_pid(keys, worker))
        total = NOTHING
        while True:
            if self._clock.monotonic() - self._locked_at > LOCK_SECONDS / 3:
                await self._lock(LOCK_SECONDS)  # if the lock is lost, the script's word says so
            part = await self._partition.ask(
                coordinator_plans.recover(
                    keys, worker, lock=LOCK, token=self._coordinator, tick=TICK, batch=BATCH, jitter=self._jitter(),
                    now=self._partition.now(),
                )
            )  # fmt: skip
            self._on_recovered(part)
            total = add(total, part)
            if part.word != "ok" or not part.left:
                break
        if total.taken or total.word == "ok":
            level = logging.WARNING if total.dead else logging.INFO
            log.log(level, "%s", describe_recovery(worker, host, pid, total), extra={"worker": worker})
        return total

    async def _lock(self, seconds: float) -> bool:
        asked_at = self._clock.monotonic()
        got = await self._partition.ask(coordinator_plans.lock(self._partition.keys, LOCK, self._coordinator, seconds))
        self._locked_at = asked_at if got else 0.0
        return got

    def _log_pause(self, seconds: float) -> None:
        if seconds > 0 and not self._paused:
            log.info(
                "recovery paused for %.1f s in partition %d: no coordinator was running, or most leases expired at the same time",
                seconds, self._partition.keys.partition,
            )  # fmt: skip
        self._paused = seconds > 0


def add(total: Recovered, part: Recovered) -> Recovered:
    """Return the counts of both results added up. The answer word and the number of runs that are left are those of `part`."""
    return Recovered(
        part.word, total.queued + part.queued, total.delayed + part.delayed, total.dead + part.dead,
        total.cancelled + part.cancelled, total.aside + part.aside, part.left, total.failed + part.failed,
    )  # fmt: skip


def describe_recovery(worker: str, host: str, pid: str, runs: Recovered) -> str:
    """Return the log line for a lost worker: `worker w-1 (host, pid 7) is gone: 10 runs requeued, 1 delayed, 1 dead`."""
    counts = {
        "requeued": runs.queued,
        "delayed": runs.delayed,
        "dead": runs.dead,
        "cancelled": runs.cancelled,
        "failed (killed by the critic)": runs.failed,
        "set aside as unreadable": runs.aside,
    }
    parts = [f"{count} {outcome}" for outcome, count in counts.items() if count]
    gone = f"worker {worker} ({host}, pid {pid}) is gone" if host else f"worker {worker} is gone"
    if not parts:
        return f"{gone}: it had no runs"
    number, _, outcome = parts[0].partition(" ")
    parts[0] = f"{number} {'run' if number == '1' else 'runs'} {outcome}"
    return f"{gone}: {', '.join(parts)}"
