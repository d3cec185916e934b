"""Waits of a handler for a signal or for a time.

A wait is a step, like a phase. It has a name and a position among the steps of the same name. Once the value of a wait is saved, a
later attempt gets the saved value immediately.

Every wait begins with a cut. The attempt then lingers in the process for a moment. If the wait does not end in this moment, it
raises `Stopped`, the handler ends, and the run is suspended: the run waits on the server and occupies no slot. When the run is
woken, a worker calls the handler again from its first line, and the handler reaches the same wait.

Only the Lua scripts on the server compare a deadline with the time, so that the clocks of workers do not matter.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from coordinator.encoding.codec import decode, encode
from coordinator.errors import BadOption, CoordinatorError, Refused, Unreadable
from coordinator.model.policies.budget import check_topic
from coordinator.store.plans.attempts import Condition, Received
from workers.handlers.checkpoint.draft import Cut, Draft

LONGEST = 100 * 366 * 86_400.0  # seconds; a longer wait is certainly a mistake
MISSING: Any = object()


class WaitTimeout(CoordinatorError, TimeoutError):
    """The error of a `run.receive` without a default, if no signal arrived before its timeout."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class BadSignal(Unreadable):
    """The error of a `run.receive` whose signal does not fit the type that the handler declares for its topic.

    The signal counts as received. A handler that catches the error and receives again gets the next signal. A run that has failed
    because of the error, and is revived, waits for the next signal too.
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal that a run has received.

    Attributes:
        topic: The topic to which the signal was sent.
        payload: The value that the sender passed.
        number: The number of the signal in its topic, counted from 1.
    """

    topic: str
    payload: Any
    number: int


class WaitBacking(Protocol):
    """The methods of a worker, or of its stand-in in a test, that a wait calls.

    All coroutines run on the worker's event loop.
    """

    def check_wait(self, cut: Callable[[], Cut]) -> None:
        """Check that a wait may begin here.

        Args:
            cut: Makes a cut. Before a stop is raised, this cut is offered to be saved, because every wait begins with a cut.

        Raises:
            Refused: If another task or thread than the handler's own calls this method.
            Stopped: If a stop was requested.
        """
        ...

    def start_lingering(self, cut: Callable[[], Cut]) -> None:
        """Begin to count the time for which a waiting handler stays in its process (`linger`).

        Args:
            cut: Makes a cut, as for `check_wait`.

        Raises:
            Stopped: If a stop was requested.
        """
        ...

    def offer(self, cut: Cut) -> None:
        """Offer a cut to be saved, and return immediately."""
        ...

    async def flush(self, cut: Cut, may_drain: Callable[[], bool]) -> None:
        """Save a cut, and return when it is saved. See `Backing`."""
        ...

    async def wait_until_confirmed(self, may_drain: Callable[[], bool]) -> None:
        """Wait until the worker has confirmed its lease. See `Backing`."""
        ...

    async def look(self, condition: Condition, timeout_ms: int | None, may_drain: Callable[[], bool] = ...) -> Received:
        """Ask the server for the next signal. Wait while the server cannot be reached.

        Args:
            condition: The topics and the deadline of the wait.
            timeout_ms: The milliseconds from now to a deadline that is not known yet; None if there is no such deadline.
            may_drain: Returns False where a drain must not stop the handler yet. By default a drain may stop it.

        Raises:
            Stopped: If a stop was requested, or the run belongs to another owner.
        """
        ...

    async def linger(self, condition: Condition, now: int) -> None:
        """Wait until there is a reason to ask again: a signal may have been sent, the deadline has passed, or a second is over.

        Args:
            condition: The topics, the children and the deadline that the run waits for.
            now: The server's time in ms at the last request for signals.

        Raises:
            Stopped: If a stop was requested, or if the attempt has lingered long enough and its run is suspended.
        """
        ...


# True in a task that the handler's own task waits for, so that a stop in this task ends the handler too. Integrations set it around
# a wait, because agent frameworks call their hooks in tasks of their own.
in_awaited_task: ContextVar[bool] = ContextVar("in_awaited_task", default=False)


def _always() -> bool:
    return True


