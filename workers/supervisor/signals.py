"""A fleet as a process: listens to signals until it has ended."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from workers.process.options import WorkerOptions
from workers.program.registries import fast_runner, load_all
from workers.supervisor.fleet import Fleet
from workers.supervisor.sidecars import ALONE, Company, accompanied


def serve(places: Sequence[str], options: WorkerOptions, company: Company = ALONE) -> int:
    """Runs a fleet until it is told to stop. TERM and INT drain; a second one skips the grace. HUP rolls."""
    registry = load_all(places)  # what can't be imported is said once, here, and not by every child
    grace = max((handler.grace or 0.0 for handler in registry.handlers.values()), default=0.0)

    async def main() -> int:
        fleet = Fleet(places, options, grace=grace)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, fleet.stop)
        loop.add_signal_handler(signal.SIGHUP, fleet.roll_soon)
        async with accompanied(fleet, company):
            return await fleet.run()

    code: int = fast_runner()(main())
    return code
