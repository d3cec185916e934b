"""Runs that live in memory, for tests that call a handler directly."""

from __future__ import annotations

import warnings
from collections.abc import Coroutine, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property, partial
from typing import Any, Self, TypeVar

from coordinator.errors import Refused
from coordinator.model.outcome import Why
from coordinator.model.policies.budget import TOPIC, Amount, check_topic
from coordinator.model.run import Note
from workers.handlers import async_run, run
from workers.handlers.base_run import BaseRun
from workers.handlers.checkpoint.draft import Cut, Draft
from workers.handlers.conversion import to_plain
from workers.handlers.current_run import entered_run
from workers.handlers.facts import Facts, Resumed, Stopped
from workers.handlers.operations.children import Child
from workers.testing.memory_backing import MemoryBacking, restore_draft
from workers.testing.memory_server import EnqueuedRun, LimitedCall, deadline_of

T = TypeVar("T")


class _NoClient:
    """The client behind the handles of runs in memory. Such a handle has an id, and refuses every call."""

    def __getattr__(self, name: str) -> Any:
        raise Refused("a run in memory does not execute the runs that it enqueues: look at run.enqueued in the test")


class _MemoryRun(BaseRun[Any]):
    """The methods that test runs have in addition to the methods of a run from a worker."""

    _first_cut: Cut

    def __init__(
        self,
        resources: Any = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        facts: Facts | None = None,
        draft: Draft | None = None,
        backing: MemoryBacking | None = None,
        desk: MemoryBacking | None = None,
        suspends: bool = False,
    ) -> None:
        super().__init__(
            facts or _first_facts(inputs, meta), resources, draft or Draft(), _choose_backing(backing, desk, suspends)
        )
        self._first_cut = self._draft.cut()
        self._memory.perform_child = partial(_perform_child, resources)
        self._memory.begin(self._first_cut.emitted)

    def after_crash(self, backing: MemoryBacking | None = None) -> Self:
        """Return the next attempt after a crash of this attempt. The next attempt starts from the last saved cut."""
        return self._next_attempt(backing, "recover")

    def after_release(self, backing: MemoryBacking | None = None) -> Self:
        """Return the next attempt after a release of this attempt. Messages after the last cut are in `run.resumed.unfinished`."""
        return self._next_attempt(backing, "release", tuple(self.messages[self._last_cut.length :]))

    def after_wake(self, backing: MemoryBacking | None = None) -> Self:
        """Return the next attempt after the run was suspended at a wait and woken.

        If no signal for the wait was sent, the time jumps to the end of the wait.

        Raises:
            Refused: If the handler was not stopped at a wait; or only a signal can end the wait, and none was sent.
        """
        condition, server = self._memory.condition, self._memory.server
        if condition is None:
            raise Refused("the run is not suspended: its handler was not stopped at a wait")
        if not server.wake_reason(condition):
            server.jump(condition)
        reason = server.wake_reason(condition)
        if not reason:
            topics = " or ".join(map(repr, condition.received))
            raise Refused(f"nothing wakes the run: it waits for a signal of topic {topics}, so call run.send first")
        return self._next_attempt(backing, "wake", reason=reason)

    def stop(self, why: Why = "drain") -> None:
        """Ask the handler to stop at its next cut, as a worker does.

        Args:
            why: `drain` if the worker shuts down, `cancel` if the run was cancelled, `deadline` if its deadline passed, `lost`
                if it belongs to another worker now.
        """
        self._memory.stopping = Stopped(why)

    def send(self, topic: str, payload: Any = None, *, key: str | None = None) -> bool:
        """Send a signal to the run, as `handle.send` does. The signal may be sent before the handler is called.

        Args:
            topic: The topic.
            payload: The value that the handler receives: plain data, or an object of the type that it declares for the topic.
            key: The idempotency key. A second signal with the same key is not stored.

        Returns:
            False if a signal with this key was sent before.

        Raises:
            BadName: If the topic is not a valid name, or is reserved for grants.
            NotPlain: If the payload cannot be stored.
        """
        check_topic(topic)
        return self._memory.server.send(topic, to_plain(payload, f"a signal of topic {topic!r}"), key)

    def grant(self, *, usd: float | Decimal = 0, tokens: int = 0, requests: int = 0) -> None:
        """Grant the run an amount in addition to its budget, as `handle.grant` does."""
        self._memory.server.send(TOPIC, [*Amount.of(usd, tokens, requests)], None)

    @property
    def now(self) -> datetime:
        """The time of the run's clock, in UTC. It stands still while the handler works, and jumps to the end of each sleep."""
        return self._memory.server.now

    def advance(self, seconds: float | timedelta) -> None:
        """Set the run's clock forward by a number of seconds, for example beyond the timeout of a wait."""
        step = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
        self._memory.server.now_ms += round(step / timedelta(milliseconds=1))

    @property
    def suspended(self) -> bool:
        """Return True if the handler was stopped at a wait."""
        return self._memory.condition is not None

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The topics that the run waits for. Empty for a sleep, or if the handler was not stopped at a wait."""
        return () if self._memory.condition is None else tuple(self._memory.condition.received)

    @property
    def enqueued(self) -> list[EnqueuedRun]:
        """The runs that the handler enqueued with `run.enqueue`, in all attempts, oldest first. They are not executed."""
        return [*self._memory.server.enqueued.values()]

    @property
    def limited(self) -> list[LimitedCall]:
        """The calls under `run.limit` in all attempts, oldest first. In memory each call starts immediately."""
        return [*self._memory.server.limited]

    @property
    def effects(self) -> dict[str, str]:
        """The state of each effect of `run.once` by its name: "begun" or "done"."""
        fields = [field.split(":", 2) for field in self._draft.phases if field.startswith("effect:")]
        return {name: state for _, state, name in fields}

    @cached_property
    def _client(self) -> Any:
        return _NoClient()

    @property
    def waits_until(self) -> datetime | None:
        """The time in UTC at which the run's wait ends. None if only a signal ends the wait, or if the handler was not stopped."""
        return None if self._memory.condition is None else deadline_of(self._memory.condition)

    @property
    def saved(self) -> int:
        """The number of cuts that were saved in this attempt."""
        return len(self._memory.cuts)

    @property
    def notes(self) -> list[Note]:
        """The notes of this attempt, oldest first."""
        return self._memory.notes

    @property
    def emitted(self) -> list[Any]:
        """The values that the handler emitted in all attempts, as a reader has them at the end.

        After a crash the events after the last cut are dropped, as a `Rewind` tells a reader. A note is a `coordinator.Note`.
        """
        return [*self._memory.server.output]

    @property
    def _memory(self) -> MemoryBacking:
        assert isinstance(self._backing, MemoryBacking)
        return self._backing

    @property
    def _last_cut(self) -> Cut:
        return self._memory.cuts[-1] if self._memory.cuts else self._first_cut

    def _next_attempt(
        self, backing: MemoryBacking | None, cause: str, unfinished: tuple[Any, ...] = (), reason: str = ""
    ) -> Self:
        facts, spent = self._facts, self._facts.spent.plus(self._memory.spent)
        resumed = Resumed(cause, 0.0, "w-test", "-", unfinished, reason=reason)
        token = f"{self.epoch + 1}-1-w-test"
        following = facts._replace(attempt=facts.attempt + 1, token=token, resumed=resumed, spent=spent)
        backing = backing or MemoryBacking(suspends=self._memory.suspends)
        backing.server, backing.spent_before = self._memory.server, spent
        return type(self)(self.resources, facts=following, draft=restore_draft(self._last_cut), backing=backing)


