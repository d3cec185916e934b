"""The producer's side: `Client` for threads, `AsyncClient` for an event loop; method for method, over operations.py.

A client connects at first use. What it has open belongs to one process, or one event loop: after a fork it opens its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from types import TracebackType
from typing import Any, Generic, TypeVar, Unpack, overload

from coordinator.client.endings import AsyncHints, Hints, Watch
from coordinator.client.operations import Operations, Steps
from coordinator.client.run_builder import EnqueueManyOptions, EnqueueOptions
from coordinator.client.schedules import ScheduleOptions, When
from coordinator.clock import Clock, SystemClock
from coordinator.config import Settings, settings
from coordinator.errors import BadName, Refused, Unreachable
from coordinator.model.run import Inputs, RunView, Status, is_run_id
from coordinator.model.schedule import ScheduleView
from coordinator.store.transport.wire import AsyncWire, Wire, drive, drive_async
from coordinator.views.ending import Ending
from coordinator.views.namespace_view import Overview, WorkerView

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

CANCEL_GRACE = 30.0
Views = list[RunView]  # inside a client, `list` is its method
Schedules = list[ScheduleView]


# ---- threads ---------------------------------------------------------------------------------------------------------


class Handle(Generic[T_co]):
    """A producer's grip on a run. `created` is False where its key found a run that was there."""

    __slots__ = ("_client", "created", "id")

    def __init__(self, client: Client, id: str, created: bool = False) -> None:
        self._client, self.id, self.created = client, id, created

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    def view(self) -> RunView:
        """The run as it is now."""
        return self._client._do(lambda do: do.view(self.id))

    def wait(self, timeout: float | None = None) -> Status:
        """How it ended; ResultTimeout where it has not in time."""
        return self._client._ending(self.id, timeout).status

    def result(self, timeout: float | None = None) -> T_co:
        """What its handler returned; RunFailed, RunDead, RunCancelled, ResultTimeout or NotFound where it didn't."""
        result: T_co = self._client._ending(self.id, timeout).result()
        return result

    def cancel(self, grace: float = CANCEL_GRACE) -> Status:
        """Its status now. One that waits is cancelled at once; a running one is asked to stop, and after the grace ended by
        force; one that has ended stays as it is."""
        return self._client._do(lambda do: do.cancel(self.id, grace))

    def cancel_tree(self, grace: float = CANCEL_GRACE) -> dict[str, Status]:
        """Cancels it and every run below it: those that its handler enqueued, and theirs. For each its status now. What is
        enqueued below it from now on is refused with TreeCancelled, unless it is revived."""
        return self._client._do(lambda do: do.cancel_tree(self.id, grace))

    def revive(self, from_start: bool = False) -> None:
        """A failed, dead or cancelled run is queued again, to go on from its checkpoint."""
        self._client._do(lambda do: do.revive(self.id, from_start))

    def discard(self) -> Status:
        """Removes an ended run with all that was kept of it, at once; the status in which it had ended."""
        return self._client._do(lambda do: do.discard(self.id))

    def position(self) -> int | None:
        """How many are before it in its queue and kind; None where it is not queued."""
        return self._client._do(lambda do: do.position(self.id))


