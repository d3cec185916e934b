"""A plugin of pytest that runs the session tests of the OpenAI Agents SDK against `RunSession`.

The tests make sessions by id and path. Here each such session is a `RunSession` in a run of its own, in memory.
"""

from __future__ import annotations

from typing import Any

import agents

from workers import testing
from workers.handlers.current_run import entered_run
from workers.integrations.openai_agents import RunSession

_runs: dict[tuple[str, str], testing.AsyncRun] = {}


class SessionOfOwnRun:
    """A `RunSession` whose run is not the current one."""

    def __init__(self, session_id: str, db_path: Any = ":memory:", *tables: str, session_settings: Any = None) -> None:
        settings = session_settings if session_settings is not None else agents.SessionSettings()
        self.session_id, self.session_settings = session_id, settings
        key = (session_id, str(db_path) if str(db_path) != ":memory:" else str(id(self)))
        self._run = _runs.setdefault(key, testing.AsyncRun())
        with entered_run(self._run):
            self._session = RunSession(settings)

    async def get_items(self, limit: int | None = None) -> Any:
        with entered_run(self._run):
            self._session.session_settings = self.session_settings
            return await self._session.get_items(limit)

    async def add_items(self, items: Any) -> None:
        with entered_run(self._run):
            await self._session.add_items(items)

    async def pop_item(self) -> Any:
        with entered_run(self._run):
            return await self._session.pop_item()

    async def clear_session(self) -> None:
        with entered_run(self._run):
            await self._session.clear_session()

    def close(self) -> None:
        """Do nothing: a run in memory has no connection."""


def pytest_configure() -> None:
    """Replace the class before the tests import it."""
    agents.SQLiteSession = SessionOfOwnRun  # type: ignore[misc, assignment]
