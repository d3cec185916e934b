"""The worker processes of one supervisor: a fixed number of child slots, each kept filled with one process.

When a process ends, the supervisor abandons every worker id that it reported. So its runs are requeued within milliseconds, and not
only after a lease. During a roll a child slot has two processes for a while: the current one, and its successor, which takes over
the slot when the current one has drained or died.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import random
import signal
from collections.abc import Sequence
from dataclasses import replace

from coordinator.clock import Clock
from coordinator.errors import CoordinatorError
from coordinator.store.keys import Namespace
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans.coordinators import Recovered
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.process.options import WorkerOptions
from workers.supervisor.child_process import ChildProcess, spawn
from workers.supervisor.child_state import ChildState
from workers.supervisor.pool_metrics import PoolMetrics
from workers.supervisor.restart_backoff import RestartBackoff, failed_to_start

logger = logging.getLogger(__name__)
EXIT_TIMEOUT = (
    45.0  # seconds that a process has to end after its grace; a process with a blocked event loop would never end
)


class ChildPool:
    """The worker processes of a supervisor, each from its start until the server has taken its runs from it.

    Args:
        registries: The names of the registries, each as MODULE:REGISTRY.
        options: The options of each worker; `options.processes` is the number of child slots.
        clock: The time source.
        grace: The longest grace of any handler, in seconds.
        exit_timeout: Seconds after the grace until a process that has not ended is killed.
    """

    def __init__(
        self, registries: Sequence[str], options: WorkerOptions, clock: Clock, *, grace: float, exit_timeout: float
    ) -> None:
        self.registries, self.options, self.clock = registries, options, clock
        self.children: dict[int, ChildProcess] = {}  # all processes, by a number that is never used again
        self.current: dict[int, ChildProcess] = {}  # child slot -> the process that works there
        self.stopping, self.exit_codes = asyncio.Event(), list[int]()
        self.metrics = PoolMetrics()
        self._successors: dict[int, ChildProcess] = {}
        self.grace, self._exit_timeout, self._hurried = grace, exit_timeout, False
        self._numbers = itertools.count()
        self._supervisions: set[asyncio.Task[None]] = set()

    def connect(self, wire: AsyncWire, namespace: Namespace) -> None:
        """Set the connection and the namespace with which the runs of dead processes are abandoned."""
        self._wire, self._namespace = wire, namespace

    def stop(self) -> None:
        """Drain all processes. The second call skips the grace."""
        self._hurried = self.stopping.is_set()
        self.stopping.set()
        for child in self.children.values():
            self._stop_child(child)

    def describe_wait(self) -> str:
        """Return a sentence that names the processes that a stop without grace still waits for, and the longest wait."""
        pids = [str(child.pid) for child in self.children.values() if child.alive]
        if not pids:
            return "no worker process is left"
        those = f"worker process {pids[0]}" if len(pids) == 1 else f"worker processes {', '.join(pids)}"
        return (
            f"waiting for {those} to release their runs without grace; a process that has not ended in "
            f"{self._exit_timeout:g} s is killed, and its runs are requeued"
        )

    def _stop_child(self, child: ChildProcess) -> None:
        if self._hurried:
            child.hurry()
        else:
            child.drain()

    async def sleep_unless_stopped(self, seconds: float) -> None:
        """Sleep for a number of seconds, but return as soon as the pool is stopped."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()

    # -- a child slot

    async def keep_slot_filled(self, slot: int) -> None:
        """Keep one process in a child slot until the pool is stopped."""
        backoff = RestartBackoff()
        while not self.stopping.is_set():
            child = self._successors.pop(slot, None) or await self.start_child(self.options)
            if child is not None:
                self.current[slot] = child
                await child.wait_until_gone()
                self.current.pop(slot)
            if self.stopping.is_set():
                if child is not None and child.exit_code:
                    _log_end(child, "")
                return
            if (successor := self._successors.get(slot)) is not None:
                if child is not None:
                    _log_end(child, f"worker process {successor.pid} takes over")
                continue
            wait = backoff.record_end(failed=child is None or self._failed_to_start(child))
            if child is not None:
                _log_end(child, _describe_restart(wait, backoff.failures), failing=wait > 0)
            elif wait:
                logger.error("no worker process could be started for slot %d: next try in %.1f s", slot, wait)
            await self._wait_for_restart(slot, wait)

    def _failed_to_start(self, child: ChildProcess) -> bool:
        seconds = self.clock.monotonic() - child.started
        return failed_to_start(
            as_asked=child.left or child.stopped, ready=child.ready, held_runs=child.held_runs, seconds=seconds
        )

    async def _wait_for_restart(self, slot: int, seconds: float) -> None:
        """Wait before the next process of a slot is started. A successor, or a stop of the pool, ends the wait."""
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until and slot not in self._successors and not self.stopping.is_set():
            await self.sleep_unless_stopped(min(0.2, seconds))

    async def wait_until_empty(self) -> None:
        """Wait until all processes have ended and the server has taken their runs from them."""
        while self._supervisions:
            await asyncio.wait(self._supervisions)

    # -- a roll

    async def start_successor(self, slot: int) -> ChildProcess | None:
        """Start the process that takes over a slot when the current process has ended.

        Returns:
            The new process, or None if it can't be started.
        """
        child = await self.start_child(self.options)
        if child is not None:
            self._successors[slot] = child
        return child

    async def dismiss_successor(self, slot: int, child: ChildProcess) -> None:
        """End a successor that has failed to start.

        If the successor has already taken over the slot, keep it, because the slot has no other process.
        """
        if self._successors.get(slot) is not child:
            return
        del self._successors[slot]
        child.hurry()
        await child.wait_until_gone()
        if not child.left:
            _log_end(child, "the process before it stays")

    async def hand_over_slot(self, slot: int, successor: ChildProcess) -> None:
        """Drain the current process of a slot until the slot belongs to its successor."""
        while successor.alive and self.current.get(slot) is not successor and not self.stopping.is_set():
            if (old := self.current.get(slot)) is None:
                await self.clock.asleep(0.02)  # the old process has just ended
                continue
            old.drain()
            await old.wait_until_gone()

    def set_outdated(self, outdated: bool, *, started_before: float) -> None:
        """Tell the processes that were started before `started_before` whether the fleet has newer code than theirs."""
        for child in self.children.values():
            if child.started < started_before:
                child.set_outdated(outdated)

    def drain_extras(self, *, started_before: float) -> None:
        """Drain the extra processes that were started before a roll.

        Extra processes get no successor: their runs wait for an empty process, or for the next extra process.
        """
        for child in self.children.values():
            if child.extra and child.started < started_before:
                child.drain()

    # -- a process from its start to its end

    async def run_extra(self) -> None:
        """Start an extra process that executes one run, and return when it has ended."""
        child = await self.start_child(replace(self.options, concurrency=1, runs=1))
        if child is not None:
            child.extra = True
            await child.wait_until_gone()
            _log_end(child, "it was an extra process for one suspect run")

    async def start_child(self, options: WorkerOptions) -> ChildProcess | None:
        """Start a process, and supervise it in the background. Return the process, or None if it can't be started."""
        metrics_file = None
        try:
            metrics_file = self.metrics.open_file()
            child = await spawn(self.registries, options, self.clock.monotonic(), metrics_file)
        except OSError as error:  # the machine has no memory, files or processes left; the caller tries again later
            if metrics_file is not None:
                os.close(metrics_file)
            logger.error("a worker process could not be started: %s", error)
            return None
        number = next(self._numbers)
        self.children[number] = child
        if self.stopping.is_set():
            self._stop_child(child)
        child.supervision = asyncio.create_task(self._supervise(number, child))
        self._supervisions.add(child.supervision)
        child.supervision.add_done_callback(self._supervisions.discard)
        return child

    async def _supervise(self, number: int, child: ChildProcess) -> None:
        """Watch a process until it has ended, then abandon the runs that it still holds."""
        try:
            await self._wait_for_exit(child)
        finally:
            del self.children[number]
            self.metrics.add_ended(child)
            child.close()
        # The exit code of a process that is replaced does not count for the exit code of the supervisor.
        is_last = self.stopping.is_set()
        await self._abandon_runs(child)
        if is_last:
            self.exit_codes.append(child.exit_code)

    async def _wait_for_exit(self, child: ChildProcess) -> None:
        """Read the reports of a process until it has ended. Kill the process when it is overdue."""
        loop = asyncio.get_running_loop()

        def read_reports() -> None:
            if not child.read_reports():
                loop.remove_reader(child.reports)

        loop.add_reader(child.reports, read_reports)
        ended = asyncio.create_task(child.process.wait())
        overdue = asyncio.create_task(child.wait_until_overdue(self.grace, self._exit_timeout, self.clock))
        try:
            await asyncio.wait({ended, overdue}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                logger.error(
                    "killing worker process %d: it did not end within its grace and %.0f s more",
                    child.pid,
                    self._exit_timeout,
                )
                child.send_signal(signal.SIGKILL)
            await ended
        finally:
            overdue.cancel()
            loop.remove_reader(child.reports)
        child.read_reports()  # the last reports of the process may still be in the pipe
        if overdue.done():
            child.lifecycle.record_overdue_kill()
        child.record_exit()

    async def _abandon_runs(self, child: ChildProcess) -> None:
        """Make the server requeue all runs that a dead process may hold.

        A process that reported the end of its drain holds no run. The exit code does not show whether it drained, because a
        handler may have chosen the exit code.
        """
        if child.left:
            return
        blame = child.lifecycle.blame
        results = await asyncio.gather(*(self.abandon(*known, blame) for known in child.worker_ids))
        known = [result for result in results if result is not None]
        child.held_runs = sum(result.taken for result in known)
        child.summary = describe_abandoned(known, unknown=len(results) - len(known))
        if child.lifecycle.state is ChildState.UNFINISHED and len(known) == len(results) and not child.held_runs:
            child.lifecycle.record_empty()  # the process had released its runs, but had not received the server's answer

    async def abandon(self, partition: int, worker: str, blame: str = "", deadline: str = "") -> Recovered | None:
        """Make the server requeue the runs of a worker whose process has ended.

        Args:
            partition: The partition of the worker.
            worker: The worker id.
            blame: The only run that gets a strike; `nobody` if no run gets one; empty if each run without progress gets one.
            deadline: The end of the worker's lease, if the worker only seems to be gone because it sends no heartbeats. A worker
                that has renewed its lease since then keeps its runs. Empty if the process has certainly ended.

        Returns:
            How many runs got which status; None if the server did not answer.
        """
        plan = coordinator_plans.abandon(
            self._namespace.keys(partition), worker, blame=blame, jitter=random.random(), deadline=deadline
        )
        try:
            recovered = await drive_async(self._wire, plan, timeout=self.options.lease)
            self.metrics.count_recovered(recovered)
            return recovered
        except CoordinatorError as error:
            logger.error("worker %s could not be abandoned, its runs wait for its lease to expire: %s", worker, error)
            return None


def describe_abandoned(results: Sequence[Recovered], *, unknown: int = 0) -> str:
    """Return a text with the new statuses of abandoned runs, as in '2 runs requeued, 1 dead'.

    Args:
        results: The server's answers.
        unknown: The number of workers for which the server did not answer.
    """
    counts = {
        "requeued": sum(result.queued for result in results),
        "delayed": sum(result.delayed for result in results),
        "dead": sum(result.dead for result in results),
        "failed": sum(result.failed for result in results),
        "cancelled": sum(result.cancelled for result in results),
        "set aside": sum(result.aside for result in results),
    }
    parts = [f"{count} {word}" for word, count in counts.items() if count]
    if parts:
        count, _, word = parts[0].partition(" ")
        parts[0] = f"{count} {'run' if count == '1' else 'runs'} {word}"
    if unknown:
        parts.append("the server did not answer, so its runs wait for its lease to expire")
    return ", ".join(parts) or "it held no runs"


def _describe_restart(wait: float, failures: int) -> str:
    if not wait:
        return "starting another worker process"
    return f"worker processes end as soon as they start ({failures} times in a row): next try in {wait:.1f} s"


def _log_end(child: ChildProcess, then: str, *, failing: bool = False) -> None:
    """Log that a worker process ended, the new statuses of its runs, and the next step of the supervisor (`then`)."""
    facts = "; ".join(fact for fact in (child.summary, then) if fact)
    workers = ",".join(sorted(worker for _, worker in child.worker_ids))
    level = logging.INFO if child.left or child.stopped else logging.ERROR if failing else logging.WARNING
    logger.log(
        level,
        "worker process %d %s%s",
        child.pid,
        child.ending,
        f": {facts}" if facts else "",
        extra={"worker": workers} if workers else None,
    )
