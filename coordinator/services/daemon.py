"""A coordinator process: it runs the services of all partitions until it is stopped.

Several coordinators may run at the same time. All of them do the same work; there is no leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import Counter
from importlib.metadata import version
from uuid import uuid4

from coordinator.clock import Clock, SystemClock
from coordinator.config import Settings
from coordinator.errors import CoordinatorError, Unconfirmed, Unreachable
from coordinator.metrics import catalog, otel
from coordinator.metrics.ending_counts import EndingCounts
from coordinator.metrics.namespace_gauges import read_gauges
from coordinator.metrics.samples import Samples
from coordinator.services.admission import Admission
from coordinator.services.bell_ringer import BellRinger
from coordinator.services.due import DueRuns
from coordinator.services.ending_reporter import EndingReporter, configured_tracing
from coordinator.services.endpoints.health import Health, serve_health
from coordinator.services.endpoints.metrics import serve_metrics
from coordinator.services.namespace_check import NamespaceCheck
from coordinator.services.otel_gauges import report_gauges
from coordinator.services.recovery import Recovery
from coordinator.services.retention import KEEP, Retention
from coordinator.services.scheduler import Scheduler
from coordinator.services.service_loop import Outage, Partition, ServiceLoop, listen_to_bell
from coordinator.services.work_check import WorkCheck, due_keys, group_keys, route_keys, schedule_keys
from coordinator.store import server_checks as checks
from coordinator.store.keys import Namespace
from coordinator.store.plans.coordinators import Recovered
from coordinator.store.transport.wire import AsyncBell, AsyncWire, drive_async

log = logging.getLogger(__name__)

QUIET_SECONDS = 1.0  # seconds without an answer after which the coordinator logs that it waits for the server
STANDSTILL = (
    60.0  # seconds since the last tick after which a service counts as stuck; a service ticks during an outage too
)
SCRAPE_TIMEOUT = 2.0  # seconds that a scrape waits for the server
LAST_TICK = 5.0  # seconds that the current ticks may still take when the coordinator stops


class Coordinator:
    """A coordinator: it runs the services of a namespace in this process until `stop` is called.

    Args:
        settings: The server and the namespace.
        clock: The clock; by default the machine's.
        keep: Number of ended runs to keep, for each status and partition.
        exports_metrics: True if the process exports the metrics of the coordinator. Only then does it count the runs that end
            without a worker. Otherwise it leaves them to a coordinator that exports metrics.

    Attributes:
        id: The random id of the coordinator.
    """

    def __init__(
        self, settings: Settings, clock: Clock | None = None, keep: int = KEEP, *, exports_metrics: bool = False
    ) -> None:
        self.id = f"c-{uuid4().hex[:12]}"
        self._settings, self._clock, self._keep = settings, clock or SystemClock(), keep
        self._stopping = False
        self._end_of_round = asyncio.Event()  # set by a stop, or when the namespace was created again
        self._loops: list[ServiceLoop] = []
        self._recovered: Counter[str] = Counter()
        self._endings = EndingCounts() if exports_metrics else None
        self._open: tuple[AsyncWire, Namespace] | None = None  # while the services run

    def health(self) -> Health:
        """Return the coordinator's health.

        The coordinator is live while its services tick, even if the server does not answer. It is ready after the server has
        answered each service, until the coordinator is stopped.
        """
        now = self._clock.monotonic()
        stuck = {one.service.name: now - one.last_tick_at for one in self._loops if now - one.last_tick_at > STANDSTILL}
        not_live = tuple(f"{name} has not ticked for {seconds:.0f} s" for name, seconds in stuck.items())
        if self._stopping:
            return Health(not_live, ("the coordinator is stopping",))
        if not self._loops:
            return Health(not_live, ("the coordinator has not had an answer from the server yet",))
        silent = dict.fromkeys(one.service.name for one in self._loops if not one.answered)
        return Health(not_live, tuple(f"{name} has not had an answer from the server yet" for name in silent))

    async def metrics(self) -> Samples:
        """Return the present values of the coordinator's own metrics and, if the server answers, of the namespace's metrics."""
        samples, begun = Samples(), self._clock.monotonic()
        opened = self._open
        try:
            if opened is not None:
                wire, namespace = opened
                samples = await drive_async(wire, read_gauges(namespace), timeout=SCRAPE_TIMEOUT)
        except CoordinatorError as error:
            log.debug("the metrics of the namespace could not be read: %s", error)
        if not samples.values:
            samples.add(catalog.UP, 0.0)
        samples.add(catalog.SCRAPE, self._clock.monotonic() - begun)
        for status in Recovered("ok").by_status:
            samples.add(catalog.RECOVERED, self._recovered[status], status, "coordinator")
        if self._endings is not None:
            self._endings.add_to(samples)
        return samples

    def stop(self) -> None:
        """Stop the services. `run` returns when the current ticks have ended."""
        self._stopping = True
        self._end_of_round.set()

    async def run(self) -> None:
        """Run the services until `stop` is called.

        Raises:
            Unreachable: The server could not be reached within the timeout of the settings.
            NotConfigured: The server or the namespace can't be used with its settings. The message says how to fix this.
        """
        wire = AsyncWire(self._settings.address, self._settings.timeout)
        bell = AsyncBell(self._settings.address)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(wire.close)
            stack.push_async_callback(bell.close)
            while not self._stopping and (namespace := await self._enter(wire)) is not None:
                self._log_start(namespace)
                await self._run_services(namespace, wire, bell)
            log.info("coordinator %s has stopped", self.id)

    async def _enter(self, wire: AsyncWire) -> Namespace | None:
        """Wait until the server answers, and return the namespace; None if the coordinator was stopped meanwhile.

        Raises:
            Unreachable: The server could not be reached within the timeout of the settings.
            NotConfigured: The server or the namespace can't be used with its settings. The message says how to fix this.
        """
        try:
            return await self._try_to_enter(wire, QUIET_SECONDS)
        except (Unreachable, Unconfirmed) as error:
            log.warning("%s; retrying for %.0f s", error, self._settings.timeout)
        try:
            return await self._try_to_enter(wire, self._settings.timeout)
        except (Unreachable, Unconfirmed):
            if self._stopping:
                return None
            raise

    async def _try_to_enter(self, wire: AsyncWire, seconds: float) -> Namespace:
        """Check the server, create the namespace if it does not exist, and return it.

        Raises:
            Unreachable: The server has not answered within this number of seconds.
            NotConfigured: The server or the namespace can't be used with its settings. The message says how to fix this.
        """
        until = self._clock.monotonic() + seconds

        def give_up() -> bool:
            return self._stopping or self._clock.monotonic() > until

        return await drive_async(wire, checks.enter(self._settings), give_up=give_up)

    def _log_start(self, namespace: Namespace) -> None:
        partitions = "1 partition" if namespace.partitions == 1 else f"{namespace.partitions} partitions"
        log.info(
            "coordinator %s of run-coordinator %s on %s: namespace %s, %s, durability %s",
            self.id, version("run-coordinator"), self._settings.address, namespace.name, partitions,
            namespace.durability, extra={"pid": os.getpid()},
        )  # fmt: skip

    async def _run_services(self, namespace: Namespace, wire: AsyncWire, bell: AsyncBell) -> None:
        """Run the services until the coordinator is stopped, or the namespace was created again."""
        outage, listeners, tracing = Outage(self._clock), [], configured_tracing()
        reports_endings = tracing is not None or self._endings is not None
        loops = self._loops = []
        check = NamespaceCheck(Partition(wire, namespace.keys(0)), namespace.birth, self._on_recreated)
        loops.append(ServiceLoop(check, self._clock, outage))
        for keys in namespace.everywhere():
            partition = Partition(wire, keys)
            due = ServiceLoop(DueRuns(partition), self._clock, outage)
            others = (
                Recovery(partition, self.id, self._clock, on_recovered=self._count_recovered),
                Retention(partition, namespace, self._keep),
            )
            checked = [
                (due, due_keys),
                (ServiceLoop(Scheduler(partition), self._clock, outage), schedule_keys),
                (ServiceLoop(BellRinger(partition), self._clock, outage), route_keys),
                (ServiceLoop(Admission(partition), self._clock, outage), group_keys),
            ]
            loops += [loop for loop, _ in checked]
            endings = (EndingReporter(partition, tracing, self._endings),) if reports_endings else ()
            services = (*others, WorkCheck(partition, checked), *endings)
            loops += [ServiceLoop(service, self._clock, outage) for service in services]
            listeners.append(asyncio.create_task(listen_to_bell(bell, keys.coordinator_bell(), due.ring, self._clock)))
        ticks = [asyncio.create_task(one.run()) for one in loops]
        self._open = wire, namespace
        try:
            await self._end_of_round.wait()
            for one in loops:
                one.stop()
            await asyncio.wait(ticks, timeout=LAST_TICK)
        finally:
            self._open = None
            await _cancel_all([*ticks, *listeners])
            if not self._stopping:
                self._end_of_round.clear()

    def _count_recovered(self, runs: Recovered) -> None:
        self._recovered.update(runs.by_status)

    def _on_recreated(self) -> None:
        log.warning("namespace %s was created again: its earlier runs are gone", self._settings.namespace)
        self._end_of_round.set()


async def _cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel the tasks repeatedly until all have ended. On Python 3.11, a timeout at the same moment may swallow a cancel."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.5)


def exports_metrics(place: str | None) -> bool:
    """Return True if the process serves metrics at a place, or has a MeterProvider of OpenTelemetry."""
    return place is not None or otel.meter_provider() is not None


async def serve(
    settings: Settings,
    clock: Clock | None = None,
    *,
    health: str | None = None,
    keep: int = KEEP,
    metrics: str | None = None,
) -> None:
    """Run a coordinator until SIGTERM or SIGINT. A second signal ends it without waiting for the current ticks.

    Args:
        settings: The server and the namespace.
        clock: The clock; by default the machine's.
        health: `PORT` or `HOST:PORT` at which health checks are served, or None.
        keep: Number of ended runs to keep, for each status and partition.
        metrics: `PORT` or `HOST:PORT` at which metrics are served, or None.
    """
    coordinator = Coordinator(settings, clock, keep, exports_metrics=exports_metrics(metrics))
    clock = clock or SystemClock()
    async with (
        serve_health(health, coordinator.health),
        serve_metrics(metrics, coordinator.metrics, clock),
        report_gauges(coordinator.metrics, clock),
    ):
        await _until_signalled(coordinator)


async def _until_signalled(coordinator: Coordinator) -> None:
    running = asyncio.ensure_future(coordinator.run())
    asked = False

    def signalled(name: str) -> None:
        nonlocal asked
        if asked:
            running.cancel()
            return
        asked = True
        log.info("%s received: the coordinator is stopping", name)
        coordinator.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number.name)
    with contextlib.suppress(asyncio.CancelledError):
        await running
