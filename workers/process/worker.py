"""A worker process: joins, claims, executes, beats, and drains without losing a run."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

from coordinator.clock import Clock, SystemClock
from coordinator.errors import CoordinatorError, NotConfigured, Unconfirmed, Unreachable
from coordinator.model.deadline import DeadlineExceeded
from coordinator.model.outcome import Fail, Outcome, Release
from coordinator.model.run import route
from coordinator.store import server_checks as checks
from coordinator.store.keys import Namespace
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.attempt.attempt import Attempt
from workers.attempt.critic import Critic
from workers.attempt.executor import Executor, failure, kind_of
from workers.attempt.kind_health import KindHealth
from workers.attempt.saver import packed_note
from workers.handlers.registry import Registry
from workers.liveness.heartbeat import BeatResult, Heartbeat
from workers.liveness.host import own_mark
from workers.liveness.lease import Lease, claim_number
from workers.liveness.loop_watchdog import LoopWatchdog
from workers.process.claimer import Claimer, Inbox
from workers.process.options import WorkerOptions
from workers.process.slots import SlotTable

logger = logging.getLogger(__name__)
CANCEL_EVERY = 2.0
CLEAN_UP = 5.0
CANCEL_AFTER = 1.0
CLAIM_ANSWERED = 1.0
MANY = 8  # runs of one claim, from which on they let the next claim go first
TURNS_FOR_A_CLAIM = 10  # of the event loop: from the answer of a claim until the next one is sent
JOINED = 2.0  # then the partitions that can be reached begin


class Worker:
    """The runs of this process, and what it knows of its leases. Everything here happens on one event loop."""

    def __init__(
        self,
        registry: Registry[Any],
        options: WorkerOptions,
        clock: Clock | None = None,
        announce: Callable[[int, str], None] = lambda partition, worker: None,
        ask_to_be_replaced: Callable[[str], None] | None = None,
    ) -> None:
        self._announce, self._ask_to_be_replaced = announce, ask_to_be_replaced
        self.registry, self.options, self.clock = registry, options, clock or SystemClock()
        self.attempts: dict[tuple[str, str], Attempt] = {}  # by id and token: runs of one claim share their token
        self.left_to_recovery: list[str] = []
        self._unrecorded: list[Attempt] = []
        self.drained = False  # it came to the end of its drain, or never began
        self.has_left = False  # and nothing of it is left on the server
        self.ready = asyncio.Event()
        self.moved_at: Callable[[], float] = self.clock.monotonic  # when its heartbeat last moved, once it has one
        self._outdated = False
        self.on_refused: Callable[[str], None] = lambda kind: None  # no run of the kind could be started here
        self._by_id: dict[str, Attempt] = {}
        self._slots = SlotTable(options.concurrency)
        self._health = KindHealth()
        self._leases: dict[int, Lease] = {}
        self._claimers: list[Claimer] = []
        self._leaving: set[Lease] = set()  # a beat that comes after it was left finds nobody, and nothing is wrong
        self._stop = asyncio.Event()
        self._no_grace = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._deadline: float | None = None
        self._broken: BaseException | None = None
        self._done = 0

    # -- from start to end

    def stop(self) -> None:
        """Drain. Asked a second time: without grace."""
        if self._stop.is_set():
            self.hurry()
        self.drain()

    def drain(self) -> None:
        """However often, and whoever asks."""
        self._stop.set()

    def hurry(self) -> None:
        """Drain without grace, whether or not it was asked to drain before."""
        self._stop.set()
        self._no_grace.set()

    async def run(self) -> int:
        """Until it is asked to stop. The exit code: 0, or 1 where runs had to be left to recovery."""
        settings = self.options.settings
        wire = AsyncWire(settings.address, settings.timeout)
        try:
            namespace = await self._enter(wire)
            async with AsyncExitStack() as stack:
                resources = None if namespace is None else await self._open(stack)
                if namespace is None or self._stop.is_set():
                    self.drained = self.has_left = True
                    return 0
                return await self._serve(wire, namespace, resources)
        finally:
            await wire.close()

    async def _enter(self, wire: AsyncWire) -> Namespace | None:
        """The namespace; a server that is not there yet is waited for. None where the worker was stopped meanwhile."""
        until = self.clock.monotonic() + self.options.settings.timeout

        def give_up() -> bool:
            return self._stop.is_set() or self.clock.monotonic() > until

        try:
            return await drive_async(wire, checks.enter(self.options.settings), give_up=give_up)
        except (Unreachable, Unconfirmed):
            if self._stop.is_set():
                return None
            raise

    async def _open(self, stack: AsyncExitStack) -> Any:
        """What the lifespan opens. A stop does not wait for one that never opens: it is cancelled."""
        task, opening = asyncio.current_task(), True
        assert task is not None

        def cancel(_: asyncio.Task[Any]) -> None:
            if opening:
                task.cancel()

        stopping = self._spawn(self._stop.wait())
        stopping.add_done_callback(cancel)
        try:
            return await stack.enter_async_context(self.registry.resources())
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise
            task.uncancel()
        except (Exception, SystemExit) as error:
            if not self._stop.is_set():
                raise NotConfigured(
                    f"the lifespan raised {type(error).__name__}: {error}; nothing was claimed"
                ) from error
        finally:
            opening = False
            stopping.cancel()

    async def _serve(self, wire: AsyncWire, namespace: Namespace, resources: Any) -> int:
        self._wire, self._namespace = wire, namespace
        threads = ThreadPoolExecutor(self.options.concurrency, thread_name_prefix="handler")
        self._executor = Executor(
            wire, self.clock, threads, resources, self._health, self._out_of_time, self.on_refused
        )
        self._critic = Critic(wire, self.clock, self._kill)
        watchdog = LoopWatchdog(self.clock, self.options.lease, self._ask_to_be_replaced)
        self._heartbeat = Heartbeat(self.options.settings.address, self.clock, self._held, self._told, watchdog)
        self._heartbeat.start()
        listening: list[asyncio.Task[Any]] = []
        self.moved_at = self._heartbeat.moved_at
        try:
            joins = await self._join_all(namespace.partitions)
            parts = [*(self._work(partition, join) for partition, join in joins), self._watch_doubt()]
            listening += [self._spawn(part) for part in parts]
            await self._until_stopped(listening)
            await self._drain(self._claimers, listening)
        finally:
            for task in listening:
                task.cancel()
            self._heartbeat.stop()
            threads.shutdown(wait=False, cancel_futures=True)
        return 1 if self.left_to_recovery else 0

    async def _join_all(self, partitions: int) -> list[tuple[int, asyncio.Task[None]]]:
        """The joins of all partitions. Returns when all are done, or after a while those that can be reached."""
        joins = [(partition, self._spawn(self._join(partition))) for partition in range(partitions)]
        pending = {join for _, join in joins}
        while pending and not (self._leases and len(pending) < partitions):
            done, pending = await asyncio.wait(pending, timeout=JOINED, return_when=asyncio.FIRST_EXCEPTION)
            for join in done:
                join.result()
        for partition, join in joins:
            if not join.done():
                logger.warning("partition %d can't be reached yet: its runs wait", partition)
        return joins

    async def _work(self, partition: int, joined: asyncio.Task[None]) -> None:
        """Takes runs of one partition, from its join on."""
        await joined
        claimer, inbox = self._claimer(partition), self._inbox(partition)
        self._claimers.append(claimer)
        async with AsyncExitStack() as stack:  # however it ends: a bell that rings here then would wake nobody
            stack.push_async_callback(inbox.close)
            stack.push_async_callback(claimer.close)
            await asyncio.gather(claimer.run(), inbox.run())

    async def _until_stopped(self, listening: Sequence[asyncio.Task[Any]]) -> None:
        async def all_answered() -> None:
            for claimer in list(self._claimers):
                await claimer.first_answer.wait()
            self.ready.set()
            kinds = ", ".join(sorted(self.registry.handlers))
            logger.info("ready: %d slots for %s (process %d)", self.options.concurrency, kinds, os.getpid())

        ready = self._spawn(all_answered())
        stopping = self._spawn(self._stop.wait())
        done, _ = await asyncio.wait({stopping, *listening}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        for task in done - {stopping}:
            self._broken = task.exception()  # a part that ended by itself has a reason: said when all is drained
        self._stop.set()

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        return self._hold(asyncio.get_running_loop().create_task(work))

    def _hold(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        """Until it has ended: an event loop does not."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- membership

    async def _join(self, partition: int) -> None:
        """Registers under a new id; a join that comes back as gone was given up by a supervisor meanwhile."""
        strangers = 0
        while True:
            lease = Lease(self._namespace.keys(partition), self.options.lease, self.clock)
            self._announce(
                partition, lease.worker
            )  # before it exists: a supervisor can then give up whatever comes of it
            member = worker_plans.Membership(
                lease.worker, round(lease.length * 1000), socket.gethostname(), os.getpid(), str(round(self.clock.now() * 1000)),
                self.options.fleet, self.options.code or "-", self.options.concurrency, self._all_routes(),
                str(own_mark() or ""),
            )  # fmt: skip
            word = await drive_async(
                self._wire, worker_plans.join(lease.keys, self._namespace.birth, member), give_up=self._stop.is_set
            )
            if word == "mismatch":
                strangers += 1
                await self._introduce(final=strangers > 1)
            if word == "ok":
                self._leases[partition] = lease
                self._heartbeat.watch(lease)
                return

    async def _introduce(self, *, final: bool) -> None:
        """A partition that was not there when the namespace was founded does not know it yet; more than once it is another one."""
        plan = namespace_plans.create_missing_copies(self._namespace.name, self._namespace.birth)
        if final or not await drive_async(self._wire, plan, give_up=self._stop.is_set):
            raise NotConfigured(
                f"namespace {self._namespace.name!r} is not the one that this process started with: it was flushed or restored"
            )

    def _lost(self, lease: Lease) -> None:
        """The server knows this worker no more: stop its runs, try one release of each, join anew."""
        if lease.gone:
            return
        lease.lose()
        logger.warning("worker %s is gone: its lease was taken", lease.worker)
        for attempt in [attempt for attempt in self.attempts.values() if attempt.lease is lease]:
            self._spawn(self._give_up(attempt))
        if (
            not self._stop.is_set()
        ):  # a beat that arrives after `leave` is answered gone too: it must not bring the worker back
            self._spawn(self._join_again(lease.keys.partition))

    async def _join_again(self, partition: int) -> None:
        try:
            await self._join(partition)
        except CoordinatorError as error:
            if not self._stop.is_set():  # else it was given up, since nobody needs it any more
                self._broken = error
                self._stop.set()

    async def _give_up(self, attempt: Attempt) -> None:
        """One release with the newest state: the token decides whether it counts. Then the handler stops."""
        if not attempt.ended:
            attempt.lose()
            await self._end_without_its_handler(attempt, Release(stopping=True))

    def _all_routes(self) -> tuple[str, ...]:
        handlers = self.registry.handlers.values()
        return tuple(route(q, h.kind, schema) for q in self.options.queues for h in handlers for schema in h.schemas())

    def _routes(self) -> list[str]:
        now = self.clock.monotonic()
        return [r for r in self._all_routes() if not self._health.is_suspended(kind_of(r), now)]

    # -- claims

    @property
    def outdated(self) -> bool:
        """There is newer code: what was just released is left to it for a moment."""
        return self._outdated

    @outdated.setter
    def outdated(self, outdated: bool) -> None:
        self._outdated = outdated
        if outdated:
            for claimer in self._claimers:
                claimer.recall()

    def _claimer(self, partition: int) -> Claimer:
        return Claimer(
            self.options.settings.address, self._wire, self._slots, self.clock, lambda: self._leases[partition], self._routes,
            lambda: self.outdated, self._take, self._lost, self._heartbeat.poke, only=self._namespace.partitions == 1,
        )  # fmt: skip

    def _inbox(self, partition: int) -> Inbox:
        return Inbox(self.options.settings.address, self.clock, lambda: self._leases[partition], self._heard)

    def _take(self, lease: Lease, runs: list[worker_plans.Claimed]) -> None:
        """Starts what was claimed. What comes while the worker stops goes back at once: no strike."""
        loop = asyncio.get_running_loop()
        gate = self._gate(loop) if len(runs) >= MANY else None
        for claimed in runs:
            handler = self.registry.handlers.get(kind_of(claimed.route))
            if handler is None or lease.gone:
                logger.warning("run %s (%s) is not for this worker: it goes back", claimed.id, claimed.route)
                self._spawn(self._release(lease, claimed.id, claimed.token))
                continue
            attempt = Attempt(claimed, lease, handler, self._executor.threads)
            attempt.on_lost, attempt.on_progress, attempt.gate = self._on_lost, self._on_progress, gate
            self.attempts[attempt.key] = attempt
            self._by_id[attempt.id] = attempt
            self._slots.take(suspect=claimed.suspect)
            self._empty.clear()
            if self._stop.is_set():
                attempt.stop("drain")
            attempt.task = loop.create_task(self._execute(attempt))  # held by its attempt, and that by `attempts`
            self._critic.watch(attempt)

    def _gate(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Many runs begin some turns of the event loop later: the claim of the next ones goes out first, and the server looks for
        them while these are at work. Begun at once, they would all have their first turn before it."""
        gate, turns = loop.create_future(), itertools.count(1)

        def pass_by() -> None:
            if next(turns) < TURNS_FOR_A_CLAIM:
                loop.call_soon(pass_by)
            elif not gate.done():  # who cancels an attempt that waits for it cancels it too
                gate.set_result(None)

        pass_by()
        return gate

    def _on_lost(self, attempt: Attempt) -> None:
        self._spawn(self._cancel_until_ended(attempt, CANCEL_EVERY, math.inf))

    def _on_progress(self, attempt: Attempt) -> None:
        if attempt.claimed.suspect:
            self._slots.cleared()
        self._critic.progressed(attempt)

    async def _execute(self, attempt: Attempt) -> None:
        recording = False
        try:
            outcome = await self._executor.execute(attempt)
            if outcome is not None:
                # one that ends after so many runs must not take another before it knows; and one of one place is empty
                # between two runs, so that a suspect has its turn there also while others wait
                recording = self.options.runs is None and self.options.concurrency > 1
                if recording:
                    self._slots.handler_ended()
                await self._executor.finalise(attempt, outcome)
        except Exception:
            logger.exception("the attempt at run %s broke", attempt.id)
            attempt.ended = True
            await self._executor.give_back(attempt)
        finally:
            self._ended(attempt)
            # not in _ended: a handler that was left behind keeps its place, since it keeps its thread
            self._slots.free_one(suspect=attempt.claimed.suspect, recorded=recording)

    def _ended(self, attempt: Attempt) -> None:
        if self.attempts.pop(attempt.key, None) is None:
            return
        self._critic.forget(attempt)
        if attempt.unrecorded and self._stop.is_set():  # else the next comparison with the server gives it back
            self._unrecorded.append(attempt)
        if self._by_id.get(attempt.id) is attempt:
            del self._by_id[attempt.id]
        if not self.attempts:
            self._empty.set()
        self._done += 1
        if self.options.runs is not None and self._done >= self.options.runs:
            self._stop.set()

    # -- what heartbeats and the inbox tell

    def _held(self, lease: Lease) -> list[tuple[str, str]]:
        """What this process holds under a lease, and what it is just recording: else that would be taken for a stray.
        Called from the heartbeat's thread: one copy, then at leisure."""
        return [(a.id, a.token) for a in list(self.attempts.values()) if a.lease is lease]

    def _told(self, told: BeatResult) -> None:
        lease = told.lease
        if lease.gone or (told.beat is None and lease in self._leaving):
            return
        if told.beat is None:
            self._lost(lease)
            return
        for id in told.beat.cancels:
            self._cancel(id)
        if told.beat.drain:
            self._drain_asked()
        for id, token in told.beat.lost:
            attempt = self.attempts.get((id, token))
            if attempt is not None and not attempt.ended:
                logger.warning("run %s is not this worker's any more: its handler is stopped", attempt.id)
                attempt.lose()
        if told.held is not None:
            self._return_strays(told)
        lease.renewed(told.sent_at, compared=told.held is not None)
        self._spawn(self._tell_notes(lease))

    async def _tell_notes(self, lease: Lease) -> None:
        """What handlers said of their progress and no save has taken along."""
        news = [a for a in self.attempts.values() if a.lease is lease and a.note is not a.note_told]
        for attempt in news:
            attempt.note_told = attempt.note
        told = (attempt_plans.note(lease.keys, a.id, a.token, packed_note(a.note)) for a in news)
        # together, so that they share a trip; what gets lost is told by the next save
        await asyncio.gather(*(drive_async(self._wire, plan, timeout=0) for plan in told), return_exceptions=True)

    def _return_strays(self, told: BeatResult) -> None:
        """Owned, unknown both when the beat was sent and now, and from a claim that is over: the answer was lost. No strike."""
        assert told.beat is not None
        assert told.held is not None
        for id, token in told.beat.strays:
            known = (id, token) in self.attempts or (id, token) in told.held
            if not known and claim_number(token) <= told.floor:
                logger.info("run %s came with a claim whose answer was lost: it goes back", id)
                self._spawn(self._release(told.lease, id, token))

    async def _release(self, lease: Lease, id: str, token: str, timeout: float | None = None) -> bool:
        """Whether it was answered."""
        try:
            await drive_async(self._wire, attempt_plans.release(lease.keys, id, token, mode="stopping"), timeout)
        except CoordinatorError as error:
            logger.warning("run %s could not be given back: %s", id, error)
            return False
        return True

    def _heard(self, hint: str) -> None:
        what, _, id = hint.partition(" ")
        if what == "cancel":
            self._cancel(id)
        elif what == "drain":
            self._drain_asked()

    def _drain_asked(self) -> None:
        """Somebody asked for this worker to drain. Not a second time: that would take the grace."""
        if not self._stop.is_set():
            logger.info("asked to drain")
            self._stop.set()

    def _cancel(self, id: str) -> None:
        """Somebody asked for the run to be cancelled: tell it, and a moment later don't ask any more."""
        attempt = self._by_id.get(id)
        if attempt is not None and attempt.stopping is None and not attempt.ended:
            attempt.stop("cancel")
            self._spawn(self._cancel_until_ended(attempt, CANCEL_AFTER))

    def _kill(self, attempt: Attempt, error: DeadlineExceeded) -> None:
        """The critic has spoken: the handler is told, and a moment later not asked any more."""
        logger.warning("run %s: %s", attempt.id, error)
        attempt.kill(error)
        self._spawn(self._mark_killed(attempt, error))
        self._spawn(self._see_it_end(attempt))

    async def _mark_killed(self, attempt: Attempt, error: DeadlineExceeded) -> None:
        """Should this process die before the handler has ended, whoever takes its run ends it. Its ending writes the same again."""
        plan = attempt_plans.kill(attempt.lease.keys, attempt.id, attempt.token, failure(error))
        with contextlib.suppress(CoordinatorError):
            await drive_async(self._wire, plan, give_up=lambda: attempt.ended)

    async def _see_it_end(self, attempt: Attempt) -> None:
        await self._cancel_until_ended(attempt, CANCEL_AFTER)
        if attempt.ended or not attempt.performing:
            return
        logger.error("%r did not stop at its deadline: run %s fails without it", attempt.handler, attempt.id)
        await self._end_without_its_handler(attempt, Fail(attempt.killed or TimeoutError()))
        if self._ask_to_be_replaced is None:
            logger.error("nobody replaces this process: the handler keeps its place in it for as long as it goes on")
        elif not self._stop.is_set():
            logger.error("this process drains, to be replaced: only its end ends that handler")
            self._stop.set()

    async def _end_without_its_handler(self, attempt: Attempt, outcome: Outcome) -> None:
        attempt.ended = True
        if attempt.task is not None:
            self._hold(attempt.task)  # `attempts` will not any more, and the handler still goes on
        await self._executor.finalise(attempt, outcome)
        self._ended(attempt)

    async def _watch_doubt(self) -> None:
        """Kinds that can't wait out a doubt are stopped. Not one whose handler has ended: whether its ending counts is for its
        token to say, and given up it would be done again."""
        while True:
            await self.clock.asleep(min(0.1, self.options.lease / 20))
            for attempt in list(self.attempts.values()):
                stops = attempt.handler.on_lost_lease == "stop" and not attempt.ended
                if stops and attempt.lease.in_doubt and not attempt.lost:
                    attempt.lose()  # once: each time it puts a cancellation into the handler

    # -- draining

    def _out_of_time(self) -> bool:
        return self._deadline is not None and self.clock.monotonic() > self._deadline

    async def _drain(self, claimers: Sequence[Claimer], listening: Sequence[asyncio.Task[Any]]) -> None:
        """Tell the handlers, let finish what can, cancel the rest, release what does not stop; keep renewing until the end."""
        count = len(self.attempts)
        logger.info("draining %d %s (process %d)", count, "run" if count == 1 else "runs", os.getpid())
        for lease in self._leases.values():
            self._spawn(self._say_draining(lease))
        for claimer in claimers:
            claimer.draining = True
        await _cancelled(listening)  # and their bells closed, before anything is released
        if asking := [claimer.asking for claimer in claimers if claimer.asking is not None]:
            await asyncio.wait(asking, timeout=CLAIM_ANSWERED)  # and a claim on its way would take it again
        for attempt in list(self.attempts.values()):
            attempt.stop("drain")
        graces = [self._grace(attempt) for attempt in self.attempts.values()]
        self._deadline = self.clock.monotonic() + max(graces, default=0.0) + 2 * CLEAN_UP
        await asyncio.gather(*(self._drain_one(attempt) for attempt in list(self.attempts.values())))
        await self._claims_over(claimers)
        self._deadline = min(self._deadline, self.clock.monotonic() + CLEAN_UP)
        await self._wait(self._empty, CLEAN_UP)
        leases = list(self._leases.values())
        left = dict(zip(leases, await asyncio.gather(*(self._leave(lease) for lease in leases)), strict=True))
        # leaving gave back what could not be recorded, where the server answered meanwhile
        unrecorded = [attempt for attempt in self._unrecorded if not left.get(attempt.lease, True)]
        self.left_to_recovery = [attempt.id for attempt in [*unrecorded, *self.attempts.values()]]
        for id in self.left_to_recovery:
            logger.error("run %s is left to recovery", id)
        self.drained, self.has_left = True, all(left.values()) and not self.left_to_recovery
        if self._broken is not None:
            raise self._broken

    async def _say_draining(self, lease: Lease) -> None:
        """For those who look."""
        with contextlib.suppress(CoordinatorError):
            await drive_async(self._wire, fleet_plans.drain(lease.keys, lease.worker), timeout=CLEAN_UP)

    async def _claims_over(self, claimers: Sequence[Claimer]) -> None:
        """A claim that was under way is answered or given up, and what it brought goes back."""
        asking = [claimer.asking for claimer in claimers if claimer.asking is not None]
        await asyncio.gather(*asking, return_exceptions=True)
        await asyncio.gather(*(self._drain_one(attempt) for attempt in list(self.attempts.values())))

    def _grace(self, attempt: Attempt) -> float:
        return attempt.handler.grace if attempt.handler.grace is not None else self.options.grace

    async def _drain_one(self, attempt: Attempt) -> None:
        task = attempt.task
        assert task is not None
        hurry = self._spawn(self._no_grace.wait())
        await asyncio.wait({task, hurry}, timeout=self._grace(attempt), return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        await self._cancel_until_ended(attempt, 0.0)
        if attempt.performing and not attempt.ended:
            logger.warning("%r did not stop: run %s is released without it", attempt.handler, attempt.id)
            await self._end_without_its_handler(attempt, Release(stopping=True))

    async def _cancel_until_ended(self, attempt: Attempt, after: float, most: float = CLEAN_UP) -> None:
        """Python 3.11 can swallow a cancellation: it is repeated, but not so often that a handler's clean-up is cut short. Plain
        handlers get the same time to reach a cut."""
        task = attempt.task
        assert task is not None
        if after:
            await asyncio.wait({task}, timeout=after)
        until = self.clock.monotonic() + most
        while not task.done() and attempt.performing and self.clock.monotonic() < until:
            attempt.cancel()
            await asyncio.wait({task}, timeout=CANCEL_EVERY)

    async def _leave(self, lease: Lease) -> bool:
        """Whether nothing is left of the worker. What it owns and can't give back, as a run whose bytes are corrupt, stays; what
        was only not answered in time is tried again."""
        self._leaving.add(lease)
        refused, until = set[tuple[str, str]](), self.clock.monotonic() + 2 * CLEAN_UP
        try:
            while owned := await drive_async(
                self._wire, worker_plans.leave(lease.keys, lease.worker), timeout=CLEAN_UP
            ):
                if refused.issuperset(owned) or self.clock.monotonic() > until:
                    logger.warning("can't leave: run %s and %d more can't be given back", owned[0][0], len(owned) - 1)
                    return False
                answered = await asyncio.gather(*(self._release(lease, *one, timeout=CLEAN_UP) for one in owned))
                refused.update(one for one, was in zip(owned, answered, strict=True) if was)
            # a token that went to a bell of ours at the last moment is rung again for others
            await drive_async(self._wire, coordinator_plans.ring(lease.keys), timeout=CLEAN_UP)
        except CoordinatorError as error:
            logger.warning("could not leave, the lease will run out: %s", error)
            return False
        return True

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return


async def _cancelled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancels until all have ended: on 3.11 one cancel may be lost inside a timeout that ends at the same moment."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.5)
