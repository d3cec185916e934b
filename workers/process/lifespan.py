"""Open the resources of a worker's registry."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from coordinator.errors import NotConfigured
from workers.handlers.registry import Registry
from workers.process.stopping.shutdown import Shutdown
from workers.process.tasks import TaskSet


async def open_resources(stack: AsyncExitStack, registry: Registry[Any], shutdown: Shutdown, tasks: TaskSet) -> Any:
    """Enter the lifespans of a registry. A shutdown cancels a lifespan that does not finish opening.

    Args:
        stack: The exit stack of the worker, which closes the resources.
        registry: The registry with the lifespans.
        shutdown: The shutdown of the worker, which cancels the opening.
        tasks: Holds background tasks.

    Returns:
        The resources by kind, or None if the worker was stopped meanwhile.

    Raises:
        NotConfigured: If a lifespan raised an error.
    """
    task, opening = asyncio.current_task(), True
    assert task is not None

    def cancel(_: asyncio.Task[Any]) -> None:
        if opening:
            task.cancel()

    stopping = tasks.spawn(shutdown.wait_requested())
    stopping.add_done_callback(cancel)
    try:
        return await stack.enter_async_context(registry.resources())
    except asyncio.CancelledError:
        if not shutdown.is_requested():
            raise
        task.uncancel()
    except (Exception, SystemExit) as error:
        if not shutdown.is_requested():
            raise NotConfigured(f"the lifespan raised {type(error).__name__}: {error}; no run was claimed") from error
    finally:
        opening = False
        stopping.cancel()
