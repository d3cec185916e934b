"""A handler: a function, its inputs, and the policy for its runs.

A mistake in a handler is refused when the function is decorated, and not when its first run arrives.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, ClassVar, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, get_args
from uuid import UUID

from coordinator.errors import BadOption, NotPlain, Refused
from coordinator.model.enqueue import Inputs
from coordinator.model.names import name
from coordinator.model.policies.budget import Budget, check_topic
from coordinator.model.policies.deadline import Deadline
from coordinator.model.policies.groups import GroupBy, check_at_once, encode_starts
from coordinator.model.policies.retry import Retry
from workers.handlers.async_run import AsyncRun
from workers.handlers.base_run import BaseRun
from workers.handlers.conversion import Conversion
from workers.handlers.current_run import entered_run
from workers.handlers.run import Run
from workers.handlers.signature import Signature


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _PydanticModel(Protocol):
    def model_dump(self) -> dict[str, Any]: ...


# This bound accepts every result that can be stored, but no coroutine: an async handler that takes a Run is then a type error.
PlainResult: TypeAlias = (
    bool | int | float | str | bytes | date | Sequence[Any] | Mapping[Any, Any]
    | _Dataclass | _PydanticModel | Enum | UUID | Decimal | time | timedelta | PurePath | AbstractSet[Any] | None
)  # fmt: skip

P = ParamSpec("P")
T_co = TypeVar("T_co", bound=PlainResult, covariant=True)
M = TypeVar("M", bound=Callable[..., Any])
OnLostLease = Literal["wait", "stop"]

NO_RETRY = Retry()
NO_DEADLINE = Deadline()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The policy for the runs of a kind: the options of `@runs.handler(…)`. All times are in seconds.

    Attributes:
        retry: When and how often a failed run is retried. By default it is not retried.
        deadline: How long a run may take. By default there is no limit.
        schema: The version of the checkpoint, 1 to 99. Increase it when the code cannot continue old checkpoints, and add a
            migration.
        grace: How long the handler may take to reach a cut when the worker drains. None for the worker's own grace time.
        throttle: The shortest time between two saves of a run. A cut that must be saved before the handler continues, as at
            `flush` or at the end of a phase, is saved immediately.
        on_lost_lease: The reaction of the worker while it cannot renew its lease: "wait" lets the handler continue until it has
            to save, "stop" stops the handler.
        linger: How long a handler that waits stays in the process before its run is suspended. A signal that comes meanwhile
            reaches the handler within milliseconds.
        topics: The types of the payloads of signals, by topic. Topics that are not named here carry plain data.
        keep_messages: Keep the transcript of a completed run for the run's retention, for `handle.messages()`. By default it is
            deleted when the run completes.
        budget: The amount that a run may spend, over all its attempts and its joined children. None for no limit.
        at_once: How many runs of a group may be ready or running at the same time. Workers publish it when they join. An operator
            may set another limit. None for no limit.
        rate: How many runs of a group may start per unit of time: "10/min". Workers publish it when they join. None for no limit.
        burst: How many runs of a group may start at one moment, after a time without starts. None for the number that the rate
            allows in one second, but at least 1.
        group_by: The name of the input whose value is the group of a run, or a function that computes the group from the inputs.

    Raises:
        BadName: If a topic is not a valid name.
        BadOption: If a value is not valid.
    """

    retry: Retry = NO_RETRY
    deadline: Deadline = NO_DEADLINE
    schema: int = 1
    grace: float | None = None
    throttle: float = 1.0
    on_lost_lease: OnLostLease = "wait"
    linger: float = 2.0
    topics: Mapping[str, Any] = field(default_factory=dict)
    keep_messages: bool = False
    budget: Budget | None = None
    at_once: int | None = None
    rate: str | None = None
    burst: int | None = None
    group_by: GroupBy | None = None

    def __post_init__(self) -> None:
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise BadOption(f"budget={self.budget!r} is not a Budget(…)")
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
        if not 0 <= self.linger < 1e11:
            raise BadOption(f"linger={self.linger!r} is not a time of 0 seconds or more")
        if not isinstance(self.topics, Mapping):
            raise BadOption(f"topics={self.topics!r} is not a dict of topics and types")
        for topic in self.topics:
            check_topic(topic)
        if self.at_once is not None:
            check_at_once(self.at_once)
        encode_starts(self.rate, self.burst)
        if self.group_by is not None and not isinstance(self.group_by, str) and not callable(self.group_by):
            raise BadOption(f"group_by={self.group_by!r} is neither the name of an input nor a function")


