"""The live stream of the page: every viewer of a process gets the same bytes of the same board."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from coordinator.client.async_client import AsyncClient
from coordinator.feed.board import Board
from coordinator.feed.watcher import Watcher
from coordinator.web.event_stream import EventStream
from coordinator.web.page.board_json import encode_board
from coordinator.web.streams import OpenStreams

SILENCE = 10.0  # seconds without a change after which a comment is sent, so that proxies do not close the connection

MOST_VIEWERS = 100  # the most streams of one caller
LINGER = 60.0  # seconds for which the board is kept up to date after its last viewer has left


class LiveBoard:
    """The board as a stream of server-sent events for all viewers. Each version of the board is encoded once.

    Attributes:
        watcher: The watcher that keeps the board up to date.
        encodings: The number of versions that were encoded.
        streams: The open streams.
    """

    def __init__(self, client: AsyncClient) -> None:
        self.watcher = Watcher(client, linger=LINGER)
        self._encoded: tuple[int, bytes] = (-1, b"")
        self.encodings = 0
        self._closed = False
        self.streams = OpenStreams(MOST_VIEWERS)
        self._followers: dict[asyncio.Task[None], asyncio.Event] = {}

    def close(self) -> None:
        """End all streams, because the server stops. Browsers connect again on their own."""
        self._closed = True
        for follower in self._followers:
            follower.cancel()

    def _bytes(self, board: Board) -> bytes:
        version, data = self._encoded
        if version != self.watcher.version:
            data = b"event: board\ndata: " + encode_board(board).encode() + b"\n\n"
            self._encoded = (self.watcher.version, data)
            self.encodings += 1
        return data

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the stream: the board immediately and after each change, and comments while nothing changes."""
        yield b"retry: 1000\n\n"
        changed = asyncio.Event()
        follower = asyncio.create_task(self._follow(changed))
        self._followers[follower] = changed
        follower.add_done_callback(self._forget)
        try:
            while not self._closed:
                try:
                    async with asyncio.timeout(SILENCE):
                        await changed.wait()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                changed.clear()
                if follower.done():
                    return
                yield self._bytes(self.watcher.board)
        finally:
            follower.cancel()

    async def _follow(self, changed: asyncio.Event) -> None:
        """Set `changed` whenever the board has changed, until cancelled.

        This coroutine runs in a task of its own, so that a cancelled request does not interrupt the watcher.
        """
        async with aclosing(self.watcher.boards()) as boards:
            async for _ in boards:
                changed.set()

    def _forget(self, follower: asyncio.Task[None]) -> None:
        self._followers.pop(follower).set()

    def response(self, caller: str) -> EventStream:
        """Return the stream as a response to a caller.

        Raises:
            Problem: The caller has too many open streams (429).
        """
        return EventStream(self.events(), self.streams.open(caller))
