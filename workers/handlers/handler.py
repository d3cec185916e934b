"""A handler: a function, what it may be called with, and how its runs are treated.

Whatever could only go wrong when the first run comes in is refused here, at decoration, with a sentence.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, get_args

from coordinator.errors import BadOption, Refused
from coordinator.model.deadline import Deadline
from coordinator.model.retry import Retry
from coordinator.model.run import Inputs, name
from workers.handlers.context import AsyncRun, Run
from workers.handlers.signature import Signature

# A bound this wide lets every plain result pass and not a coroutine: an async handler that takes a Run is a type error.
PlainResult: TypeAlias = bool | int | float | str | bytes | datetime | Sequence[Any] | Mapping[Any, Any] | None

P = ParamSpec("P")
T_co = TypeVar("T_co", bound=PlainResult, covariant=True)
M = TypeVar("M", bound=Callable[..., Any])
OnLostLease = Literal["wait", "stop"]

NO_RETRY = Retry()
NO_DEADLINE = Deadline()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How the runs of a kind are treated. Times in seconds."""

    retry: Retry = NO_RETRY
    deadline: Deadline = NO_DEADLINE
    schema: int = 1
    grace: float | None = None
    throttle: float = 1.0
    on_lost_lease: OnLostLease = "wait"

    def __post_init__(self) -> None:
        if not isinstance(self.retry, Retry):
            raise BadOption(f"retry={self.retry!r} is not a Retry(…)")
        if not isinstance(self.deadline, Deadline):
            raise BadOption(f"deadline={self.deadline!r} is not a Deadline(…)")
        if self.schema not in range(1, 100):
            raise BadOption(f"schema={self.schema!r} is not a number within 1..99")
        if self.grace is not None and not 0 <= self.grace < 1e11:
            raise BadOption(f"grace={self.grace!r} is not a time of 0 seconds or more")
        if not 0 <= self.throttle < 1e11:
            raise BadOption(f"throttle={self.throttle!r} is not a time of 0 seconds or more")
        if self.on_lost_lease not in get_args(OnLostLease):
            raise BadOption(f"on_lost_lease={self.on_lost_lease!r} is neither 'wait' nor 'stop'")


class Handler(Generic[P, T_co]):
    """What runs a kind; P are its inputs, T what it returns. Made by `@runs.handler`."""

    is_async: bool

    def __init__(self, function: Callable[..., Any], kind: str, policy: Policy) -> None:
        self.__doc__ = function.__doc__
        self.function = function
        self.kind = name(kind, "kind")
        self.retry, self.deadline, self.schema = policy.retry, policy.deadline, policy.schema
        self.grace, self.throttle, self.on_lost_lease = policy.grace, policy.throttle, policy.on_lost_lease
        self.migrations: dict[int, Callable[..., Any]] = {}
        self._signature = Signature.of(function, kind)

    def __repr__(self) -> str:
        return f"<handler of {self.kind!r}: {self.place}>"

    @property
    def place(self) -> str:
        """Where the function is, for messages."""
        return f"{self.function.__module__}.{getattr(self.function, '__qualname__', self.kind)}"

    def inputs(self, *args: P.args, **kwargs: P.kwargs) -> Inputs[T_co]:
        """What a run of this kind is to be called with, for `client.enqueue`."""
        values = self._signature.by_name(args, kwargs)
        wrong = self.fits(values)
        if wrong is not None:
            raise Refused(wrong)
        return Inputs(self.kind, values, self)

    def fits(self, inputs: Mapping[str, Any]) -> str | None:
        """None if the function can be called with these inputs, else a sentence that says why not."""
        return self._signature.fits(inputs)

    def migration(self, schema: int) -> Callable[[M], M]:
        """Decorates what makes `schema + 1` of what a run of `schema` left."""
        if not 1 <= schema < self.schema:
            raise BadOption(f"migration({schema!r}) of {self.kind!r} is not below its schema, {self.schema}")
        if schema in self.migrations:
            raise BadOption(f"migration({schema}) of {self.kind!r} is there already")

        def keep(function: M) -> M:
            self.migrations[schema] = function
            return function

        return keep

    def schemas(self) -> tuple[int, ...]:
        """What it listens to: 0 (no checkpoint yet), its own, and what an unbroken chain of migrations reaches."""
        oldest = self.schema
        while oldest - 1 in self.migrations:
            oldest -= 1
        return 0, *range(self.schema, oldest - 1, -1)


class PlainHandler(Handler[P, T_co]):
    """A plain function; it runs in a thread."""

    is_async = False

    def __call__(self, run: Run[Any], /, *args: P.args, **kwargs: P.kwargs) -> T_co:
        return self.function(run, *args, **kwargs)  # type: ignore[no-any-return]


class AsyncHandler(Handler[P, T_co]):
    """A coroutine function; it runs in the worker's event loop."""

    is_async = True

    def __call__(self, run: AsyncRun[Any], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T_co]:
        return self.function(run, *args, **kwargs)  # type: ignore[no-any-return]


def make_handler(function: Callable[..., Any], kind: str | None, policy: Policy) -> Handler[..., Any]:
    """The handler of a function, plain or async as the function is."""
    called = getattr(function, "__name__", None) if kind is None else kind
    if not (inspect.isroutine(function) or isinstance(function, functools.partial)):
        raise Refused(f"{function!r} can't be a handler: that takes a function")
    if called is None:
        raise Refused(f"{function!r} has no name: give its handler kind=")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Refused(f"{called} can't be a handler: it is a generator, and a handler returns its result")
    if inspect.iscoroutinefunction(function):
        return AsyncHandler(function, called, policy)
    return PlainHandler(function, called, policy)
