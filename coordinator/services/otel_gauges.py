"""Report the metrics of a coordinator and of its namespace through OpenTelemetry, if the process has a MeterProvider.

An SDK reads its instruments in a thread of its own, at times that it chooses. So the values are read from the server every ten
seconds, and a thread gets the newest ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable

from coordinator.clock import Clock
from coordinator.metrics import otel
from coordinator.metrics.samples import Samples

log = logging.getLogger(__name__)

READ_SECONDS = 10.0


@contextlib.asynccontextmanager
async def report_gauges(gather: Callable[[], Awaitable[Samples]], clock: Clock) -> AsyncGenerator[None, None]:
    """Report the values while the context is open. Do nothing if the process has no MeterProvider.

    When the context is closed, the counters are read once more, because the SDK exports a last time when the process exits. The
    gauges are no longer reported then.

    Args:
        gather: Returns the present values.
        clock: The clock.
    """
    provider = otel.meter_provider()
    if provider is None:
        yield
        return
    newest = Samples()

    async def read() -> Samples:
        try:
            return await gather()
        except Exception as error:  # noqa: BLE001  # metrics must not end the coordinator, nor stay as they were for ever
            log.warning("metrics are not reported to OpenTelemetry now: %s: %s", type(error).__name__, error)
            return Samples()

    async def refresh() -> None:
        nonlocal newest
        while True:
            newest = await read()
            await clock.asleep(READ_SECONDS)

    otel.report(provider, lambda: newest, "coordinator")
    refreshing = asyncio.create_task(refresh())
    try:
        yield
    finally:
        refreshing.cancel()
        await asyncio.gather(refreshing, return_exceptions=True)
        newest = (await read()).without_gauges()  # a coordinator that has stopped has no present values
