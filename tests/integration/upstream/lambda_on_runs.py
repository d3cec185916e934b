"""A plugin of pytest that runs the tests of pydantic-ai-harness's engine for AWS Lambda against `RunDurability`.

The tests call an agent inside `run_durable`, look at the steps of a fake Lambda context, and resume from its journal. Here
`run_durable` calls the agent in a run in memory, and its phases are the steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pydantic_ai_harness.aws_lambda as engine
from aws_durable_execution_sdk_python.exceptions import ExecutionError

from workers import testing
from workers.handlers.checkpoint.draft import Draft
from workers.handlers.checkpoint.phase_table import PhaseTable
from workers.handlers.current_run import entered_run
from workers.integrations.pydantic_ai import RunDurability


class RecordedRun(testing.AsyncRun):
    """A run in memory that records its phases as the operations of a fake Lambda context."""

    context: Any

    async def phase(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        field, operations = f"phase:-:{name}#0", type(self.context).step.__globals__["Operation"]
        shown = name.split(" ")[0]
        saved = field in self._draft.phases
        if not saved:
            self.context.invoked.append(shown)
        operation = operations(name=shown, status="succeeded")
        self.context.operations.append(operation)
        try:
            value = await super().phase(name, fn, *args, **kwargs)
        except BaseException as error:
            operation.status, operation.error = "failed", error
            raise
        operation.payload = (field, self._draft.phases[field])
        return value


def run_durable(main: Callable[[], Awaitable[Any]], *, context: Any, **options: Any) -> Any:
    """Call an agent in a run whose checkpoint has the completed operations of the context's journal."""
    draft = Draft()
    draft.phases = PhaseTable(
        dict(operation.payload for operation in context.journal if operation.status == "succeeded")
    )
    run = RecordedRun(draft=draft)
    run.context = context

    async def call() -> Any:
        with entered_run(run):
            return await main()

    return asyncio.run(call())


class Durability(RunDurability[Any]):
    """`RunDurability` with the parameters of the engine for AWS Lambda, and the words of its error messages."""

    engine_spec = replace(
        RunDurability.engine_spec,
        engine_name="AWS Lambda",
        durable_unit_noun="step",
        tool_config_key="aws_lambda",
        serialization_failure=lambda error: ExecutionError(str(error)),
    )

    def __init__(self, *, step_config: Any = None, **options: Any) -> None:
        super().__init__(**options)


def durable_agent_handler(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Return a plain handler for Lambda that calls an async handler in a run."""
    return lambda event, context: run_durable(lambda: handler(event, context), context=context)


def pytest_configure() -> None:
    """Replace the engine before the tests import it."""
    engine.AWSLambdaDurability = Durability  # type: ignore[misc, assignment]
    engine.run_durable = run_durable  # type: ignore[assignment]
    engine.durable_agent_handler = durable_agent_handler  # type: ignore[assignment]
