"""The background tasks of a worker process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


class TaskSet:
    """Hold references to running tasks. An event loop itself holds only weak references to its tasks."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task, hold a reference to it until it ends, and return it."""
        return self.hold(asyncio.get_running_loop().create_task(work))

    def hold(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        """Hold a reference to a task until the task ends, and return the task."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and return when all have ended.

    The cancellation is repeated, because on Python 3.11 a timeout that expires at the same moment can swallow it.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.5)
