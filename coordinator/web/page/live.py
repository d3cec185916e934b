"""The live stream of the page: every viewer of a process gets the same bytes of the same board."""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import StreamingResponse

from coordinator.client.async_client import AsyncClient
from coordinator.feed.board import Board
from coordinator.feed.watcher import Watcher
from coordinator.web.page.board_json import encode_board

SILENCE = 10.0  # seconds after which a comment keeps an idle connection open

LINGER = 60.0  # seconds for which the board is kept up to date after its last viewer has left


class LiveBoard:
    """Send the board to the viewers as server-sent events. The board is encoded once for each version."""

    def __init__(self, client: AsyncClient) -> None:
        self.watcher = Watcher(client, linger=LINGER)
        self._encoded: tuple[int, bytes] = (-1, b"")
        self.encodings = 0
        self._closed = asyncio.Event()

    def close(self) -> None:
        """End all streams. A browser connects again."""
        self._closed.set()

    def _bytes(self, board: Board) -> bytes:
        version, data = self._encoded
        if version != self.watcher.version:
            data = b"event: board\ndata: " + encode_board(board).encode() + b"\n\n"
            self._encoded = (self.watcher.version, data)
            self.encodings += 1
        return data

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the stream: the board at once and after each change, and comments while nothing changes."""
        yield b"retry: 1000\n\n"
        async with aclosing(self.watcher.boards()) as boards:
            closed: asyncio.Future[Any] = asyncio.ensure_future(self._closed.wait())
            waiting: asyncio.Future[Any] | None = None
            try:
                while not self._closed.is_set():
                    waiting = waiting or asyncio.ensure_future(anext(boards))
                    done, _ = await asyncio.wait([waiting, closed], timeout=SILENCE, return_when=FIRST_COMPLETED)
                    if waiting in done:
                        board, waiting = waiting.result(), None
                        yield self._bytes(board)
                    elif not done:
                        yield b": still here\n\n"
            finally:
                for one in (closed, waiting):
                    if one is not None:
                        one.cancel()
                        await asyncio.gather(one, return_exceptions=True)

    def response(self) -> StreamingResponse:
        """Return the stream as a response."""
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self.events(), media_type="text/event-stream", headers=headers)
