"""The worker's membership in each partition: join, leave, and join again after its lease was lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Mapping
from types import MappingProxyType

from coordinator.clock import Clock
from coordinator.errors import CoordinatorError, NotConfigured
from coordinator.store.keys import Namespace
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.liveness.heartbeat import Heartbeat
from workers.liveness.host import own_mark
from workers.liveness.lease import Lease
from workers.process.options import WorkerOptions
from workers.process.stopping.shutdown import Shutdown
from workers.process.stopping.stops import Stops
from workers.process.tasks import TaskSet

logger = logging.getLogger(__name__)
JOIN_SECONDS = 2.0  # after this time the worker starts with the partitions that it could reach
LEAVE_SECONDS = 5.0  # for each request while the worker leaves


class Membership:
    """The leases of a worker, one for each partition.

    Args:
        wire: The connection to the server.
        namespace: The namespace that the worker serves.
        options: The settings of the worker.
        routes: The routes that the worker listens to.
        published: The limits and the budgets of the handlers as texts, which the worker publishes when it joins (see
            describe_limits and describe_budgets).
        clock: The time source.
        heartbeat: Renews the leases.
        stops: Stops the attempts of a lost lease.
        shutdown: The shutdown of the worker. After it was requested, the worker does not join again.
        tasks: Holds background tasks.
        announce: A function that reports the partition and the id of each new worker to the supervisor.
    """

    def __init__(
        self,
        wire: AsyncWire,
        namespace: Namespace,
        options: WorkerOptions,
        routes: tuple[str, ...],
        published: tuple[str, str],
        clock: Clock,
        heartbeat: Heartbeat,
        stops: Stops,
        shutdown: Shutdown,
        tasks: TaskSet,
        announce: Callable[[int, str], None],
    ) -> None:
        self._wire, self._namespace, self._options, self._routes, self._published = (
            wire,
            namespace,
            options,
            routes,
            published,
        )
        self._clock, self._heartbeat, self._stops = clock, heartbeat, stops
        self._shutdown, self._tasks, self._announce = shutdown, tasks, announce
        self._leases: dict[int, Lease] = {}
        self._leaving: set[Lease] = set()

    @property
    def leases(self) -> Mapping[int, Lease]:
        """The current leases by partition."""
        return MappingProxyType(self._leases)

    def is_leaving(self, lease: Lease) -> bool:
        """Return True if the worker is leaving under this lease. The server may then no longer know the lease."""
        return lease in self._leaving

    # -- join

    async def join_all(self) -> list[tuple[int, asyncio.Task[None]]]:
        """Join all partitions. Wait for all of them; after two seconds, wait only until one is joined.

        Returns:
            Each partition with the task that joins it. Some of these tasks may still be running.

        Raises:
            CoordinatorError: If a join failed.
        """
        partitions = self._namespace.partitions
        joins = [(partition, self._tasks.spawn(self._join(partition))) for partition in range(partitions)]
        pending = {join for _, join in joins}
        while pending and not (self._leases and len(pending) < partitions):
            done, pending = await asyncio.wait(pending, timeout=JOIN_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
            for join in done:
                join.result()
        for partition, join in joins:
            if not join.done():
                logger.warning("partition %d cannot be reached yet: its runs have to wait", partition)
        return joins

    async def _join(self, partition: int) -> None:
        """Register in a partition under a new worker id.

        If the server answers that the new worker is gone, a supervisor has abandoned the id meanwhile. Then join under another id.
        """
        mismatches = 0
        while True:
            lease = Lease(self._namespace.keys(partition), self._options.lease, self._clock)
            # The id is announced before the join, so that the supervisor can abandon the worker even if this process dies now.
            self._announce(partition, lease.worker)
            plan = worker_plans.join(lease.keys, self._namespace.birth, self._describe(lease))
            answer = await drive_async(self._wire, plan, give_up=self._shutdown.is_requested)
            if answer == "mismatch":
                mismatches += 1
                await self._create_copies(final=mismatches > 1)
            if answer == "ok":
                self._leases[partition] = lease
                self._heartbeat.watch(lease)
                return

    def _describe(self, lease: Lease) -> worker_plans.WorkerRecord:
        options = self._options
        return worker_plans.WorkerRecord(
            lease.worker, round(lease.length * 1000), socket.gethostname(), os.getpid(), str(round(self._clock.now() * 1000)),
            options.fleet, options.code or "-", options.concurrency, self._routes, str(own_mark() or ""),
            limits=self._published[0], budgets=self._published[1],
        )  # fmt: skip

    async def _create_copies(self, *, final: bool) -> None:
        """Create the namespace's record in partitions that do not have it.

        A partition that could not be reached when the namespace was created does not know the namespace yet.

        Args:
            final: True if the record was created before, and the partition still does not know the namespace.

        Raises:
            NotConfigured: If the namespace on the server is not the one that this process started with.
        """
        plan = namespace_plans.create_missing_copies(self._namespace.name, self._namespace.birth)
        if final or not await drive_async(self._wire, plan, give_up=self._shutdown.is_requested):
            raise NotConfigured(
                f"namespace {self._namespace.name!r} is not the one that this process started with: "
                "the server was flushed or restored. Start the process again"
            )

    # -- lose

    def lose(self, lease: Lease) -> None:
        """Stop the runs of a lease that the server no longer knows, and join again under a new id."""
        if lease.gone:
            return
        lease.lose()
        logger.warning("worker %s is gone: the server has taken its lease", lease.worker)
        self._stops.lease_lost(lease)
        # The server also answers a heartbeat that arrives after `leave` with gone. The worker must not join again then.
        if not self._shutdown.is_requested():
            self._tasks.spawn(self._join_again(lease.keys.partition))

    async def _join_again(self, partition: int) -> None:
        try:
            await self._join(partition)
        except CoordinatorError as error:
            if not self._shutdown.is_requested():  # otherwise the join was cancelled because of the shutdown
                self._shutdown.fail(error)

    # -- leave

    async def announce_drain(self, lease: Lease) -> None:
        """Mark the worker as draining, for status displays."""
        with contextlib.suppress(CoordinatorError):
            await drive_async(self._wire, fleet_plans.drain(lease.keys, lease.worker), timeout=LEAVE_SECONDS)

    async def leave(self, lease: Lease) -> bool:
        """Release all runs that the worker still owns, and remove the worker from the server.

        A release that was not answered in time is repeated. A run that cannot be released, for example because its stored
        bytes are damaged, stays.

        Returns:
            False if the worker is still registered. Its lease then has to expire.
        """
        self._leaving.add(lease)
        refused, until = set[tuple[str, str]](), self._clock.monotonic() + 2 * LEAVE_SECONDS
        try:
            while owned := await self._ask_to_leave(lease):
                if refused.issuperset(owned) or self._clock.monotonic() > until:
                    logger.warning(
                        "worker %s cannot leave: run %s and %d more could not be released and wait until its lease expires",
                        lease.worker, owned[0][0], len(owned) - 1,
                    )  # fmt: skip
                    return False
                answered = await asyncio.gather(*(self.release(lease, *one, timeout=LEAVE_SECONDS) for one in owned))
                refused.update(one for one, was in zip(owned, answered, strict=True) if was)
            # This worker may have taken the token of a bell at the last moment, so the bells are rung again for other workers.
            await drive_async(self._wire, coordinator_plans.ring(lease.keys), timeout=LEAVE_SECONDS)
        except CoordinatorError as error:
            logger.warning("worker %s could not leave, and its lease has to expire: %s", lease.worker, error)
            return False
        return True

    async def _ask_to_leave(self, lease: Lease) -> list[tuple[str, str]]:
        """Ask the server to remove the worker. Return the runs (id and token) that it still owns; empty if it has left."""
        return await drive_async(self._wire, worker_plans.leave(lease.keys, lease.worker), timeout=LEAVE_SECONDS)

    async def release(self, lease: Lease, id: str, token: str, timeout: float | None = None) -> bool:
        """Release a run that has no attempt here. Return False if the request failed."""
        plan = attempt_plans.release(lease.keys, id, token, mode="stopping")
        try:
            await drive_async(self._wire, plan, timeout)
        except CoordinatorError as error:
            logger.warning(
                "run %s could not be released now; it waits for another try or for the end of the lease: %s", id, error
            )
            return False
        return True
