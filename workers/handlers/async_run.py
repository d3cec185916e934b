"""The run that an async handler receives."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from coordinator.client.async_client import AsyncClient
from coordinator.client.handles import AsyncHandle
from coordinator.client.parent import remember_child
from coordinator.encoding.codec import decode
from coordinator.model.enqueue import HandlerOf, Inputs
from workers.handlers.base_run import BaseRun, R_co
from workers.handlers.checkpoint.draft import RESULT_LIMIT, current_phase
from workers.handlers.checkpoint.messages import encode_plain
from workers.handlers.operations.children import ChildOptions, Done
from workers.handlers.operations.effects import NotDone, Postponed, is_not_done
from workers.handlers.operations.enqueues import RunOptions
from workers.handlers.operations.limits import AsyncLimit, Limit
from workers.handlers.operations.parallel import ParallelPhases
from workers.handlers.operations.waits import MISSING, Signal

P = ParamSpec("P")
T = TypeVar("T")

_closing: set[asyncio.Task[None]] = set()  # the event loop itself keeps no reference to a task


class AsyncRun(BaseRun[R_co]):
    """The run that an async handler receives. The handler runs on the worker's event loop, so it must not block."""

    async def flush(self) -> None:
        """Save messages, state, iteration and phases, and return when they are durable. This is a cut.

        While the server cannot be reached, `flush` waits.

        Raises:
            Stopped: If a stop was requested. If the current turn of `loop` has changed the messages or the state, and no tool call
                is open, a drain is raised only at the end of the turn.
            NotPlain: If the state contains a value that cannot be stored.
            TooLarge: If the checkpoint is larger than 64 MiB.
            Unreadable: If the stored checkpoint is damaged, so that nothing can be added to it.
        """
        await self._save_now(self._draft.resumes_without_repeating)

    async def _save_now(self, may_drain: Callable[[], bool]) -> None:
        # The cut is offered before flush waits. If flush raises a stop, the worker still saves this cut with the release.
        await self._backing.flush(self._draft.cut(), may_drain)
        await self._backing.wait_until_confirmed(may_drain)
        self._backing.raise_stop(may_drain)

    async def loop(self, limit: int) -> AsyncIterator[int]:
        """Iterate over the turns of the run, with a cut after each turn.

        A resumed run continues with the turn after the last saved one.

        Args:
            limit: The number of turns. The turns are numbered from 0, as in `range(limit)`.

        Returns:
            An async iterator over the numbers of the turns.

        Raises:
            Stopped: At the beginning or the end of a turn, if a stop was requested.
            Refused: If the run already has a loop, or if `loop` is called inside a phase.
        """
        turns = self._turns(limit)
        if self._draft.bookkeeping.left:
            await self._children.end_turn()
        for turn in turns:
            await self._backing.wait_until_confirmed(self._draft.resumes_without_repeating)
            self._raise_stop()
            if self._spends:
                await self._budgets.enforce(others=self._parallel)
            self._draft.begin_turn(turn)
            yield turn
            self._end_turn(turn)
            if self._draft.bookkeeping.left:
                await self._children.end_turn()

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
            The output of the function, as it is read back from the store. The output must be plain data of at most 8 MiB.

        Raises:
            Stopped: If a stop was requested.
            NotPlain: If the output is not plain data.
            TooLarge: If the output or the checkpoint is too large.
            Refused: If the name is not valid, if a phase of this name is still running, or if a resumed run could not tell two
                phases of this name apart.

        Phases of different names may run at the same time. While the worker drains, no other phase begins beside them, and the
        stop is raised when the last of them has ended.
        """
        field = self._draft.begin_phase(name)
        if field in self._draft.phases:
            self._draft.end_phase(field, self._draft.phases[field])
            return decode(self._draft.phases[field], name)
        output, inner = None, bool(current_phase.get())
        try:
            await self._enter_phase(inner)
            if self._spends:
                await self._budgets.enforce(field.rpartition("#")[0], inner=inner, others=self._parallel)
            with self._parallel.running(field, inner):
                inside = current_phase.set(field)
                try:
                    with self._step("phase", name):
                        value = await _call(fn, args, kwargs, self._backing.threads)
                finally:
                    current_phase.reset(inside)
                output = encode_plain(value, f"the output of phase {name!r}", RESULT_LIMIT)
        finally:
            self._draft.end_phase(field, output)
        await self._save_now(self._may_drain)
        return decode(output, name)

    async def _enter_phase(self, inner: bool) -> None:
        """Wait until the function of a phase may be called.

        While the worker drains, a phase does not begin beside phases that are still running: it waits until they have ended.

        Args:
            inner: True if the phase is inside another phase. Such a phase does not wait, because others may wait for it.

        Raises:
            Stopped: If a stop was requested.
        """
        await self._backing.wait_until_confirmed(self._may_drain)
        stop = self._backing.stopping
        if stop is not None and stop.why == "drain" and not self._backing.delivered and not inner and self._parallel:
            await self._parallel.wait_until_ended()
            raise self._backing.stopping or stop  # each phase that waited here gets the stop, not only the first one
        self._raise_stop()

    def _ask_for_grants(self, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Ask the server for grants, and wait for the answer. On the event loop, only make the budget ask for grants later.

        The event loop must not block. So the budget asks when new work begins.

        Args:
            ask: Makes the coroutine that asks the server for grants.
        """
        if asyncio._get_running_loop() is None:
            self._wait_in_thread(ask())
        else:
            self._budgets.look_soon()

    def _wait_in_thread(self, awaitable: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(awaitable, self._backing.loop).result()

    def _may_drain(self) -> bool:
        """Return False if a drain must not stop the handler at this phase, because work of this attempt would be repeated."""
        return self._draft.resumes_without_repeating() and (bool(current_phase.get()) or not self._parallel)

    @cached_property
    def _parallel(self) -> ParallelPhases:
        return ParallelPhases()

    @overload
    async def once(
        self,
        name: str,
        fn: Callable[..., Coroutine[Any, Any, T]],
        /,
        *args: Any,
        check: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def once(
        self, name: str, fn: Callable[..., T], /, *args: Any, check: Callable[..., Any] | None = None, **kwargs: Any
    ) -> T: ...
    async def once(
        self, name: str, fn: Callable[..., Any], /, *args: Any, check: Callable[..., Any] | None = None, **kwargs: Any
    ) -> Any:
        """Call a function that has an effect on the outside world, at most once per run, and save its output.

        Before the call the effect is saved as begun, and after the call as done. Both saves are cuts. If the effect is done, return
        its output without a call, in this and in all later attempts, turns and lives of the run. If an earlier call has begun the
        effect, and its end was not saved, the function is not called again, unless `check` answers NotDone.

        Args:
            name: The name of the effect, 1 to 200 printable characters. It names one effect in the whole run: in a loop each effect
                needs its own name, for example `f"charge {order.id}"`.
            fn: The function to call. A coroutine function is awaited; a plain function runs in a thread.
            *args: Positional arguments of the function.
            check: Finds out whether an effect that was begun has taken place. It is called with the arguments of the function, and
                returns the output of the effect, or returns or raises NotDone. After NotDone the function is called again. This is
                safe only if the other system recognises `run.effect_key(name)`: an old, paused worker may still be in its call.
            **kwargs: Keyword arguments of the function.

        Returns:
            The output, as it is read back from the store. The output must be plain data of at most 1 MiB.

        Raises:
            OutcomeUnknown: If the effect was begun, its end was not saved, and there is no `check`. The run fails; no retry policy
                retries it.
            Exception: The exception of the function or of `check`. The effect stays begun.
            Stopped: If a stop was requested.
            NotPlain: If the output is not plain data. The effect stays begun.
            TooLarge: If the output or the checkpoint is too large.
            Refused: If the name is not valid, if an effect of this name is running or was called with other arguments, or if the
                run waits.
        """
        effect, threads = self._effects.enter(name, args, kwargs), self._backing.threads
        inner = bool(current_phase.get())
        try:
            if effect.is_done:
                return effect.output()
            await self._enter_phase(inner)
            if self._spends:
                await self._budgets.enforce(f"effect:{name}", inner=inner, others=self._parallel)
            if effect.is_begun:
                if check is None:
                    raise effect.unknown()
                try:
                    found = await _call(check, args, kwargs, threads)
                except NotDone:
                    found = NotDone
                if not is_not_done(found):
                    return await effect.finish(found, self._may_drain)
            with self._parallel.running(f"effect:{name}", inner):
                await effect.begin()
                with self._step("once", name):
                    while (value := await _call(effect.guard(fn), args, kwargs, threads)) is Postponed:
                        await effect.begin()
            return await effect.finish(value, self._may_drain)
        finally:
            effect.leave()

    def limit(self, name: str, *, cost: int = 1) -> contextlib.AbstractAsyncContextManager[Limit]:
        """Wait until an external call may start under the limit of a name, which all processes share.

        `async with run.limit("openai", cost=1200) as limit:` runs the block when 1,200 tokens and a place are free.

        The name needs a rate, which `coordinator rate set` or `client.set_rate` sets. While the call waits, the run keeps its slot.
        A stop ends the wait immediately; a drain that would make the next attempt repeat work of this turn ends it after two
        seconds. A call that was stopped before it started gives back the tokens that it had reserved. A call whose process dies has
        used its tokens, and its place is free when its worker is recovered. A limit is allowed inside phases, and in all tasks of
        the handler.

        Args:
            name: The name of the limit.
            cost: The tokens to reserve, for example the estimated tokens of a model. Assign the real number to `limit.cost` in the
                block.

        Returns:
            An async context manager that gives a `Limit`.

        Raises:
            NotConfigured: If the name has no rate. The call never starts without a limit.
            BadOption: If the cost is not valid, or above the burst of the rate.
            BadName: If the name is not valid.
            Stopped: If a stop was requested. Let the exception propagate.
        """
        return AsyncLimit(self._backing, name, cost, self._draft.resumes_without_repeating)

    @overload
    async def receive(self, *topics: str, timeout: float | timedelta | None = None) -> Signal: ...
    @overload
    async def receive(self, *topics: str, timeout: float | timedelta | None = None, default: T) -> Signal | T: ...
    async def receive(self, *topics: str, timeout: float | timedelta | None = None, default: Any = MISSING) -> Any:
        """Wait for a signal, and return it. Signals of a topic are received once and in the order in which they were sent.

        While the run waits for longer than the handler's `linger`, it is suspended: the handler is stopped with `Stopped`, and is
        called again from its first line when a signal was sent. A signal that was sent before the run waits, or before it
        started, is kept. A receive is a step like a phase: a later attempt gets the same signal immediately. Every receive that has
        to wait begins with a cut.

        Args:
            *topics: The topics to wait for. With several topics, the signal that was sent first is returned.
            timeout: How long to wait, in seconds or as a timedelta. The time counts from the first check for signals, and continues
                while the run is suspended. None waits without a limit. 0 checks once without waiting, and is allowed inside phases
                and other tasks too.
            default: The value to return after the timeout instead of raising WaitTimeout.

        Returns:
            The signal, or the default.

        Raises:
            WaitTimeout: If no signal was sent in time, and there is no default.
            Stopped: If a stop was requested, or the run is suspended. Let the exception propagate.
            Refused: If `receive` is called inside a phase, outside of the handler's own task, or while another wait is under way.
            BadName: If a topic is not a valid name.
            BadOption: If the timeout is negative or longer than 100 years.
            BadSignal: If the payload does not fit the type that the handler declares for the topic.
        """
        with self._step("receive", ", ".join(map(str, topics))):
            return await self._waits.receive(topics, timeout, default)

    async def sleep(self, seconds: float | timedelta | None = None, *, until: datetime | None = None) -> None:
        """Sleep for a given time, or until a given date. Days and months are normal, because a suspended run occupies no slot.

        The end of the sleep is a time of the server's clock, and is saved before the run sleeps. An interrupted run continues
        its sleep and does not start the sleep again. A sleep that is longer than the handler's `linger` suspends the run, as in
        `receive`.

        Args:
            seconds: How long to sleep, in seconds or as a timedelta, from 0 seconds to 100 years.
            until: The end of the sleep, a datetime with a time zone. A time in the past ends the sleep immediately.

        Raises:
            Stopped: If a stop was requested, or the run is suspended. Let the exception propagate.
            Refused: If `sleep` is called inside a phase, outside of the handler's own task, or while another wait is under way.
            BadOption: If the time is not valid, or if both arguments or none of them are given.
        """
        with self._step("sleep"):
            await self._waits.sleep(seconds, until)

    async def gather(
        self,
        name: str,
        children: Sequence[Inputs[Any]],
        *,
        at_once: int | None = None,
        return_failures: bool = False,
        **options: Unpack[ChildOptions],
    ) -> list[Any]:
        """Run children, wait until all of them have ended, and return their results in the order of the inputs.

        If the run waits for longer than the handler's `linger`, it is suspended as in `receive`, and occupies no slot. A gather is
        a step like a phase: after a crash the handler finds the same children again. The results of the children stay on the
        server until the turn of `loop` or the run ends. If the run ends before its children, the children are cancelled.

        Args:
            name: The name of the step, 1 to 200 printable characters. Steps of the same name are told apart by their order, and
                inside `loop` also by the turn.
            children: The children, each made by `handler.inputs(…)`, or a pair of a kind and its inputs.
            at_once: How many children are enqueued at a time. None enqueues all of them.
            return_failures: Return a ChildFailed in the place of each child that did not complete, instead of raising.
            **options: Options of `enqueue` for the children: queue, priority, delay, at, expires, retention, schema, meta.

        Returns:
            The results.

        Raises:
            ChildFailed: If a child did not complete. It is raised when all children have ended, for the first such child.
            TreeCancelled: If the run was cancelled together with its tree. Let the exception propagate.
            Stopped: If a stop was requested, or the run is suspended. Let the exception propagate.
            Refused: If `gather` is called inside a phase, outside of the handler's own task, or while another wait is under way.
            BadOption: If an option is not valid, or an idempotency key is given: children have no such key.
        """
        step = self._begin_children(name, children, options, at_once)
        with self._step("gather", name):
            results = await step.gather(return_failures)
        if self._spends:
            await self._budgets.count_children()
        return results

    async def as_completed(
        self,
        name: str,
        children: Sequence[Inputs[Any]],
        *,
        at_once: int | None = None,
        **options: Unpack[ChildOptions],
    ) -> AsyncIterator[Done]:
        """Run children, and iterate over them in the order in which they end.

        The order is stored: a later attempt iterates over the same children in the same order, from the first one on. It
        executes the loop again for each child. So keep values that the loop computes in local variables or in phases, and not in
        `run.state`.

        Args:
            name: The name of the step, as for `gather`.
            children: The children, as for `gather`.
            at_once: How many children are enqueued at a time. None enqueues all of them.
            **options: Options of `enqueue` for the children, as for `gather`.

        Returns:
            An async iterator over the children that have ended.

        Raises:
            Stopped: If a stop was requested, or the run is suspended. Let the exception propagate.
            TreeCancelled: As for `gather`.
            Refused: As for `gather`.
            BadOption: As for `gather`.
        """
        async for done in self._begin_children(name, children, options, at_once).as_completed():
            yield done
        if self._spends:
            await self._budgets.count_children()

    @overload
    async def enqueue(self, inputs: Inputs[T], /, **options: Unpack[RunOptions]) -> AsyncHandle[T]: ...
    @overload
    async def enqueue(
        self, handler: HandlerOf[T], /, inputs: Mapping[str, Any] | None = None, **options: Unpack[RunOptions]
    ) -> AsyncHandle[T]: ...
    @overload
    async def enqueue(
        self, kind: str, /, inputs: Mapping[str, Any] | None = None, **options: Unpack[RunOptions]
    ) -> AsyncHandle[Any]: ...
    async def enqueue(
        self,
        what: Inputs[Any] | HandlerOf[Any] | str,
        /,
        inputs: Mapping[str, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> AsyncHandle[Any]:
        """Enqueue an independent run, with this run as its parent, and do not wait for the new run.

        An enqueue is a step like a phase: a resumed handler does not enqueue the run a second time. The call makes
        two cuts: the first saves the id of the new run, the second saves the server's answer. The new run continues when this run
        ends. A cancel of this run's tree cancels the new run too. While the server cannot be reached, `enqueue` waits.

        The process may end after it has saved the id and before it has saved the answer. If this run is resumed so late that the
        server refuses the id (after 60 % of the retention of the new run: 14 hours by default), `enqueue` enqueues a run with a
        new id, although the run with the first id may have been executed.

        Args:
            what: `handler.inputs(…)`, a handler, or the kind of the run.
            inputs: The inputs of the run, where `what` is a handler or a kind: a dict of values by name.
            **options: Options as for `Client.enqueue`: queue, priority, delay, at, expires, key, key_ttl, retention, schema, meta.

        Returns:
            A handle of the new run. The handle works until the handler of this run ends.

        Raises:
            Stopped: If a stop was requested.
            KeyConflict: If the key belongs to a run with other inputs.
            TreeCancelled: If the run was cancelled together with its tree. Let the exception propagate.
            Refused: If `enqueue` is called inside a phase, outside of the handler's own task, or while a wait is under way.
            BadOption: If an option is not valid.
        """
        handler, enqueueing = self._enqueues.begin(what, inputs, options)
        id, created = await enqueueing
        remember_child(id)
        return AsyncHandle(
            self._client, id, created, getattr(handler, "read_result", None), getattr(handler, "write_signal", None)
        )

    @cached_property
    def _client(self) -> AsyncClient:
        """The client behind the handles of `enqueue`. It is closed when the handler has ended."""
        client = AsyncClient()
        self._backing.call_at_end(lambda: _close_soon(client))
        return client


def _close_soon(client: AsyncClient) -> None:
    task = asyncio.get_running_loop().create_task(client.close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)


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