def _first_facts(inputs: Mapping[str, Any] | None, meta: Mapping[str, Any] | None) -> Facts:
    return Facts("test-00", "test", inputs or {}, meta or {}, 1, "1-1-w-test", None)


def _choose_backing(backing: MemoryBacking | None, desk: MemoryBacking | None, suspends: bool) -> MemoryBacking:
    if desk is not None:
        warnings.warn("the parameter desk is now called backing", DeprecationWarning, stacklevel=3)
    chosen = backing or desk or MemoryBacking()
    chosen.suspends = chosen.suspends or suspends
    return chosen


def _run_without_loop(awaitable: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the backing without an event loop, and return its result. The coroutine never waits."""
    try:
        awaitable.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("a run in memory can't wait for an event loop")


class AsyncRun(_MemoryRun, async_run.AsyncRun[Any]):
    """A run for an async handler, without a server: `await handler(testing.AsyncRun(resources=fake), "tides")`.

    Args:
        resources: The value of `run.resources` in the handler.
        inputs: The value of `run.inputs` in the handler. The test itself passes the parameters of the handler.
        meta: The value of `run.meta` in the handler.
        facts: The identity of the run and its attempt; made up by default.
        draft: The checkpoint of an earlier attempt; empty by default.
        backing: Saves the checkpoints in memory, and may crash the run at a cut.
        desk: The old name of `backing`.
        suspends: Stop the handler at each sleep and timeout too, as when its run is suspended. By default the time jumps to the
            end of a sleep or a timeout, and the handler continues. A wait that only a signal can end always stops the handler.
    """

    def _wait_in_thread(self, awaitable: Coroutine[Any, Any, None]) -> None:
        _run_without_loop(awaitable)


class Run(_MemoryRun, run.Run[Any]):
    """A run for a plain handler, without a server: `handler(testing.Run(resources=fake), "tides")`.

    Args:
        resources: The value of `run.resources` in the handler.
        inputs: The value of `run.inputs` in the handler. The test itself passes the parameters of the handler.
        meta: The value of `run.meta` in the handler.
        facts: The identity of the run and its attempt; made up by default.
        draft: The checkpoint of an earlier attempt; empty by default.
        backing: Saves the checkpoints in memory, and may crash the run at a cut.
        desk: The old name of `backing`.
        suspends: Stop the handler at each sleep and timeout too, as when its run is suspended. By default the time jumps to the
            end of a sleep or a timeout, and the handler continues. A wait that only a signal can end always stops the handler.
    """

    def _await(self, awaitable: Coroutine[Any, Any, T]) -> T:
        return _run_without_loop(awaitable)


async def _perform_child(resources: Any, child: Child) -> Any:
    """Call the handler of a child, and return its result.

    Raises:
        Refused: If the child was made from a kind, so that its handler is not known.
    """
    handler: Any = child.inputs.handler
    if handler is None:
        raise Refused(f"a run in memory can't run the child {child.inputs.kind!r}: make it with handler.inputs(…)")
    values = handler.arguments(dict(child.inputs.values))
    kind: type[AsyncRun] | type[Run] = AsyncRun if handler.is_async else Run
    run = kind(resources, inputs=child.inputs.values)
    with entered_run(run):
        result = handler.function(run, **values)
        return handler.plain_result(await result if handler.is_async else result)
