"""A plugin of pytest that runs the tests of pydantic-ai-harness for DBOS against `RunDurability`.

The tests call a workflow twice with the same id, and look at its steps. Here a workflow is called in a run in memory, and its steps
are the phases of the run. The second call resumes the run from its checkpoint after the first call, so the workflow is really
executed again. DBOS itself is not installed: modules with its names take its place.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import iscoroutinefunction
from types import ModuleType
from typing import Any

from workers import testing
from workers.handlers.current_run import entered_run
from workers.integrations.pydantic_ai import RunDurability

_runs: dict[str, testing.AsyncRun] = {}
_id: ContextVar[str] = ContextVar("workflow_id")


@contextmanager
def set_workflow_id(id: str) -> Iterator[None]:
    token = _id.set(id)
    try:
        yield
    finally:
        _id.reset(token)


class DBOS:
    """The parts of DBOS that the tests use."""

    def __init__(self, config: Any) -> None:
        _runs.clear()

    @staticmethod
    def launch() -> None:
        """Do nothing: a run in memory needs no server."""

    @staticmethod
    def destroy() -> None:
        """Do nothing."""

    @staticmethod
    def workflow(name: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator that calls a function in the run of the current workflow id."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(function)
            async def call(*args: Any) -> Any:
                before = _runs.get(_id.get())
                run = _runs[_id.get()] = testing.AsyncRun() if before is None else before.after_crash()
                with entered_run(run):
                    called = function(*args)
                    return await called if isinstance(called, Awaitable) else called

            if iscoroutinefunction(function):
                return call
            return wraps(function)(lambda *args: asyncio.run(call(*args)))

        return decorate

    def list_workflow_steps(self, id: str) -> list[dict[str, str]]:
        """Return the names of the phases of a workflow, as the steps of DBOS."""
        fields = _runs[id]._draft.phases
        return [{"function_name": field.removeprefix("phase:-:").split(" ")[0].partition("#")[0]} for field in fields]

    async def list_workflow_steps_async(self, id: str) -> list[dict[str, str]]:
        """Return the names of the phases of a workflow, as the steps of DBOS."""
        return self.list_workflow_steps(id)


def pytest_configure() -> None:
    """Put the modules in place before the tests import them."""
    dbos, engine = ModuleType("dbos"), ModuleType("pydantic_ai.durable_exec.dbos")
    dbos.DBOS, dbos.DBOSConfig, dbos.SetWorkflowID = DBOS, dict, set_workflow_id  # type: ignore[attr-defined]
    engine.DBOSDurability = RunDurability  # type: ignore[attr-defined]
    sys.modules |= {"dbos": dbos, "pydantic_ai.durable_exec.dbos": engine}
