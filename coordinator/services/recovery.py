"""Takes the runs of workers whose lease is over, and puts them back.

Leases are judged each tick, by every coordinator and without a lock: the judgement is kept on the server, and so is a
hold. The lock only saves work, since the script that takes the runs checks everything again; who does not get it leaves
the work to the holder.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.clock import Clock
from coordinator.services.service_loop import Partition
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans.coordinators import Recovered

log = logging.getLogger(__name__)

TICK = 1.0  # a gap of three of these between judgements begins a hold
LOCK = "recovery"
LOCK_SECONDS = 10.0
BATCH = 100
MOST_WORKERS = 100
NOTHING = Recovered("ok")


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Workers whose runs were all taken, what became of the runs, and for how many seconds other workers are held."""

    workers: tuple[str, ...] = ()
    runs: Recovered = NOTHING
    hold: float = 0.0
    rest: float = TICK


class Recovery:
    """Recovery in one partition."""

    def __init__(
        self, partition: Partition, coordinator: str, clock: Clock, jitter: Callable[[], float] = random.random
    ) -> None:
        self._partition, self._clock, self._jitter = partition, clock, jitter
        self._coordinator = coordinator
        self._holding = False
        self._locked_at = 0.0
        self.name = f"recovery of partition {partition.keys.partition}"

    async def tick(self) -> RecoveryReport:
        keys, now = self._partition.keys, self._partition.now()
        lost, held_ms = await self._partition.ask(
            coordinator_plans.judge(keys, self._coordinator, tick=TICK, most=MOST_WORKERS, now=now)
        )
        self._say_hold(held_ms / 1000)
        if not lost or not await self._lock(LOCK_SECONDS):
            return RecoveryReport(hold=held_ms / 1000)
        done, total = [], NOTHING
        for worker in lost:
            part = await self._recover(worker)
            total = added(total, part)
            if part.word in ("unlocked", "held"):
                break
            if part.word == "ok":
                done.append(worker)
        await self._lock(0.001)  # given back, if it still is ours: who stops now must not keep the others waiting
        more = len(lost) == MOST_WORKERS and bool(done)
        return RecoveryReport(tuple(done), total, held_ms / 1000, 0.0 if more else TICK)

    async def _recover(self, worker: str) -> Recovered:
        """All runs of a worker, batch by batch; the word is that of the last batch."""
        keys = self._partition.keys
        host, pid = await self._partition.ask(coordinator_plans.read_host_and_pid(keys, worker))
        total = NOTHING
        while True:
            if self._clock.monotonic() - self._locked_at > LOCK_SECONDS / 3:
                await self._lock(LOCK_SECONDS)  # lost or not, the script says
            part = await self._partition.ask(
                coordinator_plans.recover(
                    keys, worker, lock=LOCK, token=self._coordinator, tick=TICK, batch=BATCH, jitter=self._jitter(),
                    now=self._partition.now(),
                )
            )  # fmt: skip
            total = added(total, part)
            if part.word != "ok" or not part.left:
                break
        if total.taken or total.word == "ok":
            level = logging.WARNING if total.dead else logging.INFO
            log.log(level, "%s", sentence(worker, host, pid, total), extra={"worker": worker})
        return total

    async def _lock(self, seconds: float) -> bool:
        asked_at = self._clock.monotonic()
        got = await self._partition.ask(coordinator_plans.lock(self._partition.keys, LOCK, self._coordinator, seconds))
        self._locked_at = asked_at if got else 0.0
        return got

    def _say_hold(self, seconds: float) -> None:
        if seconds > 0 and not self._holding:
            log.info(
                "recovery is held for %.1f s in partition %d: leases were not watched, or most ran out at once",
                seconds, self._partition.keys.partition,
            )  # fmt: skip
        self._holding = seconds > 0


def added(total: Recovered, part: Recovered) -> Recovered:
    """Both together; the word and what is left are the later one's."""
    return Recovered(
        part.word, total.queued + part.queued, total.delayed + part.delayed, total.dead + part.dead,
        total.cancelled + part.cancelled, total.aside + part.aside, part.left, total.failed + part.failed,
    )  # fmt: skip


def sentence(worker: str, host: str, pid: str, runs: Recovered) -> str:
    """For the log: recovered 12 runs of worker w-1 (host, pid 7): 10 queued, 1 delayed, 1 dead"""
    parts = {"queued": runs.queued, "delayed": runs.delayed, "dead": runs.dead, "cancelled": runs.cancelled}
    parts["failed as their critic said"] = runs.failed
    parts["set aside as unreadable"] = runs.aside
    what = ", ".join(f"{count} {became}" for became, count in parts.items() if count)
    where = f" ({host}, pid {pid})" if host else ""
    if not runs.taken:
        return f"worker {worker}{where} is gone; it held no runs"
    noun = "run" if runs.taken == 1 else "runs"
    return f"recovered {runs.taken} {noun} of worker {worker}{where}: {what}"
