"""The sidecars of a supervisor: endpoints for health and metrics, and a coordinator. They run in the supervisor's process.

The coordinator shares the event loop of the supervisor, because it needs little time, and a separate process would need a
supervisor too. The coordinator is stopped last, when the workers have released all their runs. If it fails, it is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from coordinator.clock import Clock
from coordinator.config import Settings
from coordinator.errors import CoordinatorError
from coordinator.metrics.samples import Samples
from coordinator.services.daemon import Coordinator, exports_metrics
from coordinator.services.endpoints.health import Health, serve_health
from coordinator.services.endpoints.metrics import serve_metrics
from coordinator.services.otel_gauges import report_gauges
from workers.supervisor.supervisor import Supervisor

logger = logging.getLogger(__name__)
COORDINATOR_RESTART_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class SidecarOptions:
    """The sidecars to run.

    Attributes:
        health: The [HOST:]PORT of the health endpoint; None for no endpoint.
        coordinator: True to run a coordinator.
        metrics: The [HOST:]PORT of the metrics endpoint; None for no endpoint.
    """

    health: str | None = None
    coordinator: bool = False
    metrics: str | None = None


NO_SIDECARS = SidecarOptions()


@contextlib.asynccontextmanager
async def run_sidecars(supervisor: Supervisor, options: SidecarOptions) -> AsyncGenerator[None, None]:
    """Run the sidecars while the context is open: from before the supervisor starts until it has ended."""
    settings, clock = supervisor.options.settings, supervisor.clock
    coordinator = None
    if options.coordinator:
        coordinator = EmbeddedCoordinator(settings, clock, exports_metrics=exports_metrics(options.metrics))

    def check() -> Health:
        return supervisor_health(supervisor) + (coordinator.health() if coordinator else Health())

    async def gather() -> Samples:
        samples = supervisor.pool.metrics.gather(supervisor.pool)
        if coordinator is not None:
            samples.merge(await coordinator.metrics())
        return samples

    if options.metrics is not None:
        supervisor.pool.metrics.enable()
    async with serve_health(options.health, check), serve_metrics(options.metrics, gather, clock):
        if coordinator is None:
            yield
            return
        # The metrics are read for the last time when the coordinator has stopped.
        async with report_gauges(coordinator.metrics, clock), coordinator.running():
            yield


def supervisor_health(supervisor: Supervisor) -> Health:
    """Return the reasons why a supervisor is not live or not ready.

    The supervisor is not live if a worker process has sent no heartbeat for the length of its lease, because the supervisor should
    have replaced the process by then. The supervisor is not ready while a worker process is not ready or is being replaced because
    of a handler that does not stop, and while it drains.
    """
    now, limit = supervisor.clock.monotonic(), supervisor.options.lease
    children = list(supervisor.children.values())
    not_live = tuple(
        f"worker process {child.pid} has had no heartbeat for {now - child.heartbeat_at:.0f} s"
        for child in children
        if child.heartbeat_at is not None and now - child.heartbeat_at > limit
    )
    if supervisor.stopping:
        return Health(not_live, ("the fleet is draining",))
    ready, wanted = sum(child.ready for child in children), supervisor.options.processes
    not_ready = (f"{ready} of {wanted} worker processes are ready",) if ready < wanted else ()
    stuck = tuple(
        f"worker process {child.pid} is being replaced: the handler of run {run} does not stop"
        for child in children
        for run in sorted(child.stuck_runs)
    )
    return Health(not_live, not_ready + stuck)


class EmbeddedCoordinator:
    """A coordinator on the event loop of another program. It is started again when it fails."""

    def __init__(self, settings: Settings, clock: Clock, *, exports_metrics: bool = False) -> None:
        self._settings, self._clock, self._exports_metrics = settings, clock, exports_metrics
        self._coordinator = self._make()
        self._stopping = asyncio.Event()

    def health(self) -> Health:
        """Return the reasons why the coordinator is not live or not ready."""
        return self._coordinator.health()

    async def metrics(self) -> Samples:
        """Return the metrics of the coordinator and of the namespace."""
        return await self._coordinator.metrics()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Run the coordinator while the context is open."""
        keeping = asyncio.create_task(self._keep_running())
        try:
            yield
        finally:
            self._stopping.set()
            self._coordinator.stop()
            await keeping

    async def _keep_running(self) -> None:
        again = f"starting it again in {COORDINATOR_RESTART_SECONDS:.0f} s"
        while not self._stopping.is_set():
            try:
                await self._coordinator.run()
            except CoordinatorError as error:
                logger.error("the coordinator stopped, %s: %s", again, error)
            except Exception:
                logger.exception("the coordinator stopped with an unexpected error, %s", again)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COORDINATOR_RESTART_SECONDS):
                    await self._stopping.wait()
                    return
            self._coordinator = self._make()

    def _make(self) -> Coordinator:
        return Coordinator(self._settings, self._clock, exports_metrics=self._exports_metrics)
