"""What a handler is given: `Run` in plain handlers, `AsyncRun` in async ones.

Every cut (a turn's end, a phase's end, checkpoint, flush) is a place to stop: there a stop that was asked for is raised, once.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, Protocol, overload

from coordinator.encoding.codec import decode
from coordinator.errors import Refused
from coordinator.model.outcome import Why
from coordinator.model.run import Failure, Note
from workers.handlers.draft import RESULT_LIMIT, Cut, Draft
from workers.handlers.messages import Messages, kept

if TYPE_CHECKING:  # defaults of type variables are newer than 3.11; only checkers need to know this one
    from typing_extensions import TypeVar

    R_co = TypeVar("R_co", covariant=True, default=object)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)

P = ParamSpec("P")
T = TypeVar("T")


class Stopped(BaseException):
    """The run is to stop here: drain, cancel, deadline or lost. No Exception, so that a broad except does not swallow it, and no
    CancelledError, which a TaskGroup would."""

    def __init__(self, why: Why) -> None:
        super().__init__(why)
        self.why: Why = why


@dataclass(frozen=True, slots=True)
class Resumed:
    """Why and after what a run goes on: release, recover, retry or revive; who had it; what was appended after its last cut; and
    `killed`, what its life before an operator revived it was killed for at a deadline."""

    cause: str
    age: float | None
    worker: str
    code: str
    unfinished: tuple[Any, ...]
    killed: Failure | None = None


class Facts(NamedTuple):
    """What does not change during an attempt."""

    id: str
    kind: str
    inputs: Mapping[str, Any]
    meta: Mapping[str, Any]
    attempt: int
    token: str
    resumed: Resumed | None


class Backing(Protocol):
    """What stands behind a run: in a worker the attempt, in a test a stand-in. `stopping` is set from outside."""

    stopping: Stopped | None
    delivered: bool

    def offer(self, cut: Cut) -> None:
        """From the handler's thread: never blocks, never raises on the network."""
        ...

    async def flush(self, cut: Cut) -> None:
        """On the worker's event loop: saved when it returns; raises Stopped where that can't be any more."""
        ...

    async def wait_until_confirmed(self) -> None:
        """On the worker's event loop: returns when the lease is not in doubt, or a stop was asked for."""
        ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def threads(self) -> Executor | None:
        """Where the plain functions of an async handler's phases run."""
        ...

    def say(self, note: Note) -> None: ...


