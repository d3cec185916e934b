"""The crash matrix and the drain matrix: kill or stop a handler at each of its cuts, resume it, and compare the ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from coordinator.encoding.codec import decode
from coordinator.errors import Refused
from coordinator.model.enqueue import Inputs
from workers.handlers.context import Stopped
from workers.handlers.draft import RESULT_LIMIT
from workers.handlers.handler import Handler
from workers.handlers.messages import kept
from workers.testing.memory_run import AsyncRun, MemoryBacking, Run

R = TypeVar("R")
T = TypeVar("T")
ZOMBIE_SECONDS = 60.0  # how long the matrix waits for the attempt that falls asleep


@dataclass(frozen=True, slots=True)
class Matrix:
    """The result of a crash matrix.

    Args:
        cuts: how many cuts the handler has. It was killed once at each of them.
        result: the result of the handler.
        effects: the value that `effects` returned without a crash.
    """

    cuts: int
    result: Any
    effects: Any


def crash_matrix(
    inputs: Inputs[Any],
    resources: Callable[[], R] | None = None,
    effects: Callable[[R], Any] | None = None,
) -> Matrix:
    """Kill a handler at each of its cuts, resume it, and check that result and effects are the same as without a crash.

    In one more round, an attempt is suspended at a cut, a second attempt completes the run, and then the first attempt continues.
    That happens when a worker is suspended for longer than its lease.

    The matrix kills the handler right after a cut was saved. Work between two cuts is repeated after a crash in the middle, so
    put each effect that must not be repeated into a phase of its own, or make it safe to repeat.

    Args:
        inputs: the handler and its inputs, as in `research.inputs("tides")`.
        resources: creates the outside world: called once for each round, and passed to the handler as `run.resources`.
        effects: returns what was done to the outside world.

    Returns:
        How many cuts there were, and the result.

    Raises:
        AssertionError: a round had another result or other effects, or did not reach the same cuts; or the handler has no cut.
        Refused: `inputs` was not made by `handler.inputs(…)`.
    """
    handler = _handler_of(inputs, "crash_matrix")
    undisturbed = _Round(handler, inputs, resources, effects)
    result, backing = undisturbed.attempt()
    expected, cuts = undisturbed.effects(), len(backing.cuts)
    if not cuts:
        raise AssertionError(
            f"the handler of {handler.kind!r} has no cut, so there is nothing to kill it at: use run.phase, run.loop, "
            "run.checkpoint or run.flush, or test it without crash_matrix"
        )
    for number in range(1, cuts + 1):
        crashed = _Round(handler, inputs, resources, effects)
        crashed.crash(number)
        again, _ = crashed.attempt()
        when = f"after a crash at cut {number} of {cuts}"
        _compare(again, result, f"{when} the handler returned")
        _compare(crashed.effects(), expected, f"{when} the effects were")
    number = (cuts + 1) // 2
    disturbed = _Round(handler, inputs, resources, effects)
    again = disturbed.zombie(number)
    when = f"with an attempt that was suspended at cut {number} and woke up later"
    _compare(again, result, f"{when}, the handler returned")
    _compare(disturbed.effects(), expected, f"{when}, the effects were")
    return Matrix(cuts, result, expected)


def drain_matrix(
    inputs: Inputs[Any],
    resources: Callable[[], R] | None = None,
    effects: Callable[[R], Any] | None = None,
) -> Matrix:
    """Ask a handler to stop at each of its cuts, as a deploy does, and check that result and effects stay the same.

    In each round the worker begins to drain at another cut. The handler stops there, or at the end of its turn of `loop` if the
    turn would otherwise be repeated. Then it is resumed. Unlike in `crash_matrix`, work between two cuts is done only once, as
    long as each turn ends within the grace.

    Args:
        inputs: the handler and its inputs, as in `research.inputs("tides")`.
        resources: creates the outside world: called once for each round, and passed to the handler as `run.resources`.
        effects: returns what was done to the outside world.

    Returns:
        How many cuts there were, and the result.

    Raises:
        AssertionError: a round had another result or other effects.
        Refused: `inputs` was not made by `handler.inputs(…)`.
    """
    handler = _handler_of(inputs, "drain_matrix")
    undisturbed = _Round(handler, inputs, resources, effects)
    result, backing = undisturbed.attempt()
    expected, cuts = undisturbed.effects(), len(backing.cuts)
    for number in range(1, cuts + 1):
        drained = _Round(handler, inputs, resources, effects)
        again = drained.drain(number)
        when = f"after a drain that began at cut {number} of {cuts}"
        _compare(again, result, f"{when} the handler returned")
        _compare(drained.effects(), expected, f"{when} the effects were")
    return Matrix(cuts, result, expected)


def _handler_of(inputs: Inputs[Any], caller: str) -> Handler[..., Any]:
    if not isinstance(inputs.handler, Handler):
        raise Refused(f"{caller} needs the inputs of a handler: pass handler.inputs(…)")
    return inputs.handler


def _compare(found: Any, expected: Any, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what} {found!r}; without a crash: {expected!r}")


class _Round:
    """One run with all its attempts, in an outside world of its own."""

    def __init__(
        self,
        handler: Handler[..., Any],
        inputs: Inputs[Any],
        resources: Callable[[], Any] | None,
        effects: Callable[[Any], Any] | None,
    ) -> None:
        self._handler, self._values, self._effects = handler, dict(inputs.values), effects
        self._world = resources() if resources is not None else None
        self._run: AsyncRun | Run | None = None

    def effects(self) -> Any:
        """Return the effects of the run on its outside world."""
        return None if self._effects is None else self._effects(self._world)

    def attempt(self) -> tuple[Any, MemoryBacking]:
        """Execute the next attempt to its end. Return the result of the handler, and the backing with the saved cuts."""
        backing = MemoryBacking()
        return self._call(self._next_run(backing)), backing

    def crash(self, number: int) -> None:
        """Execute the next attempt, and crash it at a cut.

        Raises:
            AssertionError: If the handler does not reach that cut again.
        """
        backing = MemoryBacking(crash_at=number)
        try:
            self._call(self._next_run(backing))
        except BaseException:
            if not backing.dead:
                raise
        if not backing.dead:
            raise AssertionError(f"cut {number} was not reached again: the handler does not do the same each time")

    def drain(self, number: int) -> Any:
        """Execute an attempt, ask it to stop at a cut, and execute the next attempt if it stopped. Return the result."""

        def at_cut(reached: int) -> None:
            if reached == number:
                backing.stopping = Stopped("drain")

        backing = MemoryBacking(at_cut=at_cut)
        run = self._next_run(backing)
        try:
            result = self._call(run)
            if not backing.delivered:  # the handler returned before it had to stop
                return result
        except BaseException:
            if not backing.delivered:
                raise
        self._run = run.after_release()
        return self._call(self._run)

    def zombie(self, number: int) -> Any:
        """Suspend an attempt at a cut, let another attempt complete the run, then continue the first. Return the result."""
        asleep, wake = threading.Event(), threading.Event()

        def at_cut(reached: int) -> None:
            if reached == number:
                asleep.set()
                wake.wait()
                first._memory.stopping = Stopped("lost")

        first = self._next_run(MemoryBacking(at_cut=at_cut))
        sleeper = threading.Thread(target=self._call_and_ignore, args=(first,), daemon=True)
        sleeper.start()
        if not asleep.wait(ZOMBIE_SECONDS):
            raise AssertionError(f"cut {number} was not reached again within {ZOMBIE_SECONDS:.0f} s")
        try:
            return self.attempt()[0]
        finally:
            wake.set()
            sleeper.join(ZOMBIE_SECONDS)

    def _call_and_ignore(self, run: AsyncRun | Run) -> None:
        try:
            self._call(run)
        except BaseException:  # noqa: BLE001  # the end of a suspended attempt does not count
            return

    def _next_run(self, backing: MemoryBacking) -> AsyncRun | Run:
        if self._run is None:
            kind: type[AsyncRun] | type[Run] = AsyncRun if self._handler.is_async else Run
            self._run = kind(self._world, inputs=self._values, backing=backing)
        else:
            self._run = self._run.after_crash(backing)
        return self._run

    def _call(self, run: AsyncRun | Run) -> Any:
        """Call the handler in a thread of its own, so that a matrix works inside and outside of an event loop.

        Return the result of the handler, or raise its error.
        """
        ended: list[Any] = []

        def call() -> None:
            try:
                value = self._handler.function(run, **self._handler.arguments(self._values))
                value = asyncio.run(_await_value(value)) if self._handler.is_async else value
                ended.append((self._stored_and_read(value), None))
            except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
                ended.append((None, error))

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join()
        value, error = ended[0]
        if error is not None:
            raise error
        return value

    def _stored_and_read(self, value: Any) -> Any:
        """Return the result as a client gets it: encoded, decoded, and converted to its annotated type."""
        value = decode(kept(self._handler.plain_result(value), "the result", RESULT_LIMIT), "the result")
        return value if self._handler.read_result is None else self._handler.read_result(value)


async def _await_value(value: Coroutine[Any, Any, T]) -> T:
    return await value
