"""The run that a plain handler receives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from coordinator.client.client import Client
from coordinator.client.handles import Handle
from coordinator.client.parent import remember_child
from coordinator.encoding.codec import decode
from coordinator.model.enqueue import HandlerOf, Inputs
from workers.handlers.base_run import BaseRun, R_co
from workers.handlers.checkpoint.draft import RESULT_LIMIT, current_phase
from workers.handlers.checkpoint.messages import encode_plain
from workers.handlers.operations.children import ChildOptions, Done
from workers.handlers.operations.effects import NotDone, is_not_done
from workers.handlers.operations.enqueues import RunOptions
from workers.handlers.operations.limits import Limit, PlainLimit
from workers.handlers.operations.waits import MISSING, Signal

P = ParamSpec("P")
T = TypeVar("T")


class Run(BaseRun[R_co]):
    """The run that a plain handler receives. The handler runs in a thread of the worker process.

    Only the handler's own thread may use the run.
    """

    def flush(self) -> None:
        """Save messages, state, iteration and phases, and return when they are durable. This is a cut.

        While the server cannot be reached, `flush` waits.

        Raises:
            Stopped: If a stop was requested. If the current turn of `loop` has changed the messages or the state, and no tool call
                is open, a drain is raised only at the end of the turn.
            NotPlain: If the state contains a value that cannot be stored.
            TooLarge: If the checkpoint is larger than 64 MiB.
            Unreadable: If the stored checkpoint is damaged, so that nothing can be added to it.
        """
        self._save_now()
        self._raise_stop()

    def _save_now(self) -> None:
        self._await(self._backing.flush(self._draft.cut(), self._draft.resumes_without_repeating))
        self._await(self._backing.wait_until_confirmed(self._draft.resumes_without_repeating))

    def _await(self, awaitable: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(awaitable, self._backing.loop).result()

    def _ask_for_grants(self, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._await(ask())

    def loop(self, limit: int) -> Iterator[int]:
        """Iterate over the turns of the run, with a cut after each turn.

        A resumed run continues with the turn after the last saved one.

        Args:
            limit: The number of turns. The turns are numbered from 0, as in `range(limit)`.

        Returns:
            An iterator over the numbers of the turns.

        Raises:
            Stopped: At the beginning or the end of a turn, if a stop was requested.
            Refused: If the run already has a loop, or if `loop` is called inside a phase.
        """
        turns = self._turns(limit)
        if self._draft.bookkeeping.left:
            self._await(self._children.end_turn())
        for turn in turns:
            self._await(self._backing.wait_until_confirmed(self._draft.resumes_without_repeating))
            self._raise_stop()
            if self._spends:
                self._await(self._budgets.enforce())
            self._draft.begin_turn(turn)
            yield turn
            self._end_turn(turn)
            if self._draft.bookkeeping.left:
                self._await(self._children.end_turn())

    def phase(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function once per run, and save its output. The end of a phase is a cut.

        If the output has been saved by an earlier attempt, return it without calling the function.

        Args:
            name: The name of the phase, 1 to 200 printable characters. Phases of the same name are told apart by their order,
                and inside `loop` also by the turn.
            fn: The function to call.
            *args: Positional arguments of the function.
            **kwargs: Keyword arguments of the function.

        Returns:
            The output of the function, as it is read back from the store. The output must be plain data of at most 8 MiB.

        Raises:
            Stopped: If a stop was requested.
            NotPlain: If the output is not plain data.
            TooLarge: If the output or the checkpoint is too large.
            Refused: If the name is not valid, or if a resumed run could not tell two phases of this name apart.
        """
        field = self._draft.begin_phase(name)
        if field in self._draft.phases:
            self._draft.end_phase(field, self._draft.phases[field])
            return decode(self._draft.phases[field], name)  # type: ignore[no-any-return]
        output = None
        try:
            self._await(self._backing.wait_until_confirmed(self._draft.resumes_without_repeating))
            self._raise_stop()
            if self._spends:
                self._await(self._budgets.enforce(field.rpartition("#")[0], inner=bool(current_phase.get())))
            inside = current_phase.set(field)
            try:
                with self._step("phase", name):
                    value = fn(*args, **kwargs)
                output = encode_plain(value, f"the output of phase {name!r}", RESULT_LIMIT)
            finally:
                current_phase.reset(inside)
        finally:
            self._draft.end_phase(field, output)
        self._save_now()
        self._raise_stop()
        return decode(output, name)  # type: ignore[no-any-return]

    def once(
        self,
        name: str,
        fn: Callable[..., T],
        /,
        *args: Any,
        check: Callable[..., T | type[NotDone] | NotDone] | None = None,
        **kwargs: Any,
    ) -> T:
        """Call a function that has an effect on the outside world, at most once per run, and save its output.

        Before the call the effect is saved as begun, and after the call as done. Both saves are cuts. If the effect is done, return
        its output without a call, in this and in all later attempts, turns and lives of the run. If an earlier call has begun the
        effect, and its end was not saved, the function is not called again, unless `check` answers NotDone.

        Args:
            name: The name of the effect, 1 to 200 printable characters. It names one effect in the whole run: in a loop each effect
                needs its own name, for example `f"charge {order.id}"`.
            fn: The function to call.
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
        effect = self._effects.enter(name, args, kwargs)
        try:
            if effect.is_done:
                return effect.output()  # type: ignore[no-any-return]
            self._await(effect.stop_point())
            if self._spends:
                self._await(self._budgets.enforce(f"effect:{name}", inner=bool(current_phase.get())))
            if effect.is_begun:
                if check is None:
                    raise effect.unknown()
                try:
                    found: Any = check(*args, **kwargs)
                except NotDone:
                    found = NotDone
                if not is_not_done(found):
                    return self._await(effect.finish(found, self._draft.resumes_without_repeating))  # type: ignore[no-any-return]
            self._await(effect.begin())
            with self._step("once", name):
                value = fn(*args, **kwargs)
            return self._await(effect.finish(value, self._draft.resumes_without_repeating))  # type: ignore[no-any-return]
        finally:
            effect.leave()

    def limit(self, name: str, *, cost: int = 1) -> contextlib.AbstractContextManager[Limit]:
        """Wait until an external call may start under the limit of a name, which all processes share.

        `with run.limit("openai", cost=1200) as limit:` runs the block when 1,200 tokens and a place are free.

        The name needs a rate, which `coordinator rate set` or `client.set_rate` sets. While the call waits, the run keeps its slot.
        A stop ends the wait immediately; a drain that would make the next attempt repeat work of this turn ends it after two
        seconds. A call that was stopped before it started gives back the tokens that it had reserved. A call whose process dies has
        used its tokens, and its place is free when its worker is recovered. A limit is allowed inside phases, too.

        Args:
            name: The name of the limit.
            cost: The tokens to reserve, for example the estimated tokens of a model. Assign the real number to `limit.cost` in the
                block.

        Returns:
            A context manager that gives a `Limit`.

        Raises:
            NotConfigured: If the name has no rate. The call never starts without a limit.
            BadOption: If the cost is not valid, or above the burst of the rate.
            BadName: If the name is not valid.
            Stopped: If a stop was requested. Let the exception propagate.
        """
        return PlainLimit(self._backing, name, cost, self._draft.resumes_without_repeating, self._await)

    @overload
    def receive(self, *topics: str, timeout: float | timedelta | None = None) -> Signal: ...
    @overload
    def receive(self, *topics: str, timeout: float | timedelta | None = None, default: T) -> Signal | T: ...
    def receive(self, *topics: str, timeout: float | timedelta | None = None, default: Any = MISSING) -> Any:
        """Wait for a signal, and return it. Signals of a topic are received once and in the order in which they were sent.

        While the run waits for longer than the handler's `linger`, it is suspended: the handler is stopped with `Stopped`, and is
        called again from its first line when a signal was sent. A signal that was sent before the run waits, or before it
        started, is kept. A receive is a step like a phase: a later attempt gets the same signal immediately. Every receive that has
        to wait begins with a cut.

        Args:
            *topics: The topics to wait for. With several topics, the signal that was sent first is returned.
            timeout: How long to wait, in seconds or as a timedelta. The time counts from the first check for signals, and continues
                while the run is suspended. None waits without a limit. 0 checks once without waiting, and is allowed inside phases
                too.
            default: The value to return after the timeout instead of raising WaitTimeout.

        Returns:
            The signal, or the default.

        Raises:
            WaitTimeout: If no signal was sent in time, and there is no default.
            Stopped: If a stop was requested, or the run is suspended. Let the exception propagate.
            Refused: If `receive` is called inside a phase, outside of the handler's own thread, or while another wait is under way.
            BadName: If a topic is not a valid name.
            BadOption: If the timeout is negative or longer than 100 years.
            BadSignal: If the payload does not fit the type that the handler declares for the topic.
        """
        with self._step("receive", ", ".join(map(str, topics))):
            return self._await(self._waits.receive(topics, timeout, default))

    def sleep(self, seconds: float | timedelta | None = None, *, until: datetime | None = None) -> None:
        """Sleep for a given time, or until a given date. Days and months are normal, because a suspended run occupies no slot.

        The end of the sleep is a time of the server's clock, and is saved before the run sleeps. An interrupted run continues
        its sleep and does not start the sleep again. A sleep that is longer than the handler's `linger` suspends the run, as in
        `receive`.

        Args:
            seconds: How long to sleep, in seconds or as a timedelta, from 0 seconds to 100 years.
            until: The end of the sleep, a datetime with a time zone. A time in the past ends the sleep immediately.

        Raises:
            Stopped: If a stop was requested, or the run is suspended. Let the exception propagate.
            Refused: If `sleep` is called inside a phase, outside of the handler's own thread, or while another wait is under way.
            BadOption: If the time is not valid, or if both arguments or none of them are given.
        """
        with self._step("sleep"):
            self._await(self._waits.sleep(seconds, until))

    def gather(
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
            Refused: If `gather` is called inside a phase, outside of the handler's own thread, or while another wait is under way.
            BadOption: If an option is not valid, or an idempotency key is given: children have no such key.
        """
        step = self._begin_children(name, children, options, at_once)
        with self._step("gather", name):
            results = self._await(step.gather(return_failures))
        if self._spends:
            self._await(self._budgets.count_children())
        return results

    def as_completed(
        self,
        name: str,
        children: Sequence[Inputs[Any]],
        *,
        at_once: int | None = None,
        **options: Unpack[ChildOptions],
    ) -> Iterator[Done]:
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
            An iterator over the children that have ended.

        Raises:
            Stopped: If a stop was requested, or the run is suspended. Let the exception propagate.
            TreeCancelled: As for `gather`.
            Refused: As for `gather`.
            BadOption: As for `gather`.
        """
        done = self._begin_children(name, children, options, at_once).as_completed()
        while True:
            try:
                yield self._await(_next(done))
            except StopAsyncIteration:
                break
        if self._spends:
            self._await(self._budgets.count_children())

    @overload
    def enqueue(self, inputs: Inputs[T], /, **options: Unpack[RunOptions]) -> Handle[T]: ...
    @overload
    def enqueue(
        self, handler: HandlerOf[T], /, inputs: Mapping[str, Any] | None = None, **options: Unpack[RunOptions]
    ) -> Handle[T]: ...
    @overload
    def enqueue(
        self, kind: str, /, inputs: Mapping[str, Any] | None = None, **options: Unpack[RunOptions]
    ) -> Handle[Any]: ...
    def enqueue(
        self,
        what: Inputs[Any] | HandlerOf[Any] | str,
        /,
        inputs: Mapping[str, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> Handle[Any]:
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
            Refused: If `enqueue` is called inside a phase, outside of the handler's own thread, or while a wait is under way.
            BadOption: If an option is not valid.
        """
        handler, enqueueing = self._enqueues.begin(what, inputs, options)
        id, created = self._await(enqueueing)
        remember_child(id)
        return Handle(
            self._client, id, created, getattr(handler, "read_result", None), getattr(handler, "write_signal", None)
        )

    @cached_property
    def _client(self) -> Client:
        """The client behind the handles of `enqueue`. It is closed when the handler has ended."""
        client = Client()
        self._backing.call_at_end(client.close)
        return client


async def _next(done: AsyncIterator[Done]) -> Done:
    return await anext(done)
