"""Read the output of one run, for threads and for event loops.

A reader first reads the stored entries to the end of the stream, then it gets new entries from the feed of the client. It
subscribes to the feed before it reads, so that it misses no entry; `Folder` skips entries that come twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING

from coordinator.client.operations.open_namespace import OpenNamespace, reading, run_not_found
from coordinator.clock import Clock
from coordinator.errors import ResultTimeout
from coordinator.model import limits
from coordinator.model.output import Folder, Item
from coordinator.store.keys import Keys
from coordinator.store.plans import output as output_plans
from coordinator.store.plans.merge import Plan
from coordinator.store.plans.output import Entry

if TYPE_CHECKING:
    from coordinator.client.async_client import AsyncClient
    from coordinator.client.client import Client

MOST_PAGES = limits.OUTPUT_EVENTS // output_plans.PAGE + 1


def begin(namespace: OpenNamespace, id: str) -> Plan[tuple[Keys, bool]]:
    """Prepare to read the output of a run. Return the keys of its partition, and True if the run has ended.

    Raises:
        NotFound: The run does not exist, or its retention is over.
    """
    keys = yield from namespace.keys(id)
    return keys, (yield from has_ended(namespace, keys, id))


def has_ended(namespace: OpenNamespace, keys: Keys, id: str) -> Plan[bool]:
    """Return True if a run has ended.

    Raises:
        NotFound: The run does not exist, or its retention is over.
    """
    answer, _ = yield from reading(output_plans.listen(keys, id))
    if answer == "missing":
        raise run_not_found(id)
    return answer == "ended"


def read_to_end(namespace: OpenNamespace, keys: Keys, id: str, after: str) -> Plan[list[Entry]]:
    """Return the stored entries of a run's output, from the first one after the id `after` to the newest."""
    entries: list[Entry] = []
    for _ in range(MOST_PAGES):
        page = yield from reading(output_plans.read_page(keys, id, after))
        entries += page
        if len(page) < output_plans.PAGE:
            break
        after = page[-1][0].decode()
    return entries


class Patience:
    """The time for which a reader still waits for its next item.

    The feed also wakes a reader that should ask for the status of its run. This does not give the reader more time.

    Args:
        clock: The time source.
        timeout: The longest time without an item, in seconds; None for no limit.
    """

    def __init__(self, clock: Clock, timeout: float | None) -> None:
        self._clock, self._timeout = clock, timeout
        self.renew()

    def renew(self) -> None:
        """Start the time again, because the reader has got an item."""
        self._since = self._clock.monotonic()

    def left(self) -> float | None:
        """Return the seconds that are left; None for no limit."""
        return None if self._timeout is None else max(0.0, self._since + self._timeout - self._clock.monotonic())

    def error(self, id: str) -> ResultTimeout:
        """Return the error of a reader whose time is over."""
        return ResultTimeout(f"run {id} emitted nothing within {self._timeout:g} s, and has not ended")


def stream(client: Client, id: str, folder: Folder, timeout: float | None) -> Generator[Item, None, None]:
    """Yield the items of a run's output, for a thread. See `Handle.stream`."""
    keys, ended = client._do(begin, id)
    patience = Patience(client._clock, timeout)
    while not ended:
        session = client._open()
        with session.feed.subscribe(keys, id, folder.cursor) as inbox:
            for item in folder.fold(client._do(read_to_end, keys, id, folder.cursor)):
                yield item
                patience.renew()
            while not (folder.ended or ended or inbox.behind):
                if not inbox.wait(patience.left()):
                    raise patience.error(id)
                client._open()  # raises if the client was closed meanwhile
                for item in folder.fold(inbox.take()):
                    yield item
                    patience.renew()
                if inbox.doubtful and not folder.ended:
                    inbox.doubtful = False
                    ended = client._do(has_ended, keys, id)
        if folder.ended:
            return
    # The run had ended before, or it ended without an end in its output: its last entries may not be read yet.
    yield from folder.fold(client._do(read_to_end, keys, id, folder.cursor))


async def stream_async(
    client: AsyncClient, id: str, folder: Folder, timeout: float | None
) -> AsyncGenerator[Item, None]:
    """Yield the items of a run's output, for an event loop. See `AsyncHandle.stream`."""
    keys, ended = await client._do(begin, id)
    patience = Patience(client._clock, timeout)
    while not ended:
        session = client._open()
        async with session.feed.subscribe(keys, id, folder.cursor) as inbox:
            for item in folder.fold(await client._do(read_to_end, keys, id, folder.cursor)):
                yield item
                patience.renew()
            while not (folder.ended or ended or inbox.behind):
                if not await inbox.wait(patience.left()):
                    raise patience.error(id)
                client._open()  # raises if the client was closed meanwhile
                for item in folder.fold(inbox.take()):
                    yield item
                    patience.renew()
                if inbox.doubtful and not folder.ended:
                    inbox.doubtful = False
                    ended = await client._do(has_ended, keys, id)
        if folder.ended:
            return
    for item in folder.fold(await client._do(read_to_end, keys, id, folder.cursor)):
        yield item
