"""Run a supervisor as a process, until a signal stops it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from workers.process.options import WorkerOptions
from workers.program.registries import fast_runner, load_all
from workers.supervisor.sidecars import NO_SIDECARS, SidecarOptions, run_sidecars
from workers.supervisor.supervisor import Supervisor


def serve(registries: Sequence[str], options: WorkerOptions, sidecars: SidecarOptions = NO_SIDECARS) -> int:
    """Run a supervisor until it is stopped, and return its exit code.

    SIGTERM and SIGINT drain the worker processes, and a second one skips the grace. SIGHUP rolls the worker processes.

    Args:
        registries: The names of the registries, each as MODULE:REGISTRY.
        options: The options of each worker.
        sidecars: The endpoints and the coordinator to run in the process of the supervisor.

    Raises:
        BadOption: If a registry can't be imported.
    """
    registry = load_all(registries)  # so that an import error is reported once, here, and not by every worker process
    grace = max((handler.grace or 0.0 for handler in registry.handlers.values()), default=0.0)

    async def main() -> int:
        supervisor = Supervisor(registries, options, grace=grace)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, supervisor.stop)
        loop.add_signal_handler(signal.SIGHUP, supervisor.roll_soon)
        async with run_sidecars(supervisor, sidecars):
            return await supervisor.run()

    code: int = fast_runner()(main())
    return code
