"""Middleware: code that is called when a run is enqueued, around each attempt, and after each attempt.

A client (`Client(middleware=[…])`) and a registry (`Registry(middleware=[…])`) take a list of middleware. An error of a middleware
is logged. It never changes the outcome of a run, and a call that enqueues runs never fails because of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from zlib import crc32

from coordinator.encoding.codec import encode
from coordinator.errors import BadOption
from coordinator.model.policies.budget import Spending
from coordinator.model.run import AttemptRecord, Status

logger = logging.getLogger(__name__)

HEADERS = "headers"  # the name under which a spec stores the headers of a run, among its other extra values
HEADERS_LIMIT = 8 * 1024
ENDED_OUTCOMES = frozenset({"completed", "failed", "cancelled", "dead"})
NOTHING_SPENT = Spending(0.0, 0, 0)
CHECKSUMS = 1 << 32  # the number of checksums of run ids


@dataclass(frozen=True, slots=True)
class EnqueueInfo:
    """A run that is about to be enqueued.

    Attributes:
        kind: The kind of the run.
        queue: The queue of the run.
        inputs: The inputs of the run. Do not change them.
        meta: The meta of the run. Do not change it.
        key: The idempotency key, or None.
        parent: The id of the run whose handler enqueues this one, or None.
        headers: Text by name that is stored with the run and that `AttemptInfo.headers` returns in each attempt. A middleware may
            add to it. Views of the run do not show the headers.
    """

    kind: str
    queue: str
    inputs: Mapping[str, Any]
    meta: Mapping[str, Any]
    key: str | None
    parent: str | None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)  # not frozen: a frozen one takes three times as long to make
class AttemptInfo:
    """An attempt at a run.

    Attributes:
        run: The id of the run.
        kind: The kind of the run.
        queue: The queue of the run.
        attempt: The number of the attempt, from 1, over all lives of the run.
        life: The life of the run. It grows when the run is revived.
        worker: The id of the worker.
        created: When the run was created, in Unix seconds.
        claimed: When the worker claimed the run, in Unix seconds, by the clock of the server.
        cause: Why the run was started again: "release", "recover", "retry", "revive" or "wake"; empty in a first attempt.
        previous: The id of the worker that had the run before; empty in a first attempt.
        meta: The meta of the run.
        headers: The headers that middleware added when the run was enqueued.
        history: The earlier attempts that did not complete, oldest first, of a run that was started again. The worker reads it
            only if a middleware has `reads_history`; otherwise it is empty.
    """

    run: str
    kind: str
    queue: str
    attempt: int
    life: int
    worker: str
    created: float
    claimed: float
    cause: str
    previous: str
    meta: Mapping[str, Any]
    headers: Mapping[str, str]
    history: tuple[AttemptRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class StepInfo:
    """A step of an attempt.

    Attributes:
        attempt: The attempt.
        what: "phase" or "once" (the function of a phase or of an effect is called), "receive", "sleep", "gather" or "as_completed"
            (the run waits in the process), or "save" (a checkpoint is sent to the server).
        name: The name of the phase, the effect or the step, or the topics; empty for a sleep and a save.
    """

    attempt: AttemptInfo
    what: str
    name: str


@dataclass(slots=True)  # not frozen: a frozen one takes three times as long to make
class AttemptEnding:
    """The end of an attempt and its outcome, which the server has confirmed.

    Attributes:
        attempt: The attempt.
        outcome: "completed", "failed", "cancelled" or "dead" if the run has ended. Otherwise "retried", "released" (the worker is
            shutting down, or could not record the outcome), "waiting" (the run is suspended), "rejected" (the handler could not
            be started) or "lost" (the run belongs to another worker now).
        seconds: How long the attempt took.
        error: The error of the handler, if it raised one; for a killed run the error of its deadline.
        spent: What the handler has counted with `run.spend` in this attempt.
    """

    attempt: AttemptInfo
    outcome: str
    seconds: float
    error: BaseException | None = None
    spent: Spending = NOTHING_SPENT

    @property
    def ended(self) -> bool:
        """Return True if the run has ended."""
        return self.outcome in ENDED_OUTCOMES

    @property
    def status(self) -> Status | None:
        """The status of a run that has ended; otherwise None."""
        return Status(self.outcome) if self.ended else None


class Middleware:
    """The base class of middleware. Override the methods that you need.

    Attributes:
        reads_history: Whether `AttemptInfo.history` is read from the server for runs that were started again.
    """

    reads_history = False

    def selects(self, run: str) -> bool:
        """Return False to leave out a run: no other method is called for its attempts. Use it to sample runs cheaply.

        Args:
            run: The id of the run.
        """
        return True

    def on_enqueue(self, run: EnqueueInfo) -> None:
        """Handle a run that is about to be enqueued. Called in the thread or task that enqueues, before the run is sent.

        Args:
            run: The run. Headers that this method adds to `run.headers` are stored with the run.
        """

    def around_attempt(self, attempt: AttemptInfo) -> AbstractContextManager[object] | None:
        """Return a context manager that is open while the handler runs, or None.

        It is entered and left in the handler's own task, or in the thread of a plain handler. So it may set context
        variables that the handler reads. It gets the exception that leaves the handler, also `Stopped`, and cannot suppress it.

        Args:
            attempt: The attempt.
        """
        return None

    def around_step(self, step: StepInfo) -> AbstractContextManager[object] | None:
        """Return a context manager that is open during a step of an attempt, or None.

        It is entered and left like the context manager of `around_attempt`. A save runs in a task of its own, while the handler
        continues.

        Args:
            step: The step.
        """
        return None

    def on_ending(self, ending: AttemptEnding) -> None:
        """Handle the end of an attempt. Called on the event loop of the worker, after the server has confirmed the outcome.

        It must not block for long, because other runs of the process wait meanwhile.

        Args:
            ending: The attempt and its outcome.
        """

    def on_worker_end(self) -> None:
        """Handle the end of a worker. Called once on the event loop of the worker, after the worker has released its runs.

        The lifespans of the registry are still open. The method must not block for long. To send data over a network, register a
        function with `atexit`: a worker process calls these functions before it ends.
        """


class SamplingMiddleware(Middleware):
    """A middleware that selects a share of the runs by a checksum of their ids, so that all attempts at a run are selected or none.

    Attributes:
        limit: The runs whose checksum is below this number are selected; None until it is known. `CHECKSUMS` selects all runs.
    """

    limit: int | None = None

    def selects(self, run: str) -> bool:
        """Return True if the checksum of a run's id is below the limit."""
        return crc32(run.encode()) < (self.find_limit() if self.limit is None else self.limit)

    def find_limit(self) -> int:
        """Return the limit for a run while `limit` is not known. The method may set `limit`."""
        raise NotImplementedError


