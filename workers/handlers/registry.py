"""What a worker process can run: handlers by kind, and the resources they share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import MappingProxyType
from typing import Any, Concatenate, Generic, ParamSpec, TypedDict, TypeVar, Unpack, overload

from coordinator.errors import Refused
from coordinator.model.deadline import Deadline
from coordinator.model.retry import Retry
from workers.handlers.context import AsyncRun, Run
from workers.handlers.handler import (
    AsyncHandler,
    Handler,
    OnLostLease,
    PlainHandler,
    PlainResult,
    Policy,
    make_handler,
)

R = TypeVar("R")
P = ParamSpec("P")
T = TypeVar("T", bound=PlainResult)


class HandlerOptions(TypedDict, total=False):
    """The fields of Policy, as options of `@runs.handler(…)`."""

    retry: Retry
    deadline: Deadline
    schema: int
    grace: float | None
    throttle: float
    on_lost_lease: OnLostLease


class Registry(Generic[R]):
    """Handlers by kind. `lifespan` opens what they share, once per worker process; it yields `run.resources`."""

    @overload
    def __init__(self: Registry[None], lifespan: None = None) -> None: ...
    @overload
    def __init__(self, lifespan: Callable[[], AbstractAsyncContextManager[R]]) -> None: ...
    def __init__(self, lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None) -> None:
        self.lifespan = lifespan
        self._handlers: dict[str, Handler[..., Any]] = {}
        self._homes: dict[str, Registry[Any]] = {}

    @property
    def handlers(self) -> Mapping[str, Handler[..., Any]]:
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
        """Decorates the function that runs a kind; the kind is its name unless `kind` says otherwise."""
        decorator = Decorator[R](self, kind, Policy(**options))
        return decorator if function is None else decorator(function)

    @asynccontextmanager
    async def resources(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """Opens each lifespan once and gives the resources by kind."""
        async with AsyncExitStack() as stack:
            opened: dict[int, Any] = {}
            for home in self._homes.values():
                if home.lifespan is not None and id(home) not in opened:
                    opened[id(home)] = await stack.enter_async_context(home.lifespan())
            yield {kind: opened.get(id(home)) for kind, home in self._homes.items()}

    @staticmethod
    def merged(*registries: Registry[Any]) -> Registry[Any]:
        """All their handlers in one registry; each keeps the resources of the registry that it comes from."""
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
    """What `@runs.handler(…)` gives: still to be put over a function."""

    def __init__(self, registry: Registry[R], kind: str | None, policy: Policy) -> None:
        self._registry, self._kind, self._policy = registry, kind, policy

    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncRun[R], P], Coroutine[Any, Any, T]], /
    ) -> AsyncHandler[P, T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Run[R], P], T], /) -> PlainHandler[P, T]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        handler = make_handler(function, self._kind, self._policy)
        self._registry._add(handler, self._registry)
        return handler