class _Session:
    """What a Client has open in one process."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.pid = os.getpid()
        self.wire = Wire(settings.address, settings.timeout)
        self.hints = Hints(settings.address, self.wire, clock)
        looked_at = None if settings.address.scheme == "memory" else settings.address
        self.operations = Operations(settings.namespace, clock, examine=looked_at)

    def close(self) -> None:
        self.hints.close()
        self.wire.close()


class Client:
    """Enqueues runs and asks for them. Shared by threads; notices a fork."""

    def __init__(self, url: str | None = None, namespace: str | None = None, timeout: float = 30.0) -> None:
        self._settings = settings(url, namespace, timeout)
        self._clock: Clock = SystemClock()
        self._session: _Session | None = None
        self._locks: dict[int, threading.Lock] = {}
        self._closed = False

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Its handles are of no more use."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None and session.pid == os.getpid():
            session.close()

    @overload
    def enqueue(self, inputs: Inputs[T], /, **options: Unpack[EnqueueOptions]) -> Handle[T]: ...
    @overload
    def enqueue(
        self, kind: str, /, inputs: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Handle[Any]: ...
    def enqueue(
        self, what: Inputs[Any] | str, /, inputs: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Handle[Any]:
        """Hands over a run: `handler.inputs(…)`, or a kind and its inputs. What is returned from here is not lost."""
        return self._do(lambda do: do.enqueue(what, inputs, options, self._grip))

    @overload
    def enqueue_many(self, runs: Iterable[Inputs[T]], /, **options: Unpack[EnqueueManyOptions]) -> list[Handle[T]]: ...
    @overload
    def enqueue_many(
        self, runs: Iterable[tuple[str, Mapping[str, Any]]], /, **options: Unpack[EnqueueManyOptions]
    ) -> list[Handle[Any]]: ...
    def enqueue_many(self, runs: Iterable[Any], /, **options: Unpack[EnqueueManyOptions]) -> list[Handle[Any]]:
        """Hands over many, batch by batch, as they come out of the iterable."""
        return self._do(lambda do: do.enqueue_many(runs, options, self._grip))

    def handle(self, id: str) -> Handle[Any]:
        """A grip on a run whose id is known; costs no trip."""
        return self._grip(_run_id(id), False)

    def wait(self, handles: Iterable[Handle[T]], timeout: float | None = None) -> Iterator[Handle[T]]:
        """The handles in the order in which their runs end."""
        by_id = {handle.id: handle for handle in handles}
        return (by_id[ending.run] for ending in self._endings(by_id, timeout))

    def workers(self) -> list[WorkerView]:
        """The workers that have a lease, or had one and were not recovered yet."""
        return self._do(lambda do: do.workers())

    def status(self) -> Overview:
        """The namespace from above: counts, queues, workers, coordinators."""
        return self._do(lambda do: do.status())

    def list(
        self, status: Status | str | None = None, kind: str | None = None, queue: str | None = None, limit: int = 100
    ) -> Views:
        """Runs, newest first; those that wait in the order in which they are taken."""
        return self._do(lambda do: do.runs(status, kind, queue, limit))

    @overload
    def schedule(self, name: str, when: When, inputs: Inputs[Any], /, **options: Unpack[ScheduleOptions]) -> None: ...
    @overload
    def schedule(
        self,
        name: str,
        when: When,
        kind: str,
        /,
        inputs: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> None: ...
    def schedule(
        self,
        name: str,
        when: When,
        what: Inputs[Any] | str,
        /,
        inputs: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> None:
        """Enqueues such a run at each fire time: of a cron expression (in the time zone `tz`), or of 'every 30s', seconds, a
        timedelta. The same name again replaces; a pause stays, and with the same rules the next fire time."""
        self._do(lambda do: do.schedule(name, when, what, inputs, options))

    def schedules(self) -> Schedules:
        """The schedules, by name; what keeps one from firing is its `trouble`."""
        return self._do(lambda do: do.schedules())

    def pause_schedule(self, name: str) -> None:
        """It fires no more until it is unpaused; what it has enqueued goes on."""
        self._do(lambda do: do.pause_schedule(name, True))

    def unpause_schedule(self, name: str) -> None:
        """It fires again, from its next fire time on."""
        self._do(lambda do: do.pause_schedule(name, False))

    def unschedule(self, name: str) -> None:
        """Removes a schedule; what it has enqueued goes on."""
        self._do(lambda do: do.unschedule(name))

    def pause(self, *, queue: str | None = None, kind: str | None = None) -> bool:
        """Nothing more of a queue or a kind is claimed; what runs goes on. Whether that is new."""
        return self._do(lambda do: do.pause(queue, kind))

    def unpause(self, *, queue: str | None = None, kind: str | None = None) -> bool:
        """A queue or a kind is claimed again, at once. Whether it was paused."""
        return self._do(lambda do: do.unpause(queue, kind))

    # -- shared by the methods above

    def _here(self) -> _Session:
        session = self._session
        pid = os.getpid()
        if session is None or session.pid != pid:
            with self._locks.setdefault(
                pid, threading.Lock()
            ):  # one for each process: a fork may copy a lock that is held
                session = self._session
                if self._closed:
                    raise Refused("the client is closed")
                if session is None or session.pid != pid:
                    session = self._session = _Session(self._settings, self._clock)
        return session

    def _do(self, operation: Callable[[Operations], Steps[T]], timeout: float | None = None) -> T:
        session = self._here()
        return drive(session.wire, operation(session.operations), timeout)

    def _grip(self, id: str, created: bool) -> Handle[Any]:
        return Handle(self, id, created)

    def _ending(self, id: str, timeout: float | None) -> Ending:
        with closing(self._endings([id], timeout)) as endings:
            return next(endings)

    def _endings(self, ids: Iterable[str], timeout: float | None) -> Generator[Ending, None, None]:
        watch = Watch([*ids], self._clock.monotonic(), timeout)
        hints = self._here().hints
        places = self._do(lambda do: do.places(hints.client))
        with hints.mailbox([*watch.open], places) as mailbox:
            while watch.open:
                for ending in self._look(watch, hints.client):
                    watch.ended(ending.run)
                    yield ending
                if watch.open:
                    watch.hint(mailbox.take(watch.rest(self._clock.monotonic())))

    def _look(self, watch: Watch, client: str) -> Sequence[Ending]:
        now = self._clock.monotonic()
        try:
            return self._do(
                lambda do: do.look(watch.to_ask(now), client), _patience(watch, now, self._settings.timeout)
            )
        except Unreachable as error:
            if watch.left(self._clock.monotonic()) == 0.0:
                raise watch.too_late() from error
            raise


# ---- event loops -----------------------------------------------------------------------------------------------------


class AsyncHandle(Generic[T_co]):
    """A producer's grip on a run. `created` is False where its key found a run that was there."""

    __slots__ = ("_client", "created", "id")

    def __init__(self, client: AsyncClient, id: str, created: bool = False) -> None:
        self._client, self.id, self.created = client, id, created

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    async def view(self) -> RunView:
        """The run as it is now."""
        return await self._client._do(lambda do: do.view(self.id))

    async def wait(self, timeout: float | None = None) -> Status:
        """How it ended; ResultTimeout where it has not in time."""
        return (await self._client._ending(self.id, timeout)).status

    async def result(self, timeout: float | None = None) -> T_co:
        """What its handler returned; RunFailed, RunDead, RunCancelled, ResultTimeout or NotFound where it didn't."""
        result: T_co = (await self._client._ending(self.id, timeout)).result()
        return result

    async def cancel(self, grace: float = CANCEL_GRACE) -> Status:
        """Its status now. One that waits is cancelled at once; a running one is asked to stop, and after the grace ended by
        force; one that has ended stays as it is."""
        return await self._client._do(lambda do: do.cancel(self.id, grace))

    async def cancel_tree(self, grace: float = CANCEL_GRACE) -> dict[str, Status]:
        """Cancels it and every run below it: those that its handler enqueued, and theirs. For each its status now. What is
        enqueued below it from now on is refused with TreeCancelled, unless it is revived."""
        return await self._client._do(lambda do: do.cancel_tree(self.id, grace))

    async def revive(self, from_start: bool = False) -> None:
        """A failed, dead or cancelled run is queued again, to go on from its checkpoint."""
        await self._client._do(lambda do: do.revive(self.id, from_start))

    async def discard(self) -> Status:
        """Removes an ended run with all that was kept of it, at once; the status in which it had ended."""
        return await self._client._do(lambda do: do.discard(self.id))

    async def position(self) -> int | None:
        """How many are before it in its queue and kind; None where it is not queued."""
        return await self._client._do(lambda do: do.position(self.id))


