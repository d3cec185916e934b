"""The run that an async handler receives."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, ParamSpec, TypeVar, overload

from coordinator.encoding.codec import decode
from workers.handlers.context import BaseRun, R_co
from workers.handlers.draft import RESULT_LIMIT
from workers.handlers.messages import kept

P = ParamSpec("P")
T = TypeVar("T")


class AsyncRun(BaseRun[R_co]):
    """The run that an async handler receives. The handler runs on the worker's event loop, so it must not block."""

    async def flush(self) -> None:
        """Save messages, state, iteration and phases, and return when they are durable. This is a cut.

        While the server cannot be reached, `flush` waits.

        Raises:
            Stopped: If a stop was requested. A drain inside a turn of `loop` that has changed the messages or the state, and has
                left no tool call open, is raised at the end of the turn instead.
            NotPlain: If the state contains a value that cannot be stored.
            TooLarge: If the checkpoint is larger than 64 MiB.
            Unreadable: If the stored checkpoint is damaged, so that nothing can be added to it.
        """
        await self._save_now()
        self._raise_stop()

    async def _save_now(self) -> None:
        # The cut is offered before flush waits. If flush raises a stop, the worker still saves this cut with the release.
        await self._backing.flush(self._draft.cut(), self._draft.resumes_without_repeating)
        await self._backing.wait_until_confirmed(self._draft.resumes_without_repeating)

    async def loop(self, limit: int) -> AsyncIterator[int]:
        """Iterate over the turns of the run, with a cut after each turn.

        A resumed run continues with the turn after the last saved one.

        Args:
            limit: The number of turns. The turns are numbered from 0, as in `range(limit)`.

        Returns:
            An async iterator over the numbers of the turns.

        Raises:
            Stopped: At the beginning or the end of a turn, if a stop was requested.
            Refused: If the run already has a loop, or if it is called inside a phase.
        """
        for turn in self._turns(limit):
            await self._backing.wait_until_confirmed(self._draft.resumes_without_repeating)
            self._raise_stop()
            self._draft.begin_turn(turn)
            yield turn
            self._end_turn(turn)

    @overload
    async def phase(
        self, name: str, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def phase(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def phase(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function once per run, and save its output. The end of a phase is a cut.

        If the output has been saved by an earlier attempt, return it without calling the function.

        Args:
            name: The name of the phase, 1 to 200 printable characters. Phases of the same name are told apart by their order,
                and inside `loop` also by the turn.
            fn: The function to call. A coroutine function is awaited; a plain function runs in a thread.
            *args: Positional arguments of the function.
            **kwargs: Keyword arguments of the function.

        Returns:
            The output of the function as it comes back from the store. It must be plain data of at most 8 MiB.

        Raises:
            Stopped: If a stop was requested.
            NotPlain: If the output is not plain data.
            TooLarge: If the output or the checkpoint is too large.
            Refused: If the name is not valid, if a phase of this name is still running, or if a resumed run could not tell two
                phases of this name apart.
        """
        field = self._draft.begin_phase(name)
        if field in self._draft.phases:
            self._draft.end_phase(field, self._draft.phases[field])
            return decode(self._draft.phases[field], name)
        output = None
        try:
            await self._backing.wait_until_confirmed(self._draft.resumes_without_repeating)
            self._raise_stop()
            value = await _call(fn, args, kwargs, self._backing.threads)
            output = kept(value, f"the output of phase {name!r}", RESULT_LIMIT)
        finally:
            self._draft.end_phase(field, output)
        await self._save_now()
        self._raise_stop()
        return decode(output, name)


async def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], threads: Executor | None) -> Any:
    """Call a function, and return its result. Await a coroutine function; run a plain function in a thread."""
    if inspect.iscoroutinefunction(fn):
        return await fn(*args, **kwargs)
    context = contextvars.copy_context()
    value = await asyncio.get_running_loop().run_in_executor(
        threads, lambda: context.run(_call_plain, fn, args, kwargs)
    )
    return await value if isinstance(value, Awaitable) else value


def _call_plain(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a plain function, and return its result.

    Raises:
        RuntimeError: If the function raised StopIteration, which a future cannot hold.
    """
    try:
        return fn(*args, **kwargs)
    except StopIteration as stop:
        raise RuntimeError(f"{fn!r} raised StopIteration") from stop
