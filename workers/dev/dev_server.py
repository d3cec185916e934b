"""`workers dev`: a local server, a coordinator and workers in one terminal. New workers replace the old ones when code changes.

Changed code is first imported in a process of its own. If that fails, the old workers continue. If it succeeds, the pool is
rolled, all processes at the same time, because a person waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from coordinator.clock import Clock, SystemClock
from coordinator.store.server_checks import enter
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.dev.file_watcher import FileWatcher
from workers.dev.import_trial import TrialResult, try_import
from workers.process.options import WorkerOptions
from workers.supervisor.sidecars import EmbeddedCoordinator
from workers.supervisor.supervisor import Supervisor

logger = logging.getLogger(__name__)
CONNECT_SECONDS = 5.0  # a person waits for the server's first answer


class DevServer:
    """A supervisor that is rolled to the newest code that can start.

    Args:
        registries: The names of the registries, each as MODULE:REGISTRY.
        options: The options of each worker.
        root: The folder whose Python files are watched; the current folder by default.
        clock: The time source; the system's clock by default.
    """

    def __init__(
        self, registries: Sequence[str], options: WorkerOptions, root: Path | None = None, clock: Clock | None = None
    ) -> None:
        self._registries, self._options, self._clock = registries, options, clock or SystemClock()
        self._root = (root or Path.cwd()).resolve()
        self._watcher = FileWatcher(self._root, self._clock)
        self._stopping = asyncio.Event()
        self._supervisor: Supervisor | None = None
        self._running: asyncio.Task[int] | None = None

    def stop(self) -> None:
        """Drain the workers. The second call skips the grace."""
        self._stopping.set()
        if self._supervisor is not None:
            self._supervisor.stop()

    async def run(self) -> int:
        """Run the dev server until it is stopped, and return the exit code of its supervisor."""
        settings = self._options.settings
        wire = AsyncWire(settings.address, settings.timeout)
        try:
            # The server is checked before the workers start. An embedded server runs until this connection is closed.
            await drive_async(wire, enter(settings), timeout=min(CONNECT_SECONDS, settings.timeout))
            async with EmbeddedCoordinator(settings, self._clock).running():
                return await self._run_until_stopped()
        finally:
            await wire.close()

    async def _run_until_stopped(self) -> int:
        reloading, stopping = asyncio.create_task(self._reload_changes()), asyncio.create_task(self._stopping.wait())
        await asyncio.wait({reloading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await _cancel(reloading)
        if not self._stopping.is_set():
            self.stop()  # reloading has failed: the workers release their runs before the error is raised
        code = 0 if self._running is None else await self._running
        if not reloading.cancelled():
            reloading.result()
        return code

    async def _reload_changes(self) -> None:
        """Start the workers with the code on disk, then roll them after each change of the code."""
        while True:
            trial = await try_import(self._registries)
            self._watcher.watch_also(trial.files)
            if trial.problem:
                then = "the workers continue with the previous code" if self._supervisor else "no worker is running yet"
                logger.error("%s\n%s: fix the code and save", trial.problem, then)
            elif self._supervisor is None:
                self._start(trial)
            else:
                await self._roll(self._supervisor)
            self._log_changes(await self._watcher.wait_for_change())

    def _log_changes(self, files: Sequence[str]) -> None:
        shown = ", ".join(os.path.relpath(file, self._root) for file in files[:3])
        logger.info("changed: %s%s", shown, f" and {len(files) - 3} more" if files[3:] else "")

    def _start(self, trial: TrialResult) -> None:
        supervisor = self._supervisor = Supervisor(self._registries, self._options, self._clock, grace=trial.grace)
        self._running = asyncio.create_task(supervisor.run())
        # A supervisor that ends by itself has failed. Its error is raised when all other tasks have stopped.
        self._running.add_done_callback(lambda _: None if supervisor.stopping else self.stop())

    async def _roll(self, supervisor: Supervisor) -> None:
        """Roll all workers to the code on disk, and log the result. The roll itself logs the reason of a failure."""
        await supervisor.started.wait()
        began = self._clock.monotonic()
        result = await supervisor.roll(self._options.processes)
        if not result.problem:
            logger.info("reloaded in %.1f s", self._clock.monotonic() - began)
        elif result.replaced:
            logger.error("the workers run the new code, with this problem: fix the code and save")
        else:
            logger.error("the workers continue with the previous code: fix the code and save")


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task again and again until it has ended. On Python 3.11 a timeout at the same moment may swallow a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.5)