class MiddlewareChain:
    """The middleware of a client or a registry, in order. An empty chain is false.

    Args:
        middleware: The middleware. The first is the outermost.

    Attributes:
        members: The middleware.
        sees_endings: True if a middleware overrides `on_ending`.
        reads_history: True if a middleware has `reads_history`, so that the worker reads the earlier attempts of a run.

    Raises:
        BadOption: If an element is not a Middleware.
    """

    __slots__ = (
        "_around",
        "_ending",
        "_enqueue",
        "_parts",
        "_sampling",
        "_selecting",
        "_steps",
        "members",
        "reads_history",
        "sees_endings",
    )

    def __init__(self, middleware: Iterable[Middleware] = ()) -> None:
        self.members = tuple(middleware)
        for one in self.members:
            if not isinstance(one, Middleware):
                raise BadOption(f"{one!r:.80} is not a middleware: derive its class from coordinator.Middleware")
        # Only overridden methods are called.
        self._enqueue = [one for one in self.members if type(one).on_enqueue is not Middleware.on_enqueue]
        self._around = [one for one in self.members if type(one).around_attempt is not Middleware.around_attempt]
        self._ending = [one for one in self.members if type(one).on_ending is not Middleware.on_ending]
        self._steps = [one for one in self.members if type(one).around_step is not Middleware.around_step]
        self._selecting = tuple(one for one in self.members if type(one).selects is not Middleware.selects)
        self._parts: dict[tuple[Middleware, ...], MiddlewareChain] = {(): self}
        # The usual case: the only middleware samples runs.
        self._sampling: SamplingMiddleware | None = None
        if len(self.members) == 1 and isinstance(self.members[0], SamplingMiddleware):
            one = self.members[0]
            self._sampling = one if type(one).selects is SamplingMiddleware.selects else None
        self.sees_endings = bool(self._ending)
        self.reads_history = any(one.reads_history for one in self.members)

    def __bool__(self) -> bool:
        return bool(self.members)

    def headers(self, run: EnqueueInfo) -> dict[str, str]:
        """Call `on_enqueue` of each middleware, and return the headers that they added.

        Headers that cannot be stored are left out.
        """
        for one in self._enqueue:
            before = dict(run.headers)
            try:
                one.on_enqueue(run)
                _check_headers(run.headers)
            except Exception:
                logger.exception("middleware %s failed in on_enqueue of a run of kind %s", _name(one), run.kind)
                run.headers.clear()
                run.headers.update(before)
        return run.headers

    def of_run(self, run: str) -> MiddlewareChain:
        """Return the chain without the middleware whose `selects` returns False for the run with this id."""
        return self._without(tuple(one for one in self._selecting if not _selects(one, run)))

    def of_runs(self, runs: Sequence[str]) -> dict[str, MiddlewareChain]:
        """Return the chain of each run whose chain is not empty, by the id of the run."""
        if self._sampling is not None and (limit := self._sampling.limit) is not None:
            # The same as `selects`, without a call: this is done for every run, and most runs are not sampled.
            return {run: self for run in runs if crc32(run.encode()) < limit}
        chains = {run: self.of_run(run) for run in runs}
        return {run: chain for run, chain in chains.items() if chain}

    def _without(self, some: tuple[Middleware, ...]) -> MiddlewareChain:
        """Return the chain without some of its middleware. Each such chain is made once."""
        if some not in self._parts:
            chosen = [one for one in self.members if one not in some]
            self._parts[some] = MiddlewareChain(chosen) if chosen else NO_MIDDLEWARE
        return self._parts[some]

    def around(self, attempt: AttemptInfo) -> _Around:
        """Return the context manager that is open while the handler of an attempt runs."""
        return _Around([(one, one.around_attempt) for one in self._around], attempt, attempt)

    def steps_of(self, attempt: AttemptInfo) -> Callable[[str, str], AbstractContextManager[None]] | None:
        """Return the function that makes the context manager around a step of an attempt; None if no middleware needs it."""
        if not self._steps:
            return None

        def around_step(what: str, name: str) -> _Around:
            return _Around([(one, one.around_step) for one in self._steps], StepInfo(attempt, what, name), attempt)

        return around_step

    def on_ending(self, ending: AttemptEnding) -> None:
        """Call `on_ending` of each middleware, the innermost first."""
        for one in reversed(self._ending):
            try:
                one.on_ending(ending)
            except Exception:
                logger.exception("middleware %s failed in on_ending of run %s", _name(one), ending.attempt.run)