class Waits:
    """The waits of one attempt.

    Args:
        draft: The draft of the run's next checkpoint.
        backing: The worker's side of the attempt.
        read_signal: Converts the payload of a topic to the type that the handler declares.
    """

    def __init__(self, draft: Draft, backing: WaitBacking, read_signal: Callable[[str, Any], Any]) -> None:
        self._draft, self._backing, self._read_signal = draft, backing, read_signal
        self._polling = asyncio.Lock()

    def receive(
        self, topics: tuple[str, ...], timeout: float | timedelta | None, default: Any
    ) -> Coroutine[Any, Any, Any]:
        """Check the arguments of `AsyncRun.receive` in the handler's own task or thread. Return the coroutine that waits."""
        for topic in topics:
            check_topic(topic)
        if not topics:
            raise Refused("run.receive needs at least one topic")
        timeout_ms = None if timeout is None else _milliseconds(timeout, "timeout")
        name = "receive " + " ".join(topics)
        if timeout_ms == 0:
            return self._receive(self._poll(name, topics), topics, 0, default)
        return self._receive(self._wait(name, topics, timeout_ms), topics, timeout_ms or 0, default)

    async def _receive(
        self,
        waiting: Coroutine[Any, Any, tuple[str, Signal | None]],
        topics: tuple[str, ...],
        timeout_ms: int,
        default: Any,
    ) -> Any:
        field, signal = await waiting
        if signal is not None:
            return Signal(signal.topic, self._read_payload(field, signal), signal.number)
        if default is not MISSING:
            return default
        when = f"arrived within {timeout_ms / 1000:g} s" if timeout_ms else "is there"
        raise WaitTimeout(f"no signal of topic {' or '.join(map(repr, topics))} {when}", field)

    def _read_payload(self, field: str, signal: Signal) -> Any:
        try:
            return self._read_signal(signal.topic, signal.payload)
        except Unreadable as error:
            raise BadSignal(f"{error}; if the run is revived, it waits for the next signal", field) from error

    def sleep(self, seconds: float | timedelta | None, until: datetime | None) -> Coroutine[Any, Any, None]:
        """Check the arguments of `AsyncRun.sleep` in the handler's own task or thread. Return the coroutine that waits."""
        if (seconds is None) == (until is None):
            raise BadOption("run.sleep needs a number of seconds or until=, and not both")
        if until is None:
            assert seconds is not None
            return self._wait("sleep", (), _milliseconds(seconds, "seconds"))
        if not isinstance(until, datetime) or until.tzinfo is None:  # type: ignore[redundant-expr]  # users pass anything
            raise BadOption(f"run.sleep(until={until!r}) needs a datetime with a time zone")
        return self._wait("sleep", (), None, max(0, math.ceil(until.timestamp() * 1000)))

    async def _poll(self, name: str, topics: tuple[str, ...]) -> tuple[str, Signal | None]:
        """Ask for a signal once, without waiting. Return the field and the signal; empty and None if there is no signal.

        The request counts as a step only if it finds a signal. Several tasks of the handler ask one after the other.
        """
        async with self._polling:
            field = self._draft.next_poll(name)
            if field in self._draft.phases:
                self._draft.keep_poll(field)
                return field, self._stored(field)
            found = await self._look(topics, None, 0)
            if found.word != "signal":
                return "", None
            self._draft.keep_poll(field)
            return field, self._keep(field, found)

    def _wait(
        self, name: str, topics: tuple[str, ...], timeout_ms: int | None, until: int | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Begin a wait as a step of the handler. Return the coroutine that waits."""
        self._backing.check_wait(self._draft.cut)
        return self._wait_as_step(self._draft.begin_wait(name), topics, timeout_ms, until)

    async def _wait_as_step(
        self, field: str, topics: tuple[str, ...], timeout_ms: int | None, until: int | None
    ) -> tuple[str, Signal | None]:
        """Wait for a signal or a time. Return the field and the signal, or the field and None if the deadline passed first."""
        given_up = field
        try:
            stored = field in self._draft.phases
            signal = self._stored(field) if stored else await self._until(field, topics, timeout_ms, until)
            given_up = ""
        finally:
            self._draft.end_wait(given_up)
        return field, signal

    async def _until(
        self, field: str, topics: tuple[str, ...], timeout_ms: int | None, until: int | None
    ) -> Signal | None:
        deadlines, saved = self._draft.bookkeeping.deadlines, False
        deadline = deadlines.get(field, until)
        while True:
            try:
                found = await self._look(topics, deadline, timeout_ms if deadline is None else None)
            except BaseException:
                if not saved:
                    self._backing.offer(self._draft.cut())
                raise
            if found.word == "signal":
                return self._keep(field, found)
            if until is not None and until - found.now > LONGEST * 1000:
                raise BadOption("run.sleep(until=…) names a time that is more than 100 years away")
            if found.word == "timeout":
                # A timeout is a step, like a received signal. No cut is needed here: a later attempt times out again.
                deadlines.pop(field, None)
                self._draft.phases[field] = encode(None, "timeout")
                return None
            if found.deadline is not None and field not in deadlines:
                deadline = deadlines[field] = found.deadline
            if not saved:
                # The deadline is saved before the attempt waits for it. A drain may stop the handler here, because the handler
                # would also start again from this cut after a suspend.
                await self._backing.flush(self._draft.cut(), _always)
                await self._backing.wait_until_confirmed(_always)
                saved = True
            await self._backing.linger(self._condition(topics, deadline), found.now)

    async def _look(self, topics: tuple[str, ...], deadline: int | None, timeout_ms: int | None) -> Received:
        """Ask the server for the next signal. Ask again if another task of the handler has received this signal meanwhile."""
        while True:
            found = await self._backing.look(self._condition(topics, deadline), timeout_ms)
            if found.word != "signal" or found.number > self._draft.bookkeeping.received.get(found.topic, 0):
                return found

    def _condition(self, topics: tuple[str, ...], deadline: int | None) -> Condition:
        return Condition(deadline, {topic: self._draft.bookkeeping.received.get(topic, 0) for topic in topics})

    def _keep(self, field: str, found: Received) -> Signal:
        """Record a signal as received, and offer a cut. If this cut is not saved, a later attempt receives the signal again."""
        signal = Signal(
            found.topic, decode(found.payload, f"signal {found.number} of topic {found.topic!r}"), found.number
        )
        self._draft.bookkeeping.received[found.topic] = found.number
        self._draft.bookkeeping.deadlines.pop(field, None)
        self._draft.phases[field] = encode([signal.topic, signal.number, signal.payload], "signal")
        self._backing.offer(self._draft.cut())
        return signal

    def _stored(self, field: str) -> Signal | None:
        value = decode(self._draft.phases[field], field)
        return None if value is None else Signal(value[0], value[2], value[1])


def _milliseconds(value: float | timedelta, what: str) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= LONGEST:  # type: ignore[redundant-expr]
        raise BadOption(f"{what}={value!r} is not a number of seconds, or a timedelta, from 0 to 100 years")
    return math.ceil(seconds * 1000)