class _Context(Generic[R_co]):
    """What both kinds of run have."""

    def __init__(self, facts: Facts, resources: R_co, draft: Draft, backing: Backing) -> None:
        self._facts, self._resources, self._draft, self._backing = facts, resources, draft, backing
        self._looping = False

    @property
    def id(self) -> str:
        return self._facts.id

    @property
    def kind(self) -> str:
        return self._facts.kind

    @property
    def inputs(self) -> Mapping[str, Any]:
        return self._facts.inputs

    @property
    def meta(self) -> Mapping[str, Any]:
        return self._facts.meta

    @property
    def attempt(self) -> int:
        return self._facts.attempt

    @property
    def token(self) -> str:
        """Changes with every owner: outside systems can fence by it."""
        return self._facts.token

    @property
    def epoch(self) -> int:
        """The part of the token that grows with every owner."""
        return int(self._facts.token.partition("-")[0])

    @property
    def resources(self) -> R_co:
        """What the registry's lifespan yielded."""
        return self._resources

    @property
    def resumed(self) -> Resumed | None:
        """None on a first attempt."""
        return self._facts.resumed

    @property
    def messages(self) -> Messages:
        return self._draft.messages

    @property
    def iteration(self) -> int:
        """How many turns are complete."""
        return self._draft.iteration

    @property
    def state(self) -> dict[str, Any]:
        return self._draft.state

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        if not isinstance(value, dict):
            raise Refused(f"run.state must be a dict, and this is a {type(value).__name__}")
        self._draft.state = value

    @property
    def stopping(self) -> Stopped | None:
        """The stop that was asked for, if any. Code without cuts writes `if run.stopping: raise run.stopping`."""
        return self._backing.stopping

    def note(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """What people see of the progress. It travels with the next save or heartbeat."""
        shown = str(text)[:1000].encode(errors="replace").decode()
        self._backing.say(Note(shown, _number(done, "done"), _number(total, "total")))

    def checkpoint(self) -> None:
        """Offers what is held to be saved, when the throttle's window allows. A cut, and so a place to stop."""
        self._backing.offer(self._draft.cut())
        self._stop_here()

    def _stop_here(self) -> None:
        """Raises a stop that was asked for; once, so that what cleans up after it can go on."""
        backing = self._backing
        if backing.stopping is not None and not backing.delivered:
            backing.delivered = True
            raise backing.stopping

    def _turns(self, limit: int) -> range:
        if self._looping:
            raise Refused("a run has one loop: its turns are what the checkpoint counts")
        if self._draft._at_once:
            raise Refused("the loop of a run can't be inside a phase")
        self._looping = True
        return range(self._draft.iteration, limit)

    def _end_turn(self, turn: int) -> None:
        self._draft.end_turn(turn)
        self._backing.offer(self._draft.cut())
        self._stop_here()


class AsyncRun(_Context[R_co]):
    """What an async handler is given."""

    async def flush(self) -> None:
        """Saves what is held; it is durable when this returns."""
        await self._saved_now()
        self._stop_here()

    async def _saved_now(self) -> None:
        await self._backing.flush(self._draft.cut())  # first: a stop that is raised in here takes this cut along
        await self._backing.wait_until_confirmed()

    async def loop(self, limit: int) -> AsyncIterator[int]:
        """Turns from the saved one on, a cut after each; ends at the limit, as range does."""
        for turn in self._turns(limit):
            await self._backing.wait_until_confirmed()
            self._stop_here()
            self._draft.turn = turn
            yield turn
            self._end_turn(turn)

    @overload
    async def phase(
        self, name: str, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def phase(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def phase(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """fn's output, kept: a resumed run gets it without running fn again. A plain fn runs in a thread."""
        field = self._draft.begin_phase(name)
        if field in self._draft.phases:
            self._draft.end_phase(field, self._draft.phases[field])
            return decode(self._draft.phases[field], name)
        output = None
        try:
            await self._backing.wait_until_confirmed()
            self._stop_here()
            value = await _called(fn, args, kwargs, self._backing.threads)
            output = kept(value, f"the output of phase {name!r}", RESULT_LIMIT)
        finally:
            self._draft.end_phase(field, output)
        await self._saved_now()
        self._stop_here()
        return decode(output, name)


class Run(_Context[R_co]):
    """What a plain handler is given; it runs in a thread."""

    def flush(self) -> None:
        """Saves what is held; it is durable when this returns."""
        self._saved_now()
        self._stop_here()

    def _saved_now(self) -> None:
        self._await(self._backing.flush(self._draft.cut()))
        self._await(self._backing.wait_until_confirmed())

    def _await(self, awaitable: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(awaitable, self._backing.loop).result()

    def loop(self, limit: int) -> Iterator[int]:
        """Turns from the saved one on, a cut after each; ends at the limit, as range does."""
        for turn in self._turns(limit):
            self._await(self._backing.wait_until_confirmed())
            self._stop_here()
            self._draft.turn = turn
            yield turn
            self._end_turn(turn)

    def phase(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """fn's output, kept: a resumed run gets it without running fn again."""
        field = self._draft.begin_phase(name)
        if field in self._draft.phases:
            self._draft.end_phase(field, self._draft.phases[field])
            return decode(self._draft.phases[field], name)  # type: ignore[no-any-return]
        output = None
        try:
            self._await(self._backing.wait_until_confirmed())
            self._stop_here()
            output = kept(fn(*args, **kwargs), f"the output of phase {name!r}", RESULT_LIMIT)
        finally:
            self._draft.end_phase(field, output)
        self._saved_now()
        self._stop_here()
        return decode(output, name)  # type: ignore[no-any-return]


def _number(value: float | None, what: str) -> float | None:
    """Refused here and not at a later save, which nobody watches."""
    if value is None or (type(value) is int and abs(value) < 2**63):
        return value
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise Refused(f"run.note({what}=…) must be a number, and this is {value!r:.80}") from None


async def _called(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], threads: Executor | None
) -> Any:
    """What fn gives: awaited here where it is async, else in a thread."""
    if inspect.iscoroutinefunction(fn):
        return await fn(*args, **kwargs)
    context = contextvars.copy_context()
    value = await asyncio.get_running_loop().run_in_executor(threads, lambda: context.run(_plainly, fn, args, kwargs))
    return await value if isinstance(value, Awaitable) else value


def _plainly(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A StopIteration can't be put into a future: who waits for it would wait for ever."""
    try:
        return fn(*args, **kwargs)
    except StopIteration as stop:
        raise RuntimeError(f"{fn!r} raised StopIteration") from stop