def end_worker(chains: Iterable[MiddlewareChain]) -> None:
    """Call `on_worker_end` of each middleware of some chains, once if several chains have it."""
    for one in {id(one): one for chain in chains for one in chain.members}.values():
        try:
            one.on_worker_end()
        except BaseException:  # no error of a middleware may change how the worker ends, not even a SystemExit
            logger.exception("middleware %s failed in on_worker_end", _name(one))


NO_MIDDLEWARE = MiddlewareChain()

# The middleware of the registry whose handler is executing. A client in a handler uses it, if the client has none of its own.
current_middleware: ContextVar[MiddlewareChain] = ContextVar("coordinator.middleware.current", default=NO_MIDDLEWARE)


class _Around(AbstractContextManager[None]):
    """A context manager that enters the context managers of all middleware for one attempt or step, and logs their errors."""

    __slots__ = ("_argument", "_attempt", "_entered", "_methods")

    def __init__(
        self, methods: Sequence[tuple[Middleware, Callable[[Any], Any]]], argument: object, attempt: AttemptInfo
    ) -> None:
        self._methods, self._argument, self._attempt = methods, argument, attempt
        self._entered: list[tuple[Middleware, AbstractContextManager[object]]] = []

    def __enter__(self) -> None:
        for one, method in self._methods:
            try:
                context = method(self._argument)
                if context is not None:
                    context.__enter__()
                    self._entered.append((one, context))
            except BaseException:  # no error of a middleware may end an attempt, not even a SystemExit
                logger.exception("middleware %s failed before an attempt at run %s", _name(one), self._attempt.run)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._entered:
            one, context = self._entered.pop()
            try:
                context.__exit__(kind, error, trace)
            except BaseException as raised:  # no error of a middleware may end an attempt
                if raised is not error:
                    logger.exception("middleware %s failed after an attempt at run %s", _name(one), self._attempt.run)


def _check_headers(headers: Mapping[str, str]) -> None:
    """Check that the headers can be stored.

    Raises:
        BadOption: If a name or a value is not text.
        CoordinatorError: If the headers are larger than 8 KiB or cannot be encoded.
    """
    for name, value in headers.items():
        if type(name) is not str or type(value) is not str:
            raise BadOption(f"header {name!r:.80} is not text: names and values of headers are text")
    encode(headers, "headers", HEADERS_LIMIT)


def read_headers(extra: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that are stored in the extra values of a run's spec."""
    found = extra.get(HEADERS)
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if isinstance(name, str) and isinstance(value, str)}


def _selects(middleware: Middleware, run: str) -> bool:
    try:
        return middleware.selects(run)
    except Exception:
        logger.exception("middleware %s failed in selects of run %s", _name(middleware), run)
        return False


def _name(middleware: Middleware) -> str:
    return type(middleware).__qualname__


__all__ = ["AttemptEnding", "AttemptInfo", "EnqueueInfo", "Middleware", "StepInfo"]
