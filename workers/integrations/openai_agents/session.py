"""Sessions of the OpenAI Agents SDK whose changes are made once, however often the run is resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from agents import Session, SessionSettings, TResponseInputItem

from coordinator.errors import Refused
from workers.handlers.async_run import AsyncRun
from workers.handlers.checkpoint.draft import current_phase
from workers.integrations.openai_agents.redis_session import RedisSession, operation_of
from workers.integrations.steps import async_run, call_step


class RunSession:
    """A session whose items are the messages of the current run.

    The items are part of the run's checkpoint on the server. A save sends only new items, and only the owner of the run can save.
    An item and the step that added it are saved together, so no item is added twice. The session lives as long as the run; use
    it in a handler that receives the questions of one conversation.

    Args:
        session_settings: Settings of the SDK, such as the number of items that an agent gets.

    Attributes:
        session_id: The id of the run.

    Raises:
        Refused: If no handler is executing.
    """

    def __init__(self, session_settings: SessionSettings | None = None) -> None:
        self.session_id, self.session_settings = _run().id, session_settings

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items, the oldest first.

        Args:
            limit: How many of the last items are returned. By default the number in the settings of the session, otherwise all.
        """
        run = _run()

        async def count() -> int:
            return len(run.messages)

        length = await call_step(run, "session get_items", count)
        wanted = _limit(limit, self.session_settings)
        start = 0 if wanted is None else max(0, length - wanted)
        return [dict(item) for item in run.messages[start:length]]  # type: ignore[misc]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items to the messages of the run."""
        run = _run()

        async def add() -> None:
            run.messages.extend(items)

        if items:
            await call_step(run, "session add_items", add)

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the last item, and return it. Return None if there is none."""
        run = _run()

        async def pop() -> Any:
            if not run.messages:
                return None
            last = run.messages[-1]
            run.messages.replace(list(run.messages[:-1]))
            return last

        return await call_step(run, "session pop_item", pop)

    async def clear_session(self) -> None:
        """Remove all items."""
        run = _run()

        async def clear() -> None:
            run.messages.replace([])

        await call_step(run, "session clear", clear)


class DurableSession:
    """A session that is stored outside of the run. Its reads and changes are phases.

    A change that was made before a crash and was not saved is recognised: a `RedisSession` remembers the operation, and in other
    sessions the last items are compared.

    Args:
        inner: The session.
        run: The run.
        call: The number of the runner's call, as in `AgentCall`.
    """

    def __init__(self, inner: Session, run: AsyncRun[Any], call: str) -> None:
        self._inner, self._run, self._call = inner, run, call
        self.session_id, self.session_settings = inner.session_id, inner.session_settings

    async def _step(self, name: str, body: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await call_step(self._run, f"session {self._call} {name}", body)

    def _operation(self, content: Any = None) -> str:
        """Return an operation id for the current phase and its content. If a run starts again with other items, the id differs."""
        return operation_of(self._run.id, current_phase.get(), json.dumps(content, sort_keys=True, default=repr))

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items, or the last `limit` of them, as they were when the run first asked for them."""

        async def get() -> Any:
            return await self._inner.get_items(limit)

        return await self._step("get_items", get)  # type: ignore[no-any-return]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items, unless an earlier attempt has appended them."""

        async def add() -> None:
            if isinstance(self._inner, RedisSession):
                await self._inner.add_once(items, self._operation(items))
            elif self._run.attempt == 1 or await self._inner.get_items(len(items)) != items:
                await self._inner.add_items(items)

        if items:
            await self._step("add_items", add)

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the last item, and return it. Return None if there is none."""

        async def pop() -> Any:
            if isinstance(self._inner, RedisSession):
                return await self._inner.pop_once(self._operation())
            return await self._inner.pop_item()

        return await self._step("pop_item", pop)  # type: ignore[no-any-return]

    async def clear_session(self) -> None:
        """Remove all items."""

        async def clear() -> None:
            if isinstance(self._inner, RedisSession):
                await self._inner.clear_once(self._operation())
            else:
                await self._inner.clear_session()

        await self._step("clear", clear)


def _run() -> AsyncRun[Any]:
    run = async_run("the OpenAI Agents SDK")
    if run is None:
        raise Refused("a RunSession works only inside a handler: its items are the messages of the run")
    return run


def _limit(limit: int | None, settings: SessionSettings | None) -> int | None:
    return limit if limit is not None or settings is None else settings.limit
