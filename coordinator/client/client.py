"""The client for threads. async_client.py has the client for event loops. The operations of both are in operations/.

A client connects at first use. Its connections belong to one process: after a fork it opens new ones.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from coordinator.client.handles import Handle
from coordinator.client.operations import enqueue as enqueue_operations
from coordinator.client.operations import groups as group_operations
from coordinator.client.operations import lists as list_operations
from coordinator.client.operations import rates as rate_operations
from coordinator.client.operations import runs as run_operations
from coordinator.client.operations import schedules as schedule_operations
from coordinator.client.operations.open_namespace import OpenNamespace
from coordinator.client.output.feed import Feed
from coordinator.client.parent import current_parent, warn_of_waiting
from coordinator.client.run_builder import EnqueueManyOptions, EnqueueOptions
from coordinator.client.schedules import ScheduleOptions, When
from coordinator.client.waiting.direct_wait import DirectWait
from coordinator.client.waiting.ending_tracker import EndingTracker
from coordinator.client.waiting.hints import HintReader
from coordinator.clock import Clock, SystemClock
from coordinator.config import Settings, settings
from coordinator.errors import CoordinatorError, NotFound, Refused, Unreachable
from coordinator.middleware import Middleware, MiddlewareChain
from coordinator.model.enqueue import HandlerOf, Inputs
from coordinator.model.policies.groups import UNCHANGED, GroupLimit, Unchanged
from coordinator.model.policies.rates import RateLimit
from coordinator.model.policies.schedule import ScheduleView
from coordinator.model.run import RunView, Status
from coordinator.model.run_id import is_run_id
from coordinator.store.plans.merge import Plan
from coordinator.store.transport.wire import Wire, drive
from coordinator.views.ending import Ending
from coordinator.views.namespace_view import Overview, WorkerView

T = TypeVar("T")
P = ParamSpec("P")

Views = list[RunView]  # inside the class, `list` is a method
Schedules = list[ScheduleView]


class _Session:
    """The connections of a Client in one process."""

    def __init__(self, settings: Settings, clock: Clock, middleware: MiddlewareChain) -> None:
        self.pid = os.getpid()
        self.wire = Wire(settings.address, settings.timeout)
        self.hints = HintReader(settings.address, self.wire, clock)
        self.feed = Feed(settings.address, self.wire)
        check = None if settings.address.scheme == "memory" else settings.address
        self.namespace = OpenNamespace(settings.namespace, clock, check=check, middleware=middleware)
        self.direct = DirectWait(settings.address, self.wire, self.namespace)

    def close(self) -> None:
        self.feed.close()
        self.hints.close()
        self.wire.close()


class Client:
    """A client for threads: enqueue runs, read them, change them, and wait for their results.

    Threads may share a client, and a client works after a fork.
    """

    def __init__(
        self,
        url: str | None = None,
        namespace: str | None = None,
        timeout: float = 30.0,
        middleware: Iterable[Middleware] = (),
    ) -> None:
        """Make a client, which connects at its first use.

        Args:
            url: The server. Default: the server of the worker, if a handler makes the client; else RUNS_URL, REDIS_URL, or a local
                Redis.
            namespace: The namespace. Default: the namespace of the worker, if a handler makes the client; else RUNS_NAMESPACE, or
                "runs".
            timeout: Seconds after which a call fails if the server does not answer.
            middleware: Code that is called for each run that the client enqueues; the first is called first. In a handler, a
                client without middleware uses the middleware of the registry.

        Raises:
            BadOption: The URL, the timeout or the middleware is not valid.
            BadName: The namespace is not a valid name.
        """
        self._settings = settings(url, namespace, timeout)
        self._middleware = MiddlewareChain(middleware)
        self._clock: Clock = SystemClock()
        self._session: _Session | None = None
        self._locks: dict[int, threading.Lock] = {}
        self._closed = False

    def __enter__(self) -> Client:
        """Return the client."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Close the client. Its handles stop working."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None and session.pid == os.getpid():
            session.close()

    @overload
    def enqueue(self, inputs: Inputs[T], /, **options: Unpack[EnqueueOptions]) -> Handle[T]: ...
    @overload
    def enqueue(
        self, handler: HandlerOf[T], /, inputs: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Handle[T]: ...
    @overload
    def enqueue(
        self, kind: str, /, inputs: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Handle[Any]: ...
    def enqueue(
        self,
        what: Inputs[Any] | HandlerOf[Any] | str,
        /,
        inputs: Mapping[str, Any] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Handle[Any]:
        """Enqueue a run. When this call has returned, the run will not be lost.

        Args:
            what: `handler.inputs(…)`, a handler, or the kind of the run.
            inputs: The inputs of the run, where `what` is a handler or a kind: a dict of values by name.
            options: `queue`, `priority`, `delay` or `at`, `expires`, `key`, `key_ttl`, `retention`, `schema`, `parent`,
                `meta`, `budget`, `group`; and `id`, to repeat a call that raised Unconfirmed.

        Returns:
            A handle of the run. Its `created` is False if the key belonged to a run that already existed.

        Raises:
            Unconfirmed: The server did not answer, so the run may or may not be enqueued. Call again with the error's id.
            Unreachable: The server can't be reached; nothing was enqueued.
            KeyConflict: The key belongs to a run with other inputs.
            NotPlain: An input has a type that can't be stored.
            TooLarge: The inputs are too large.
            BadOption: An option is not valid.
            IdExpired: `id` is too old: the server can't tell whether its run was executed.
            TreeCancelled: The parent was cancelled with all runs below it.
        """
        return self._do(enqueue_operations.enqueue, what, inputs, options, self._make_handle)

    @overload
    def enqueue_many(self, runs: Iterable[Inputs[T]], /, **options: Unpack[EnqueueManyOptions]) -> list[Handle[T]]: ...
    @overload
    def enqueue_many(
        self, runs: Iterable[tuple[str, Mapping[str, Any]]], /, **options: Unpack[EnqueueManyOptions]
    ) -> list[Handle[Any]]: ...
    def enqueue_many(self, runs: Iterable[Any], /, **options: Unpack[EnqueueManyOptions]) -> list[Handle[Any]]:
        """Enqueue many runs in batches, as they come out of the iterable.

        Args:
            runs: For each run `handler.inputs(…)`, or a pair of its kind (or handler) and its inputs.
            options: The options of `enqueue`, for all runs. `key` is a function that returns the key for the inputs of a run,
                and `group` may be such a function. `ids` repeats a call that raised Unconfirmed.

        Returns:
            A handle for each run, in order.

        Raises:
            Unconfirmed: The server did not answer for some of the runs. Call again with the error's ids and the same runs.
        """
        return self._do(enqueue_operations.enqueue_many, runs, options, self._make_handle)

    def handle(self, id: str) -> Handle[Any]:
        """Return a handle of the run with this id. The call does not contact the server.

        Raises:
            NotFound: The text is not a run id, so there is no such run.
        """
        return self._make_handle(check_run_id(id), False)

    def wait(self, handles: Iterable[Handle[T]], timeout: float | None = None) -> Iterator[Handle[T]]:
        """Yield the handles in the order in which their runs end.

        Args:
            handles: Handles of the runs to wait for.
            timeout: Seconds to wait for all of them; None waits forever.

        Raises:
            ResultTimeout: Some of the runs have not ended in time.
        """
        by_id = {handle.id: handle for handle in handles}
        return (by_id[ending.run] for ending in self._endings(by_id, timeout))

    def workers(self) -> list[WorkerView]:
        """Return the live workers, and lost workers whose runs have not been recovered yet."""
        return self._do(list_operations.list_workers)

    def status(self) -> Overview:
        """Return the state of the namespace: counts of runs, queues, workers and coordinators."""
        return self._do(list_operations.count)

    def list(
        self, status: Status | str | None = None, kind: str | None = None, queue: str | None = None, limit: int = 100
    ) -> Views:
        """Return runs, newest first. With the status queued, delayed or waiting they come in the order in which they will continue.

        Args:
            status: Only runs with this status.
            kind: Only runs of this kind.
            queue: Only runs of this queue.
            limit: The largest number of runs, up to 10,000.
        """
        return self._do(list_operations.list_runs, status, kind, queue, limit)

    @overload
    def schedule(self, name: str, when: When, inputs: Inputs[Any], /, **options: Unpack[ScheduleOptions]) -> None: ...
    @overload
    def schedule(
        self,
        name: str,
        when: When,
        kind: str | HandlerOf[Any],
        /,
        inputs: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> None: ...
    def schedule(
        self,
        name: str,
        when: When,
        what: Inputs[Any] | HandlerOf[Any] | str,
        /,
        inputs: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> None:
        """Set a schedule: a coordinator enqueues a run at each fire time.

        A second call with the same name replaces the schedule. A paused schedule stays paused, and the next fire time stays if
        the rules are the same.

        Args:
            name: The name of the schedule.
            when: A cron expression, 'every 30s', a number of seconds, or a timedelta.
            what: `handler.inputs(…)`, a handler, or the kind of the runs.
            inputs: The inputs of the runs, where `what` is a handler or a kind.
            options: `tz` (the time zone of a cron expression), `jitter`, `overlap` (skip, allow or cancel) and `catch_up`
                (latest, all or none); and for the runs `queue`, `priority`, `expires`, `retention`, `schema` and `meta`.

        Raises:
            BadName: The name or the kind is not valid.
            BadOption: A rule or an option is not valid.
        """
        self._do(schedule_operations.set_schedule, name, when, what, inputs, options)

    def schedules(self) -> Schedules:
        """Return all schedules, sorted by name. The `trouble` of a schedule says why it does not fire."""
        return self._do(schedule_operations.list_schedules)

    def pause_schedule(self, name: str) -> None:
        """Stop a schedule from firing until it is unpaused. Runs that it has enqueued are not affected.

        Raises:
            NotFound: There is no schedule of this name.
        """
        self._do(schedule_operations.pause_schedule, name, True)

    def unpause_schedule(self, name: str) -> None:
        """Let a paused schedule fire again, from its next fire time on.

        Raises:
            NotFound: There is no schedule of this name.
        """
        self._do(schedule_operations.pause_schedule, name, False)

    def unschedule(self, name: str) -> None:
        """Remove a schedule. Runs that it has enqueued are not affected.

        Raises:
            NotFound: There is no schedule of this name.
        """
        self._do(schedule_operations.unschedule, name)

    def pause(self, *, queue: str | None = None, kind: str | None = None) -> bool:
        """Stop workers from claiming runs of a queue or of a kind. Running runs continue.

        Args:
            queue: The queue to pause.
            kind: The kind to pause, instead of a queue.

        Returns:
            True if this call paused it; False if it was already paused.
        """
        return self._do(list_operations.pause, queue, kind)

    def unpause(self, *, queue: str | None = None, kind: str | None = None) -> bool:
        """Let workers claim runs of a queue or of a kind again. Idle workers are woken immediately.

        Args:
            queue: The queue to unpause.
            kind: The kind to unpause, instead of a queue.

        Returns:
            True if this call unpaused it; False if it was not paused.
        """
        return self._do(list_operations.unpause, queue, kind)

    def set_limit(
        self,
        kind: str,
        *,
        at_once: int | Unchanged | None = UNCHANGED,
        rate: str | Unchanged | None = UNCHANGED,
        burst: int | None = None,
        group: str | None = None,
    ) -> bool:
        """Set how many runs of a group may be ready or running at the same time, and how many may start per unit of time.

        The limits take effect within a second. They replace the limits that handlers publish. A lower limit stops no running run.
        If `at_once` or `rate` is not given, that limit stays as it is.

        Args:
            kind: The kind of the runs.
            at_once: How many runs may be ready or running; 0 admits no run, None removes the limit.
            rate: How many runs may start, as `10/min`. The units are s, min, h and day. None removes the limit.
            burst: How many runs may start at one moment, after a time without starts. Default: what the rate allows in one
                second, but at least 1.
            group: The group; None for each group of the kind that has no limit of its own.

        Returns:
            True if this call changed a limit; False if the limits already had these values.

        Raises:
            BadOption: A limit or the group is not valid, or no limit is given.
            NotConfigured: A rate is given, but a live process has an older version that does not count starts.
        """
        return self._do(group_operations.set_limit, kind, group, at_once, rate, burst)

    def remove_limit(self, kind: str, *, group: str | None = None) -> bool:
        """Remove the limits that `set_limit` has set. Then the limit of the kind or of its handler applies, if there is one.

        Args:
            kind: The kind of the runs.
            group: The group; None for the limit of the kind.

        Returns:
            True if this call removed the limit; False if there was no such limit.
        """
        return self._do(group_operations.remove_limit, kind, group)

    def limits(self) -> tuple[GroupLimit, ...]:
        """Return all limits, sorted by kind and group: limits that handlers publish, and limits that `set_limit` has set."""
        return self._do(group_operations.list_limits)

    def set_rate(
        self, name: str, rate: str | None = None, *, burst: int | None = None, at_once: int | None = None
    ) -> bool:
        """Set the rate of external calls that handlers make with `run.limit(name)`. It takes effect at once.

        All processes of the namespace share the rate. Calls that are under way continue.

        Args:
            name: The name of the limit, 1 to 100 characters of A-Z a-z 0-9 _ . -
            rate: The tokens that calls may use, as `90000/min`. The units are s, min, h and day. None limits only how many calls
                are under way.
            burst: The tokens that calls may use at one moment. A call with a higher cost is refused. Default: what the rate allows
                in one second, but at least 1.
            at_once: How many calls may be under way at the same time; 0 lets no call start, None removes the limit.

        Returns:
            True if this call changed the rate; False if it already had these values.

        Raises:
            BadOption: An option is not valid, or neither `rate` nor `at_once` is given.
            BadName: The name is not valid.
        """
        return self._do(rate_operations.set_rate, name, rate, burst, at_once)

    def remove_rate(self, name: str) -> bool:
        """Remove a rate. From then on, `run.limit(name)` raises NotConfigured, also in handlers that wait for the rate.

        Args:
            name: The name of the limit.

        Returns:
            False if there was no such rate.
        """
        return self._do(rate_operations.remove_rate, name)

    def rates(self) -> tuple[RateLimit, ...]:
        """Return all rates, sorted by name, with the numbers of running and waiting calls."""
        return self._do(rate_operations.list_rates)

    # ---- shared by the methods above

    def _open(self) -> _Session:
        """Return the session of this process, which is opened at its first use and after a fork.

        Raises:
            Refused: The client is closed.
        """
        session = self._session
        pid = os.getpid()
        if session is None or session.pid != pid:
            # Each process has its own lock: a fork may copy a lock that another thread holds.
            with self._locks.setdefault(pid, threading.Lock()):
                session = self._session
                if self._closed:
                    raise Refused("the client is closed")
                if session is None or session.pid != pid:
                    session = self._session = _Session(self._settings, self._clock, self._middleware)
        return session

    def _do(self, operation: Callable[Concatenate[OpenNamespace, P], Plan[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Carry out an operation on the client's namespace, and return its result."""
        session = self._open()
        return drive(session.wire, operation(session.namespace, *args, **kwargs))

    def _make_handle(self, id: str, created: bool, handler: object = None) -> Handle[Any]:
        return Handle(self, id, created, getattr(handler, "read_result", None), getattr(handler, "write_signal", None))

    def _ending(self, id: str, timeout: float | None) -> Ending:
        """Wait until a run has ended, and return its ending.

        Raises:
            ResultTimeout: The run has not ended in time.
        """
        tracker, session = EndingTracker([id], self._clock.monotonic(), timeout), self._open()
        # The facts of the namespace are read now, if they are not known.
        self._drive_in_time(session.namespace.keys(id), tracker)
        direct, call, ending = session.direct, object(), None
        try:
            if direct.acquire(call, timeout):
                ending = self._wait_directly(id, tracker, direct)
        finally:
            direct.release(call)
        if ending is not None:
            return ending
        tracker.hint([id])  # an error that ended the direct wait may have cost the hint, so the server is asked at once
        with closing(self._track(tracker)) as endings:
            return next(endings)

    def _wait_directly(self, id: str, tracker: EndingTracker, direct: DirectWait) -> Ending | None:
        """Wait in this thread until a run has ended. Return None after an error: the run may have ended.

        Raises:
            ResultTimeout: The run has not ended in time.
        """
        if current_parent.get() is not None:  # a handler, which is warned only of a child that has not ended
            if endings := self._collect(tracker, direct.client):
                return endings[0]
            warn_of_waiting(tracker.open)
        while True:
            try:
                ending = direct.wait(id, tracker.block_seconds(self._clock.monotonic()))
            except NotFound:
                raise
            except CoordinatorError as error:
                if isinstance(error, Unreachable) and tracker.left(self._clock.monotonic()) == 0.0:
                    raise tracker.timed_out() from error
                return None
            if ending is not None:
                return ending
            if tracker.left(self._clock.monotonic()) == 0.0:
                raise tracker.timed_out()

    def _endings(self, ids: Iterable[str], timeout: float | None) -> Generator[Ending, None, None]:
        """Yield the endings of the runs, in the order in which the runs end.

        Raises:
            ResultTimeout: Some of the runs have not ended in time.
        """
        return self._track(EndingTracker([*ids], self._clock.monotonic(), timeout))

    def _track(self, tracker: EndingTracker) -> Generator[Ending, None, None]:
        session = self._open()
        hints = session.hints
        lists = self._drive_in_time(run_operations.wake_lists(session.namespace, hints.client), tracker)
        with hints.mailbox([*tracker.open], lists) as mailbox:
            while tracker.open:
                for ending in self._collect(tracker, hints.client):
                    tracker.ended(ending.run)
                    yield ending
                if tracker.open:
                    warn_of_waiting(tracker.open)
                    tracker.hint(mailbox.take(tracker.rest(self._clock.monotonic())))

    def _collect(self, tracker: EndingTracker, client: str) -> Sequence[Ending]:
        session = self._open()
        ids = tracker.to_ask(self._clock.monotonic())
        return self._drive_in_time(run_operations.collect_endings(session.namespace, ids, client), tracker)

    def _drive_in_time(self, plan: Plan[T], tracker: EndingTracker) -> T:
        """Run a plan of a call that waits, and return its result. Its requests are repeated no longer than the call may wait.

        Raises:
            ResultTimeout: The server can't be reached, and the time of the call is over.
            Unreachable: The server can't be reached.
        """
        try:
            left = tracker.left(self._clock.monotonic())
            return drive(self._open().wire, plan, shorter(left, self._settings.timeout))
        except Unreachable as error:
            if tracker.left(self._clock.monotonic()) == 0.0:
                raise tracker.timed_out() from error
            raise


def check_run_id(id: str) -> str:
    """Return the text if it is a run id.

    Raises:
        NotFound: The text is not a run id.
    """
    if str(id) != id or not is_run_id(id):
        raise NotFound(f"there is no run {id!r:.120}: the text is not a run id")
    return id


def shorter(left: float | None, most: float) -> float:
    """Return the timeout of one call in seconds: the rest of the caller's timeout (`left`), but at most `most`."""
    return most if left is None else min(left, most)
