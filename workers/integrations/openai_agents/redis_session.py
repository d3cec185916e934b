"""`RedisSession`: a session of the OpenAI Agents SDK that runs and programs share, on plain Redis or Valkey."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from hashlib import blake2s
from typing import Any
from weakref import WeakSet

from agents import SessionSettings, TResponseInputItem
from agents.memory import SessionABC

from coordinator.config import Settings, settings
from coordinator.encoding.codec import decode, encode
from coordinator.encoding.seal import sealed
from coordinator.errors import BadName, BadOption, CoordinatorError
from coordinator.store.keys import Keys
from coordinator.store.replies import word
from coordinator.store.script import read
from coordinator.store.scripts import SESSION_ADD, SESSION_REMOVE
from workers.handlers.checkpoint.messages import MESSAGE_LIMIT
from workers.integrations.connections import Connections, Steps

SLOTS = 64  # hash slots over which sessions are spread. It is part of the stored format, and must never change.
LONGEST_ID = 500
_STORAGE = ("get_items", "add_items", "clear_session")
_connections: dict[Settings, _Shared] = {}


class RedisSession(SessionABC):
    """A session on plain Redis or Valkey that runs and programs share by its id.

    All keys of a session are in one hash slot, and every change is one script, so a Cluster works. A change is made once, however
    often the call is sent. `DurableRunner` gives each change of a run an operation id that stays the same in every attempt: a
    resumed run does not add its items a second time, even if other runs have used the session meanwhile.

    Sessions of one process that have the same server share their connections.

    Args:
        session_id: The id of the session.
        url: The server's URL, as for `Client`. Default: the server of the worker, if a handler makes the session, then
            `RUNS_URL`, then `REDIS_URL` of the environment, then a server on this host.
        namespace: The namespace. Default: the namespace of the worker, then `RUNS_NAMESPACE` of the environment, then `runs`.
        ttl: Seconds after its last change after which the server deletes the session. None keeps it until it is cleared.
        timeout: Seconds for which a call is repeated while the server cannot be reached.
        session_settings: Settings of the SDK, such as the number of items that an agent gets.

    Raises:
        BadName: If the id is empty, or has more than 500 bytes.
        BadOption: If the URL, the ttl or the timeout is not valid.
    """

    def __init__(
        self,
        session_id: str,
        url: str | None = None,
        namespace: str | None = None,
        *,
        ttl: float | None = None,
        timeout: float = 30.0,
        session_settings: SessionSettings | None = None,
    ) -> None:
        if not 0 < len(session_id.encode()) <= LONGEST_ID:
            raise BadName(f"session id {session_id[:50]!r} is not valid: use 1 to {LONGEST_ID} bytes")
        if ttl is not None and not 0.001 <= ttl < 1e9:
            raise BadOption(f"ttl {ttl!r} is not valid: use at least 0.001 and less than 1e9 seconds, or None")
        self.session_id, self.session_settings = session_id, session_settings or SessionSettings()
        self._ttl = 0 if ttl is None else round(ttl * 1000)
        given = settings(url, namespace, timeout)
        self._shared = _connections.setdefault(given, _Shared(given))
        self._shared.sessions.add(self)
        self._closed = False

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items, the oldest first.

        Args:
            limit: How many of the last items are returned. By default the number in the settings of the session, otherwise all.

        Raises:
            Unreadable: If a stored item is damaged, or was written with a codec that this process does not have.
        """
        self._check_open()
        wanted = self.session_settings.limit if limit is None and self.session_settings else limit
        if wanted is not None and wanted <= 0:
            return []
        stored = await self._shared.drive_async(self._read(0 if wanted is None else -wanted))
        return [self._decoded(content) for content in stored]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items.

        Raises:
            NotPlain: If an item is not plain data.
            TooLarge: If an item has more than 8 MiB.
        """
        await self.add_once(items, _random_operation())

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the last item, and return it. Return None if there is none."""
        return await self.pop_once(_random_operation())

    async def clear_session(self) -> None:
        """Remove all items."""
        await self.clear_once(_random_operation())

    async def add_once(self, items: Sequence[TResponseInputItem], operation: str) -> None:
        """Append items, unless a call with the same operation id has appended them within the last week.

        Args:
            items: The items.
            operation: The operation id.
        """
        self._check_open()
        if items:
            await self._shared.drive_async(self._add(self._encoded(items), "append", operation))

    async def pop_once(self, operation: str) -> TResponseInputItem | None:
        """Remove the last item, and return it. A call with the same operation id returns the same item for one week.

        Args:
            operation: The operation id.
        """
        self._check_open()
        removed = await self._shared.drive_async(self._remove("last", operation))
        return None if removed is None else self._decoded(removed)

    async def clear_once(self, operation: str) -> None:
        """Remove all items, unless a call with the same operation id has removed them within the last week.

        Args:
            operation: The operation id.
        """
        self._check_open()
        await self._shared.drive_async(self._remove("all", operation))

    async def ping(self) -> bool:
        """Return True if the server can be reached."""
        self._check_open()
        try:
            await self._shared.drive_async(self._read(-1))
        except CoordinatorError:
            return False
        return True

    async def close(self) -> None:
        """Close the session. The last open session of a server closes the connections of this event loop.

        Methods of a closed session raise a RuntimeError. The stored items stay.
        """
        self._closed = True
        self._shared.sessions.discard(self)
        if not self._shared.sessions:
            await self._shared.aclose()

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replace all items in one step. The SDK's compaction calls this method.

        Returns:
            False for a subclass that stores its items in another way. The caller then clears the session and adds the items.
        """
        if any(getattr(type(self), name) is not getattr(RedisSession, name) for name in _STORAGE):
            return False
        self._check_open()
        await self._shared.drive_async(self._add(self._encoded(items), "replace", _random_operation()))
        return True

    # ---- plans

    def _place(self) -> Steps[Keys]:
        yield from self._shared.check_server()
        return self._shared.keys(f"sessions-{zlib.crc32(self.session_id.encode()) % SLOTS}")

    def _read(self, start: int) -> Steps[list[bytes]]:
        keys = yield from self._place()
        found: list[bytes] = yield read(keys.at, "LRANGE", keys.session(self.session_id), start, -1)
        return found

    def _add(self, contents: list[tuple[bytes]], mode: str, operation: str) -> Steps[None]:
        keys = yield from self._place()
        yield SESSION_ADD.call(
            keys.at, contents, now="", session=self.session_id, mode=mode, ttl=self._ttl, operation=operation
        )

    def _remove(self, mode: str, operation: str) -> Steps[bytes | None]:
        keys = yield from self._place()
        reply = yield SESSION_REMOVE.call(
            keys.at, now="", session=self.session_id, mode=mode, ttl=self._ttl, operation=operation
        )
        return reply[1] if mode == "last" and word(reply) == "ok" else None

    # ---- items

    def _encoded(self, items: Sequence[TResponseInputItem]) -> list[tuple[bytes]]:
        place = f"item of session {self.session_id!r}"
        return [(sealed(encode(item, place, MESSAGE_LIMIT)),) for item in items]

    def _decoded(self, content: bytes) -> Any:
        return decode(content, f"item of session {self.session_id!r}")

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"RedisSession is closed: make another one for session {self.session_id!r}")


class _Shared(Connections):
    """The connections of the sessions of one server, and the sessions that are open."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.sessions: WeakSet[RedisSession] = WeakSet()


def operation_of(*parts: str) -> str:
    """Return an operation id made from texts. Equal texts give equal ids."""
    return blake2s("\0".join(parts).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _random_operation() -> str:
    return os.urandom(12).hex()
