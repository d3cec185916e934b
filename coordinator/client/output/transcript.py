"""Read the saved messages of a run in pages, for threads and for event loops."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING, Any

from coordinator.client.operations.open_namespace import OpenNamespace, reading, run_not_found
from coordinator.encoding.codec import decode
from coordinator.errors import BadOption, Changed, Unreadable
from coordinator.store.plans import output as output_plans
from coordinator.store.plans.merge import Plan
from coordinator.store.plans.output import TranscriptPage

if TYPE_CHECKING:
    from coordinator.client.async_client import AsyncClient
    from coordinator.client.client import Client

PAGE_BYTES = 1024 * 1024


class Pages:
    """The position of a reader in the transcript of a run.

    Args:
        id: The run.
        start: The number of the first message.

    Attributes:
        done: True if all messages were read.

    Raises:
        BadOption: If the number is negative.
    """

    def __init__(self, id: str, start: int) -> None:
        if start < 0:
            raise BadOption(f"start={start!r} is not a number of 0 or more")
        self._id, self._next = id, start
        self._generation: int | None = None
        self.done = False

    def read(self, namespace: OpenNamespace) -> Plan[list[Any]]:
        """Return the messages of the next page.

        Raises:
            NotFound: The run does not exist, or its retention is over.
            Changed: The handler has replaced the transcript since the last page.
            Unreadable: The checkpoint is damaged.
        """
        keys = yield from namespace.keys(self._id)
        page = yield from reading(output_plans.read_transcript(keys, self._id, self._next, PAGE_BYTES))
        if page.word == "missing":
            raise run_not_found(self._id)
        if page.word != "ok":
            raise Unreadable(f"the messages of run {self._id} can't be read: 'coordinator doctor' finds the damage")
        if self._generation not in (None, page.generation):
            raise Changed(f"the transcript of run {self._id} was replaced while it was read: read it again")
        self._generation = page.generation
        return self._take(page)

    def _take(self, page: TranscriptPage) -> list[Any]:
        found: list[Any] = []
        for first, data in page.chunks:
            messages = decode(data, f"messages[{first}] of run {self._id}")
            if first > self._next or not isinstance(messages, list):
                raise Unreadable(f"messages {self._next} to {first} of run {self._id} are missing")
            found += messages[self._next - first :]
            self._next = max(self._next, first + len(messages))
        self.done = not found or self._next >= page.length
        return found


def iterate(client: Client, pages: Pages) -> Generator[Any, None, None]:
    """Yield the messages of a run, for a thread. See `Handle.messages`."""
    while not pages.done:
        yield from client._do(pages.read)


async def iterate_async(client: AsyncClient, pages: Pages) -> AsyncGenerator[Any, None]:
    """Yield the messages of a run, for an event loop. See `AsyncHandle.messages`."""
    while not pages.done:
        for message in await client._do(pages.read):
            yield message
