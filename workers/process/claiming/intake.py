"""The worker's side of claiming: decide which runs to claim, and start the claimed runs."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from coordinator.clock import Clock
from coordinator.model.names import route
from coordinator.store.plans.workers import Claimed
from coordinator.store.transport.wire import AsyncWire
from workers.attempt.kind_health import KindHealth
from workers.handlers.registry import Registry
from workers.liveness.heartbeat import Heartbeat
from workers.liveness.lease import Lease
from workers.process.beat_results import BeatResults
from workers.process.claiming.claimer import Claimer, Inbox
from workers.process.claiming.slots import SlotTable
from workers.process.membership import Membership
from workers.process.options import WorkerOptions
from workers.process.runner import Runner
from workers.process.tasks import TaskSet

logger = logging.getLogger(__name__)


class Intake:
    """Claim runs in all partitions that the worker has joined. It is the ClaimerHost of its claimers.

    Args:
        wire: The connection to the server.
        options: The settings of the worker.
        registry: The handlers, by kind.
        clock: The time source.
        slots: The free slots, which all partitions share.
        health: Knows which kinds are suspended.
        membership: The leases.
        heartbeat: Renews the leases.
        results: Receives the messages of the inboxes.
        runner: Starts the claimed runs.
        tasks: Holds background tasks.
    """

    def __init__(
        self,
        wire: AsyncWire,
        options: WorkerOptions,
        registry: Registry[Any],
        clock: Clock,
        slots: SlotTable,
        health: KindHealth,
        membership: Membership,
        heartbeat: Heartbeat,
        results: BeatResults,
        runner: Runner,
        tasks: TaskSet,
    ) -> None:
        self._wire, self._options, self._registry, self._clock = wire, options, registry, clock
        self._slots, self._health, self._membership, self._heartbeat = slots, health, membership, heartbeat
        self._results, self._runner, self._tasks = results, runner, tasks
        self._outdated = False
        self.claimers: list[Claimer] = []

    async def serve(self, partition: int, joined: asyncio.Task[None], *, only: bool) -> None:
        """Wait until the worker has joined a partition, then claim runs of the partition until this coroutine is cancelled.

        Args:
            partition: The number of the partition.
            joined: The task that joins the partition.
            only: True if this is the only partition of the namespace.
        """
        await joined
        address = self._options.settings.address
        claimer = Claimer(address, self._wire, self._slots, self._clock, partition, self, only=only)
        inbox = Inbox(
            address, self._clock, lambda: self.lease(partition), functools.partial(self._results.receive, partition)
        )
        self.claimers.append(claimer)
        # The claimer and the inbox are closed in any case. Otherwise they would take tokens of bells that other workers need.
        async with AsyncExitStack() as stack:
            stack.push_async_callback(inbox.close)
            stack.push_async_callback(claimer.close)
            await asyncio.gather(claimer.run(), inbox.run())

    def set_outdated(self, outdated: bool) -> None:
        """Set whether the fleet has newer code than this process. If so, cancel claims that wait at the server."""
        self._outdated = outdated
        if outdated:
            for claimer in self.claimers:
                claimer.recall()

    # -- ClaimerHost

    @property
    def outdated(self) -> bool:
        """Return True if the fleet has newer code than this process."""
        return self._outdated

    def lease(self, partition: int) -> Lease:
        """Return the current lease in a partition."""
        return self._membership.leases[partition]

    def routes(self) -> list[str]:
        """Return the routes from which the worker may claim at this moment: the routes of all kinds that are not suspended."""
        now = self._clock.monotonic()
        routes = all_routes(self._registry, self._options)
        return [route for route in routes if not self._health.is_suspended(kind_of(route), now)]

    def take(self, lease: Lease, runs: Sequence[Claimed]) -> None:
        """Start the runs that a claim returned. Release the runs for which this worker has no handler."""
        handlers, mine = self._registry.handlers, []
        for claimed in runs:
            handler = handlers.get(kind_of(claimed.route))
            if handler is None or lease.gone:
                logger.warning("run %s is released: this worker cannot execute %s", claimed.id, claimed.route)
                self._tasks.spawn(self._membership.release(lease, claimed.id, claimed.token))
            else:
                mine.append((claimed, handler))
        self._runner.start(lease, mine)

    def lose(self, lease: Lease) -> None:
        """Stop the runs of a lease that the server no longer knows, and join again."""
        self._membership.lose(lease)

    def compare(self, lease: Lease) -> None:
        """Send a heartbeat now that compares the runs that this process holds with the runs that it owns on the server."""
        self._heartbeat.poke(lease)


def all_routes(registry: Registry[Any], options: WorkerOptions) -> tuple[str, ...]:
    """Return the routes of all handlers: each queue with each kind and each schema that the handler reads."""
    handlers = registry.handlers.values()
    return tuple(route(q, h.kind, schema) for q in options.queues for h in handlers for schema in h.schemas())


def kind_of(route: str) -> str:
    """Return the kind of a route. If the route cannot be read, return a text that is not a valid kind."""
    return route.partition(":")[2].rpartition("@")[0]
