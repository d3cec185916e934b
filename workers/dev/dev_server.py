"""`workers dev`: a server of this folder's own, a coordinator and workers in one terminal; changed code is taken over by a roll.

The rule of this file: code that can't start takes nothing from code that works. What is on disk is tried out in a process of its
own first; then the fleet is rolled, all its processes at once: a person waits.
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
from workers.dev.file_watcher import Watch
from workers.dev.import_trial import Verdict, tried
from workers.process.options import WorkerOptions
from workers.supervisor.fleet import Fleet
from workers.supervisor.sidecars import Beside

logger = logging.getLogger(__name__)
FIRST_PATIENCE = 5.0  # for the server to answer: a person waits


class Dev:
    """A fleet that is rolled to the newest code that can start."""

    def __init__(
        self, places: Sequence[str], options: WorkerOptions, root: Path | None = None, clock: Clock | None = None
    ) -> None:
        self._places, self._options, self._clock = places, options, clock or SystemClock()
        self._root = (root or Path.cwd()).resolve()
        self._watch = Watch(self._root, self._clock)
        self._stopping = asyncio.Event()
        self._fleet: Fleet | None = None
        self._running: asyncio.Task[int] | None = None

    def stop(self) -> None:
        """Drain. The second time without grace."""
        self._stopping.set()
        if self._fleet is not None:
            self._fleet.stop()

    async def run(self) -> int:
        """Until it is stopped. The exit code of the fleet."""
        settings = self._options.settings
        wire = AsyncWire(settings.address, settings.timeout)
        try:
            # a bad server is said before anything begins; and one of this folder's own stays until the last of us has gone
            await drive_async(wire, enter(settings), timeout=min(FIRST_PATIENCE, settings.timeout))
            async with Beside(settings, self._clock).running():
                return await self._keep_going()
        finally:
            await wire.close()

    async def _keep_going(self) -> int:
        working, stopping = asyncio.create_task(self._work()), asyncio.create_task(self._stopping.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await _cancelled(working)
        if not self._stopping.is_set():
            self.stop()  # a mistake of ours: the runs go back before it is said
        code = 0 if self._running is None else await self._running
        if not working.cancelled():
            working.result()
        return code

    async def _work(self) -> None:
        """One version of the code after the other."""
        while True:
            verdict = await tried(self._places)
            self._watch.also(verdict.files)
            if verdict.problem:
                then = "the code before it goes on" if self._fleet else "nothing runs yet"
                logger.error("%s\n%s: mend it and save", verdict.problem, then)
            elif self._fleet is None:
                self._start(verdict)
            else:
                await self._roll(self._fleet)
            self._say_changed(await self._watch.changed())

    def _say_changed(self, files: Sequence[str]) -> None:
        shown = ", ".join(os.path.relpath(file, self._root) for file in files[:3])
        logger.info("changed: %s%s", shown, f" and {len(files) - 3} more" if files[3:] else "")

    def _start(self, verdict: Verdict) -> None:
        fleet = self._fleet = Fleet(self._places, self._options, self._clock, grace=verdict.grace)
        self._running = asyncio.create_task(fleet.run())
        # one that ends by itself has a reason: said when all is over
        self._running.add_done_callback(lambda _: None if fleet.stopping else self.stop())

    async def _roll(self, fleet: Fleet) -> None:
        """Takes over what is on disk. Why it can't be is said by the roll itself."""
        await fleet.begun.wait()
        began = self._clock.monotonic()
        rolled = await fleet.roll(self._options.processes)
        if not rolled.trouble:
            logger.info("reloaded in %.1f s", self._clock.monotonic() - began)
        elif rolled.replaced:
            logger.error("the new code is at work all the same: mend it and save")
        else:
            logger.error("the code before it goes on: mend it and save")


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancels until it has ended: on 3.11 one cancel may be lost inside a timeout that ends at the same moment."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.5)
