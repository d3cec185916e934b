"""`RunSaver`: a checkpointer for a graph inside a handler. Its storage belongs to the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol

from coordinator.errors import Refused
from coordinator.model.address import address
from coordinator.store.keys import Keys
from coordinator.store.transport.wire import Wire, drive
from workers.durable.records.record import taken_over
from workers.handlers.base_run import BaseRun
from workers.integrations.langgraph import read_plans, upkeep_plans
from workers.integrations.langgraph.save_plans import Place, Steps, TakenOver
from workers.integrations.langgraph.saver import PlainSaver

T = TypeVar("T")


class RunSaver(PlainSaver):
    """A checkpointer for a graph inside a handler, on the worker's server and with the worker's connection.

    Every write carries the token of the run. If the run belongs to another worker by now, the server refuses the write, and the
    saver raises `workers.durable.Fenced`. The checkpoints are kept as long as the run, and end with its retention. A retry or a
    revive from the start deletes them.

    While the server cannot be reached, the saver waits, as `run.flush` does.

    Args:
        run: The run that the handler received.
        serde: The serializer. Default: the serializer of LangGraph.
    """

    def __init__(self, run: BaseRun[Any], *, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        self._run = run
        # A run in memory (workers.testing) has no server, and so no owner either.
        self._carry_out: Callable[[Callable[[Keys], Steps[Any]]], Any] | None = getattr(run._backing, "carry_out", None)
        self._keys = Keys("runs", 0)
        self._wire = None if self._carry_out is not None else Wire(address(f"memory://graph-{run.id}"), 30.0)

    def _place(self, thread: str) -> Steps[Place]:
        yield from ()
        if self._carry_out is None:
            return Place(self._keys, thread)
        return Place(self._keys, thread, self._run.id, self._run.token)

    def _all_places(self) -> Steps[list[Place]]:
        return [(yield from self._place(""))]

    def _delete_for_runs(self, runs: Sequence[str]) -> Steps[None]:
        place = yield from self._place("")
        for keys, thread in (yield from read_plans.list_threads([place.keys], place.owner)):
            for run in runs:
                yield from upkeep_plans.delete_run(Place(keys, thread, place.owner, place.token), run)

    def _drive(self, make_plan: Callable[[], Steps[T]]) -> T:
        """Run a plan from a thread, and return its result.

        Raises:
            Refused: If the call is made on the worker's event loop, which must not block.
            Fenced: If the run belongs to another worker now.
        """
        if self._wire is not None:
            return drive(self._wire, make_plan())
        loop = self._run._backing.loop
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            raise Refused("a graph in an async handler must not block the event loop: use ainvoke or astream")
        return asyncio.run_coroutine_threadsafe(self._ask(make_plan), loop).result()

    async def _drive_async(self, make_plan: Callable[[], Steps[T]]) -> T:
        if self._wire is not None:
            return drive(self._wire, make_plan())
        loop = self._run._backing.loop
        if asyncio.get_running_loop() is loop:
            return await self._ask(make_plan)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._ask(make_plan), loop))

    async def _ask(self, make_plan: Callable[[], Steps[T]]) -> T:
        assert self._carry_out is not None

        def with_keys(keys: Keys) -> Steps[T]:
            self._keys = keys
            return make_plan()

        try:
            found: T = await self._carry_out(with_keys)
        except TakenOver:
            raise taken_over(self._run.id) from None
        return found