class Handler(Generic[P, T_co]):
    """A function that executes the runs of a kind. `@runs.handler` creates it.

    P are the inputs of the function, T is the type of its result. The handler can be called like its function, with a
    `workers.testing.Run` or `AsyncRun` as its run.

    Attributes:
        function: The decorated function.
        kind: The kind of its runs.
        is_async: True if the function is a coroutine function.
        retry: See Policy.
        deadline: See Policy.
        schema: See Policy.
        grace: See Policy.
        throttle: See Policy.
        on_lost_lease: See Policy.
        linger: See Policy.
        keep_messages: See Policy.
        budget: See Policy.
        at_once: See Policy.
        rate: See Policy.
        burst: See Policy.
        group_by: See Policy.
        migrations: The migrations, by the schema from which they start.
    """

    is_async: bool

    def __init__(self, function: Callable[..., Any], kind: str, policy: Policy) -> None:
        self.__doc__ = function.__doc__
        self.function = function
        self.kind = name(kind, "kind")
        self.retry, self.deadline, self.schema = policy.retry, policy.deadline, policy.schema
        self.grace, self.throttle, self.on_lost_lease = policy.grace, policy.throttle, policy.on_lost_lease
        self.linger, self.keep_messages, self.budget = policy.linger, policy.keep_messages, policy.budget
        self.at_once, self.rate, self.burst = policy.at_once, policy.rate, policy.burst
        self.group_by = policy.group_by
        self._topics = {
            topic: Conversion(annotation, f"a signal of topic {topic!r} of kind {kind!r}")
            for topic, annotation in policy.topics.items()
        }
        self.migrations: dict[int, Callable[..., Any]] = {}
        self._signature = Signature.of(function, kind)
        if isinstance(self.group_by, str) and not (self.group_by in self._signature.known or self._signature.open):
            raise BadOption(f"group_by={self.group_by!r}: the handler of {kind!r} has no input of this name")

    def __repr__(self) -> str:
        return f"<handler of {self.kind!r}: {self.place}>"

    @property
    def place(self) -> str:
        """The module and the name of the function, for messages."""
        return f"{self.function.__module__}.{getattr(self.function, '__qualname__', self.kind)}"

    def inputs(self, *args: P.args, **kwargs: P.kwargs) -> Inputs[T_co]:
        """Build the inputs of a run for `client.enqueue`. Type checkers check them against the function.

        Args:
            *args: Inputs by position.
            **kwargs: Inputs by name.

        Returns:
            The kind with its inputs.

        Raises:
            Refused: If the function cannot be called with these inputs, or one does not fit its annotation.
            NotPlain: If an input can't be converted to plain data.
        """
        values = self._signature.by_name(args, kwargs)
        wrong = self.fits(values)
        if wrong is not None:
            raise Refused(wrong)
        for parameter, conversion in self._signature.conversions.items():
            if parameter in values:
                values[parameter] = conversion.to_plain(values[parameter])
        return Inputs(self.kind, values, self)

    def arguments(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the function for stored inputs. Inputs that are not annotated as plain data are converted.

        Raises:
            Unreadable: If an input does not fit its annotation.
            NotPlain: If pydantic is needed, and is missing or too old.
        """
        conversions = self._signature.conversions
        if not conversions:
            return inputs
        return {name: conversions[name].from_plain(one) if name in conversions else one for name, one in inputs.items()}

    def plain_result(self, value: Any) -> Any:
        """Convert the value that the function returned to plain data, and return it.

        Raises:
            NotPlain: If the value does not fit the annotation of the result, or can't be converted.
        """
        conversion = self._signature.result
        if conversion is None:
            return value
        try:
            return conversion.to_plain(value)
        except Refused as error:
            raise NotPlain(str(error)) from error

    @property
    def read_result(self) -> Callable[[Any], Any] | None:
        """The function that converts a stored result to the annotated object; None if the result is plain data."""
        return None if self._signature.result is None else self._signature.result.from_plain

    def write_signal(self, topic: str, payload: Any) -> Any:
        """Return the payload of a signal as plain data, by the type that the handler declares for the topic.

        Raises:
            Refused: If the payload does not fit the type.
            NotPlain: If pydantic is needed, and is missing or too old, or can't convert the payload.
        """
        return self._topics[topic].to_plain(payload) if topic in self._topics else payload

    def read_signal(self, topic: str, payload: Any) -> Any:
        """Return the payload of a stored signal as the type that the handler declares for the topic.

        Raises:
            Unreadable: If the payload does not fit the type.
            NotPlain: If pydantic is needed, and is missing or too old.
        """
        return self._topics[topic].from_plain(payload) if topic in self._topics else payload

    def _declare_topics_to(self, run: object) -> None:
        if isinstance(run, BaseRun):  # a test may have sent an object that is not plain data
            run._declare_topics(self.read_signal)
            run._declare_budget(self.budget)

    def fits(self, inputs: Mapping[str, Any]) -> str | None:
        """Check whether the function can be called with these inputs.

        Args:
            inputs: The inputs by name.

        Returns:
            None if the function can be called with them, else a sentence that says why not.
        """
        return self._signature.fits(inputs)

    def migration(self, schema: int) -> Callable[[M], M]:
        """Decorate a function that migrates the checkpoint of a run from one schema to the next.

        The function receives a `workers.Left`, which it changes in place. It is called when the run is resumed, maybe more
        than once, so it must depend only on its argument.

        Args:
            schema: The schema from which the function migrates. It returns a checkpoint of `schema + 1`.

        Returns:
            The decorator.

        Raises:
            BadOption: If the schema is not below the handler's schema, or already has a migration.
        """
        if not 1 <= schema < self.schema:
            raise BadOption(f"migration({schema!r}) of {self.kind!r} is not below its schema, {self.schema}")
        if schema in self.migrations:
            raise BadOption(f"migration({schema}) of {self.kind!r} exists already")

        def keep(function: M) -> M:
            self.migrations[schema] = function
            return function

        return keep

    def schemas(self) -> tuple[int, ...]:
        """Return the schemas of runs that the handler can execute.

        They are 0 (a run without a checkpoint), the handler's own schema, and each older schema from which an unbroken chain
        of migrations leads to the handler's schema.
        """
        oldest = self.schema
        while oldest - 1 in self.migrations:
            oldest -= 1
        return 0, *range(self.schema, oldest - 1, -1)


class PlainHandler(Handler[P, T_co]):
    """A handler that is a plain function, which runs in a thread."""

    is_async = False

    def __call__(self, run: Run[Any], /, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """Call the handler's function directly, without a worker. Tests use this."""
        self._declare_topics_to(run)
        with entered_run(run):
            return self.function(run, *args, **kwargs)  # type: ignore[no-any-return]


class AsyncHandler(Handler[P, T_co]):
    """A handler that is a coroutine function, which runs on the worker's event loop."""

    is_async = True

    def __call__(self, run: AsyncRun[Any], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T_co]:
        """Call the handler's function directly, without a worker, and return its coroutine. Tests use this."""
        self._declare_topics_to(run)
        return _entered(run, self.function(run, *args, **kwargs))


async def _entered(run: BaseRun[Any], handling: Coroutine[Any, Any, T_co]) -> T_co:
    """Await the coroutine of a handler, with its run as the current run."""
    with entered_run(run):
        return await handling


def make_handler(function: Callable[..., Any], kind: str | None, policy: Policy) -> Handler[..., Any]:
    """Create the handler of a function, and return it.

    Args:
        function: A function or a coroutine function.
        kind: The kind, or None for the name of the function.
        policy: The policy for its runs.

    Raises:
        Refused: If the function cannot be a handler.
    """
    called = getattr(function, "__name__", None) if kind is None else kind
    if not (inspect.isroutine(function) or isinstance(function, functools.partial)):
        raise Refused(f"{function!r} can't be a handler: a handler must be a function")
    if called is None:
        raise Refused(f"{function!r} has no name: give its handler kind=")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Refused(f"{called} can't be a handler: it is a generator, and a handler returns its result")
    if inspect.iscoroutinefunction(function):
        return AsyncHandler(function, called, policy)
    return PlainHandler(function, called, policy)
