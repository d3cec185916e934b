"""`run_graph`: run a graph durably inside a handler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel
from langgraph.types import Command, StateSnapshot

from workers.durable.records.record import Fenced
from workers.handlers.async_run import AsyncRun
from workers.handlers.facts import Stopped
from workers.integrations.langgraph.events import plain_event
from workers.integrations.langgraph.run_saver import RunSaver

CALL = "coordinator_call"  # in the metadata of a checkpoint: the call of run_graph that made it
STATE = "langgraph"  # in run.state: {"step": …, "answered": […]}

_calls: WeakKeyDictionary[AsyncRun[Any], dict[str, int]] = WeakKeyDictionary()

Graph = Pregel[Any, Any, Any, Any]


async def run_graph(
    run: AsyncRun[Any],
    graph: Graph,
    inputs: Any,
    *,
    config: RunnableConfig | None = None,
    topic: str = "resume",
    stream: Sequence[str] = (),
    emit: Callable[[str, Any], Any] = plain_event,
) -> Any:
    """Run a graph with the storage of a run, and return its values at the end.

    After a crash, a drain or a wait, the handler is called again, and the graph continues after its last saved task. A task whose
    writes were saved is not repeated. If the graph interrupts, the run waits for a signal, and the graph continues with the payload
    of the signal. A stop is raised between two steps of the graph.

    A handler may call `run_graph` several times. All calls use the same thread, so the graph remembers the earlier ones. A call
    that has ended is not repeated.

    Args:
        run: The run that the handler received.
        graph: A compiled graph. Its own checkpointer is not used.
        inputs: The inputs of the graph. They are used once, however often the handler is called.
        config: A configuration for the graph. Unless it names a thread, the graph uses a thread of the run.
        topic: The topic of the signals that answer interrupts.
        stream: The stream modes of LangGraph whose chunks are emitted with `run.emit`, for example "messages" or "custom".
        emit: A function that makes an event of plain data from a mode and a chunk. If it returns None, nothing is emitted.

    Returns:
        The values of the graph's state.

    Raises:
        Stopped: If a stop was requested, or the run is suspended or lost. Let the exception propagate.
    """
    number = _next_call(run)
    call = _Call(run, graph, f"{run.iteration}:{number}", config or {}, topic, tuple(stream), emit)
    try:
        return await call.run_to_end(inputs)
    except Fenced:
        raise Stopped("lost") from None


def _next_call(run: AsyncRun[Any]) -> int:
    """Return the number of this call among the calls of the attempt in the same turn of the run's loop."""
    numbers = _calls.setdefault(run, {})
    turn = str(run.iteration)
    numbers[turn] = numbers.get(turn, 0) + 1
    return numbers[turn]


class _Call:
    """One call of `run_graph`."""

    def __init__(
        self,
        run: AsyncRun[Any],
        graph: Graph,
        key: str,
        config: RunnableConfig,
        topic: str,
        stream: tuple[str, ...],
        emit: Callable[[str, Any], Any],
    ) -> None:
        self.run, self.key, self.topic, self.stream, self.emit = run, key, topic, stream, emit
        self.saver = RunSaver(run)
        self.graph = graph.copy({"checkpointer": self.saver})
        self.config: RunnableConfig = {
            **config,
            "configurable": {"thread_id": run.id, **config.get("configurable", {})},
            "metadata": {**config.get("metadata", {}), CALL: key},
        }
        self.answers: dict[str, Any] = {}  # by the id of the interrupt; each interrupt of a node has its own

    async def run_to_end(self, inputs: Any) -> Any:
        """Run the graph from its last checkpoint to its end, and return its values."""
        await self._receive_again()
        snapshot = await self._last_snapshot()
        next_input = inputs if snapshot is None else None
        # `snapshot.next` would leave out tasks whose writes are saved. A process may have died before it saved the next checkpoint.
        while snapshot is None or snapshot.tasks:
            if snapshot is not None and snapshot.interrupts:
                next_input = await self._answer(snapshot)
            await self._run_steps(next_input)
            snapshot, next_input = await self.graph.aget_state(self.config), None
        return snapshot.values

    async def _last_snapshot(self) -> StateSnapshot | None:
        """Return the state after the last step of this call; None if the call has not begun."""
        thread: RunnableConfig = {"configurable": {**self.config["configurable"], "checkpoint_ns": ""}}
        newest = await self.saver.aget_tuple(thread)
        if newest is None:
            return None
        if newest.metadata.get(CALL) == self.key:
            return await self.graph.aget_state(self.config)
        async for found in self.saver.alist(thread, filter={CALL: self.key}, limit=1):
            return await self.graph.aget_state(found.config)  # A later call has begun, so this one has ended.
        return None

    async def _run_steps(self, graph_input: Any) -> None:
        """Run the graph until it ends or interrupts. Emit its chunks, and stop between two steps if a stop was requested."""
        modes: Any = list(dict.fromkeys((*self.stream, "updates")))
        self._count_step()
        async for mode, chunk in self.graph.astream(graph_input, self.config, stream_mode=modes, durability="sync"):
            if mode in self.stream and (event := self.emit(mode, chunk)) is not None:
                self.run.emit(event)
            if mode == "updates":
                self._count_step()

    def _count_step(self) -> None:
        """Count a step of the graph in `run.state`, and offer a save, so that the step counts as progress of the run.

        Raises:
            Stopped: If a stop was requested.
        """
        kept = self._kept()
        self.run.state[STATE] = {**kept, "step": kept["step"] + 1}
        self.run.checkpoint()

    def _kept(self) -> dict[str, Any]:
        found: dict[str, Any] = self.run.state.get(STATE) or {"step": 0, "answered": []}
        return found

    async def _answer(self, snapshot: StateSnapshot) -> Command[Any]:
        """Wait for the answers to the open interrupts, one after the other, and return the command that continues the graph."""
        for interrupt in snapshot.interrupts:
            if interrupt.id not in self.answers:
                signal = await self.run.receive(self.topic)
                self.answers[interrupt.id] = signal.payload
                kept = self._kept()
                self.run.state[STATE] = {**kept, "answered": [*kept["answered"], [self.key, interrupt.id]]}
                await self.run.flush()
        return Command(resume={interrupt.id: self.answers[interrupt.id] for interrupt in snapshot.interrupts})

    async def _receive_again(self) -> None:
        """Receive the signals again that earlier attempts have received in this call.

        A receive is a step of the run. A resumed handler must repeat its steps in the same order, to get the saved signals.
        """
        turn = self.key.partition(":")[0]
        kept = self._kept()
        own = [one for one in kept["answered"] if one[0].partition(":")[0] == turn]
        if own != kept["answered"]:  # The steps of earlier turns are over.
            self.run.state[STATE] = {**kept, "answered": own}
        for key, id in own:
            if key == self.key:
                self.answers[id] = (await self.run.receive(self.topic)).payload
