"""A plugin of pytest that runs the tests of the OpenAI Agents SDK for its `RedisSession` against ours, on a real server.

The tests make sessions with a client of fakeredis and a prefix of keys. Here the client is ignored: each prefix is a namespace on
the server that `RUNS_URL` names.
"""

from __future__ import annotations

import re
from typing import Any

import agents.extensions.memory.redis_session as upstream

from workers.integrations.openai_agents import RedisSession


class SessionOfServer(RedisSession):
    """Our session with the parameters of the SDK's constructors."""

    def __init__(
        self,
        session_id: str,
        *,
        redis_client: Any = None,
        key_prefix: str = "agents:session",
        ttl: int | None = None,
        session_settings: Any = None,
    ) -> None:
        self._owns_client = True  # our sessions always make their own connections
        namespace = re.sub("[^a-z0-9]", "-", key_prefix) + str(id(redis_client))
        super().__init__(session_id, namespace=namespace, ttl=ttl, session_settings=session_settings)

    @classmethod
    def from_url(cls, session_id: str, *, url: str, **options: Any) -> SessionOfServer:
        return cls(session_id, **options)


def pytest_configure() -> None:
    """Replace the class before the tests import it."""
    upstream.RedisSession = SessionOfServer  # type: ignore[misc, assignment]
