"""The inputs and options with which a client enqueues a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from coordinator.errors import BadOption
from coordinator.model.names import name
from coordinator.model.policies.budget import Budget

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Inputs(Generic[T_co]):
    """The inputs of a run. `handler.inputs(…)` makes them. The type parameter is the type that the handler returns.

    Attributes:
        kind: The kind of the handler.
        values: The handler's arguments by name.
        handler: The handler that made the inputs. A client reads its `read_result`, `write_signal` and `group_by`.
    """

    kind: str
    values: Mapping[str, Any]
    handler: object = field(default=None, repr=False, compare=False)


class HandlerOf(Protocol[T_co]):
    """A handler, as a client sees it: it makes the inputs of its runs, and reads their results."""

    kind: str

    @property
    def read_result(self) -> Callable[[Any], Any] | None:
        """The function that converts a stored result to the type that the handler declares; None if the result is plain data."""

    def inputs(self, *args: Any, **kwargs: Any) -> Inputs[T_co]:
        """Return the inputs of a run, after checking them against the signature of the handler."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of an enqueue. Times are in seconds; `at` is a Unix time.

    Attributes:
        queue: The queue of the run.
        priority: From -100 to 100. Workers claim runs with a higher priority first.
        at: When the run may be claimed.
        delay: Seconds until the run may be claimed; not together with `at`.
        expires: Seconds after which the run is cancelled if no worker has claimed it.
        key_ttl: Seconds that the idempotency key is kept after the end of the run.
        retention: Seconds that the run is kept after its end.
        schema: The schema of the handler, 0 to 99.
        parent: The id of the run that enqueues this one.
        meta: A flat dict that is stored with the run.
        budget: The budget of the run; None for the budget of its handler.
    """

    queue: str = "default"
    priority: int = 0
    at: float | None = None
    delay: float | None = None
    expires: float | None = None
    key_ttl: float | None = None
    retention: float | None = None
    schema: int = 0
    parent: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    budget: Budget | None = None

    def __post_init__(self) -> None:
        name(self.queue, "queue")
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise BadOption(f"budget={self.budget!r} is not a Budget(…)")
        if type(self.priority) is not int or not -100 <= self.priority <= 100:
            raise BadOption(f"priority {self.priority!r} is not a whole number within -100..100")
        if self.at is not None and self.delay is not None:
            raise BadOption("delay and at exclude each other: give one of them, not both")
        for what in ("at", "delay", "expires", "key_ttl", "retention"):
            value = getattr(self, what)
            if value is not None and not (isinstance(value, (int, float)) and 0 <= value < 1e11):
                raise BadOption(f"{what} {value!r} is not a time of 0 seconds or more")
        if type(self.schema) is not int or not 0 <= self.schema <= 99:
            raise BadOption(f"schema {self.schema!r} is not a whole number within 0..99")
        if not isinstance(self.meta, Mapping):
            raise BadOption(f"meta must be a dict of names and values, not {type(self.meta).__name__}")
        for key, value in self.meta.items():
            if not isinstance(value, (str, int, float, bool, type(None))):
                raise BadOption(f"meta must be flat: {key!r} is {type(value).__name__}")