class _AsyncSession:
    """What an AsyncClient has open in one event loop."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.loop = asyncio.get_running_loop()
        self.wire = AsyncWire(settings.address, settings.timeout)
        self.hints = AsyncHints(settings.address, self.wire, clock)
        looked_at = None if settings.address.scheme == "memory" else settings.address
        self.operations = Operations(settings.namespace, clock, examine=looked_at)

    async def close(self) -> None:
        try:
            await self.hints.close()
        finally:
            await self.wire.close()


class AsyncClient:
    """Enqueues runs and asks for them, in an event loop: what its tasks do in the same turn shares a trip."""

    def __init__(self, url: str | None = None, namespace: str | None = None, timeout: float = 30.0) -> None:
        self._settings = settings(url, namespace, timeout)
        self._clock: Clock = SystemClock()
        self._session: _AsyncSession | None = None
        self._closed = False

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Its handles are of no more use."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None and session.loop is asyncio.get_running_loop():
            await session.close()

    @overload
    async def enqueue(self, inputs: Inputs[T], /, **options: Unpack[EnqueueOptions]) -> AsyncHandle[T]: ...
    @overload
    async def enqueue(
        self, kind: str, /, inputs: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> AsyncHandle[Any]: ...
    async def enqueue(
        self, what: Inputs[Any] | str, /, inputs: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> AsyncHandle[Any]:
        """Hands over a run: `handler.inputs(…)`, or a kind and its inputs. What is returned from here is not lost."""
        return await self._do(lambda do: do.enqueue(what, inputs, options, self._grip))

    @overload
    async def enqueue_many(
        self, runs: Iterable[Inputs[T]], /, **options: Unpack[EnqueueManyOptions]
    ) -> list[AsyncHandle[T]]: ...
    @overload
    async def enqueue_many(
        self, runs: Iterable[tuple[str, Mapping[str, Any]]], /, **options: Unpack[EnqueueManyOptions]
    ) -> list[AsyncHandle[Any]]: ...
    async def enqueue_many(
        self, runs: Iterable[Any], /, **options: Unpack[EnqueueManyOptions]
    ) -> list[AsyncHandle[Any]]:
        """Hands over many, batch by batch, as they come out of the iterable."""
        return await self._do(lambda do: do.enqueue_many(runs, options, self._grip))

    def handle(self, id: str) -> AsyncHandle[Any]:
        """A grip on a run whose id is known; costs no trip."""
        return self._grip(_run_id(id), False)

    async def wait(
        self, handles: Iterable[AsyncHandle[T]], timeout: float | None = None
    ) -> AsyncIterator[AsyncHandle[T]]:
        """The handles in the order in which their runs end."""
        by_id = {handle.id: handle for handle in handles}
        async with aclosing(self._endings(by_id, timeout)) as endings:
            async for ending in endings:
                yield by_id[ending.run]

    async def workers(self) -> list[WorkerView]:
        """The workers that have a lease, or had one and were not recovered yet."""
        return await self._do(lambda do: do.workers())

    async def status(self) -> Overview:
        """The namespace from above: counts, queues, workers, coordinators."""
        return await self._do(lambda do: do.status())

    async def list(
        self, status: Status | str | None = None, kind: str | None = None, queue: str | None = None, limit: int = 100
    ) -> Views:
        """Runs, newest first; those that wait in the order in which they are taken."""
        return await self._do(lambda do: do.runs(status, kind, queue, limit))

    @overload
    async def schedule(
        self, name: str, when: When, inputs: Inputs[Any], /, **options: Unpack[ScheduleOptions]
    ) -> None: ...
    @overload
    async def schedule(
        self,
        name: str,
        when: When,
        kind: str,
        /,
        inputs: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> None: ...
    async def schedule(
        self,
        name: str,
        when: When,
        what: Inputs[Any] | str,
        /,
        inputs: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> None:
        """Enqueues such a run at each fire time: of a cron expression (in the time zone `tz`), or of 'every 30s', seconds, a
        timedelta. The same name again replaces; a pause stays, and with the same rules the next fire time."""
        await self._do(lambda do: do.schedule(name, when, what, inputs, options))

    async def schedules(self) -> Schedules:
        """The schedules, by name; what keeps one from firing is its `trouble`."""
        return await self._do(lambda do: do.schedules())

    async def pause_schedule(self, name: str) -> None:
        """It fires no more until it is unpaused; what it has enqueued goes on."""
        await self._do(lambda do: do.pause_schedule(name, True))

    async def unpause_schedule(self, name: str) -> None:
        """It fires again, from its next fire time on."""
        await self._do(lambda do: do.pause_schedule(name, False))

    async def unschedule(self, name: str) -> None:
        """Removes a schedule; what it has enqueued goes on."""
        await self._do(lambda do: do.unschedule(name))

    async def pause(self, *, queue: str | None = None, kind: str | None = None) -> bool:
        """Nothing more of a queue or a kind is claimed; what runs goes on. Whether that is new."""
        return await self._do(lambda do: do.pause(queue, kind))

    async def unpause(self, *, queue: str | None = None, kind: str | None = None) -> bool:
        """A queue or a kind is claimed again, at once. Whether it was paused."""
        return await self._do(lambda do: do.unpause(queue, kind))

    # -- shared by the methods above

    def _here(self) -> _AsyncSession:
        session = self._session
        if session is None or session.loop is not asyncio.get_running_loop():
            if self._closed:
                raise Refused("the client is closed")
            session = self._session = _AsyncSession(self._settings, self._clock)
        return session

    async def _do(self, operation: Callable[[Operations], Steps[T]], timeout: float | None = None) -> T:
        session = self._here()
        return await drive_async(session.wire, operation(session.operations), timeout)

    def _grip(self, id: str, created: bool) -> AsyncHandle[Any]:
        return AsyncHandle(self, id, created)

    async def _ending(self, id: str, timeout: float | None) -> Ending:
        async with aclosing(self._endings([id], timeout)) as endings:
            return await anext(endings)

    async def _endings(self, ids: Iterable[str], timeout: float | None) -> AsyncGenerator[Ending, None]:
        watch = Watch([*ids], self._clock.monotonic(), timeout)
        hints = self._here().hints
        places = await self._do(lambda do: do.places(hints.client))
        async with hints.mailbox([*watch.open], places) as mailbox:
            while watch.open:
                for ending in await self._look(watch, hints.client):
                    watch.ended(ending.run)
                    yield ending
                if watch.open:
                    watch.hint(await mailbox.take(watch.rest(self._clock.monotonic())))

    async def _look(self, watch: Watch, client: str) -> Sequence[Ending]:
        now = self._clock.monotonic()
        try:
            return await self._do(
                lambda do: do.look(watch.to_ask(now), client), _patience(watch, now, self._settings.timeout)
            )
        except Unreachable as error:
            if watch.left(self._clock.monotonic()) == 0.0:
                raise watch.too_late() from error
            raise


def _run_id(id: str) -> str:
    if not is_run_id(id):
        raise BadName(f"{id!r} is not a run id")
    return id


def _patience(watch: Watch, now: float, most: float) -> float:
    left = watch.left(now)
    return most if left is None else min(left, most)
