"""The registry: the handlers of a program by kind, and the resources that they share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import MappingProxyType
from typing import Any, Concatenate, Generic, ParamSpec, TypedDict, TypeVar, Unpack, overload

from coordinator.errors import Refused
from coordinator.middleware import Middleware, MiddlewareChain
from coordinator.model.policies.budget import Budget
from coordinator.model.policies.deadline import Deadline
from coordinator.model.policies.groups import GroupBy
from coordinator.model.policies.retry import Retry
from workers.handlers.async_run import AsyncRun
from workers.handlers.handler import (
    AsyncHandler,
    Handler,
    OnLostLease,
    PlainHandler,
    PlainResult,
    Policy,
    make_handler,
)
from workers.handlers.run import Run

R = TypeVar("R")
P = ParamSpec("P")
T = TypeVar("T", bound=PlainResult)


class HandlerOptions(TypedDict, total=False):
    """The options of `@runs.handler(…)`. They are the attributes of Policy."""

    retry: Retry
    deadline: Deadline
    schema: int
    grace: float | None
    throttle: float
    on_lost_lease: OnLostLease
    linger: float
    keep_messages: bool
    topics: Mapping[str, Any]
    budget: Budget | None
    at_once: int | None
    rate: str | None
    burst: int | None
    group_by: GroupBy | None


class Registry(Generic[R]):
    """The handlers of a program, by kind.

    Args:
        lifespan: Returns an async context manager that opens the resources of the handlers, for example a connection pool. Each
            worker process enters it once. The value that it yields is `run.resources`.
        middleware: Code that is called around each attempt at a run of this registry, and for each run that its handlers enqueue.
            The first is the outermost.
    """

    @overload
    def __init__(self: Registry[None], lifespan: None = None, *, middleware: Iterable[Middleware] = ()) -> None: ...
    @overload
    def __init__(
        self, lifespan: Callable[[], AbstractAsyncContextManager[R]], *, middleware: Iterable[Middleware] = ()
    ) -> None: ...
    def __init__(
        self,
        lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        *,
        middleware: Iterable[Middleware] = (),
    ) -> None:
        self.lifespan = lifespan
        self._middleware = MiddlewareChain(middleware)
        self._handlers: dict[str, Handler[..., Any]] = {}
        self._homes: dict[str, Registry[Any]] = {}

    @property
    def handlers(self) -> Mapping[str, Handler[..., Any]]:
        """The handlers by kind, read-only."""
        return MappingProxyType(self._handlers)

    @overload
    def handler(
        self, function: Callable[Concatenate[AsyncRun[R], P], Coroutine[Any, Any, T]], /
    ) -> AsyncHandler[P, T]: ...
    @overload
    def handler(self, function: Callable[Concatenate[Run[R], P], T], /) -> PlainHandler[P, T]: ...
    @overload
    def handler(self, /, *, kind: str | None = None, **options: Unpack[HandlerOptions]) -> Decorator[R]: ...
    def handler(
        self, function: Callable[..., Any] | None = None, /, kind: str | None = None, **options: Unpack[HandlerOptions]
    ) -> Any:
        """Decorate the function that executes the runs of a kind.

        Use it as `@runs.handler`, or with options as `@runs.handler(retry=Retry(limit=3))`. The first parameter of the function
        is the run: an AsyncRun for a coroutine function, a Run for a plain function. The other parameters are the inputs.

        Args:
            function: The function.
            kind: The kind. By default it is the name of the function.
            **options: The policy for the runs of the kind: retry, deadline, schema, grace, throttle, on_lost_lease,
                linger, topics, keep_messages, budget, at_once, rate, burst, group_by. See Policy.

        Returns:
            The handler.

        Raises:
            Refused: If the function cannot be a handler, or if the kind already has one.
            BadOption: If an option is not valid.
        """
        decorator = Decorator[R](self, kind, Policy(**options))
        return decorator if function is None else decorator(function)

    def middleware_by_kind(self) -> dict[str, MiddlewareChain]:
        """Return the middleware by kind of handler. Kinds without middleware are left out."""
        return {kind: home._middleware for kind, home in self._homes.items() if home._middleware}

    @asynccontextmanager
    async def resources(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """Enter the lifespan of each registry once, and yield the resources by kind of handler."""
        async with AsyncExitStack() as stack:
            opened: dict[int, Any] = {}
            for home in self._homes.values():
                if home.lifespan is not None and id(home) not in opened:
                    opened[id(home)] = await stack.enter_async_context(home.lifespan())
            yield {kind: opened.get(id(home)) for kind, home in self._homes.items()}

    @staticmethod
    def merged(*registries: Registry[Any]) -> Registry[Any]:
        """Return one registry with the handlers of several registries.

        Each handler keeps the resources of its own registry.

        Args:
            *registries: The registries.

        Raises:
            Refused: If two registries have different handlers for a kind.
        """
        whole: Registry[Any] = Registry()
        for registry in registries:
            for kind, handler in registry.handlers.items():
                whole._add(handler, registry._homes[kind])
        return whole

    def _add(self, handler: Handler[..., Any], home: Registry[Any]) -> None:
        there = self._handlers.setdefault(handler.kind, handler)
        if there is not handler:
            raise Refused(f"kind {handler.kind!r} has two handlers, {there.place} and {handler.place}: give one kind=")
        self._homes[handler.kind] = home


class Decorator(Generic[R]):
    """The decorator that `@runs.handler(…)` returns."""

    def __init__(self, registry: Registry[R], kind: str | None, policy: Policy) -> None:
        self._registry, self._kind, self._policy = registry, kind, policy

    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncRun[R], P], Coroutine[Any, Any, T]], /
    ) -> AsyncHandler[P, T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Run[R], P], T], /) -> PlainHandler[P, T]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        """Create the handler of a function, add it to the registry, and return it."""
        handler = make_handler(function, self._kind, self._policy)
        self._registry._add(handler, self._registry)
        return handler
