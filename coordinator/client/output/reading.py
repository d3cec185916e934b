"""Read the output of one run, for threads and for event loops.

A reader first reads the stored entries to the end of the stream, then it gets new entries from the feed of the client. It
subscribes to the feed before it reads, so that it misses no entry. The feed begins after the entry that was the newest one at that
time, so it does not read the stored entries once more. `Folder` skips entries that come twice.
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


def begin(namespace: OpenNamespace, id: str) -> Plan[tuple[Keys, str | None]]:
    """Prepare to read the output of a run.

    Returns:
        The keys of the run's partition, and the id of the newest entry of its output; None if the run has ended.

    Raises:
        NotFound: The run does not exist, or its retention is over.
    """
    keys = yield from namespace.keys(id)
    found = yield from reading(output_plans.listen(keys, id))
    if found.word == "missing":
        raise run_not_found(id)
    return keys, None if found.word == "ended" else found.newest


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
    keys, newest = client._do(begin, id)
    patience = Patience(client._clock, timeout)
    while newest is not None:
        session = client._open()
        with session.feed.subscribe(keys, id, newest) as inbox:
            for item in folder.fold(client._do(read_to_end, keys, id, folder.cursor)):
                yield item
                patience.renew()
            while not (folder.ended or newest is None or inbox.behind):
                if not inbox.wait(patience.left()):
                    raise patience.error(id)
                client._open()  # raises if the client was closed meanwhile
                for item in folder.fold(inbox.take()):
                    yield item
                    patience.renew()
                if inbox.doubtful and not folder.ended:
                    inbox.doubtful = False
                    keys, newest = client._do(begin, id)
        if folder.ended:
            return
        if inbox.behind and newest is not None:
            keys, newest = client._do(begin, id)
    # The run had ended before, or it ended without an end in its output: its last entries may not be read yet.
    yield from folder.fold(client._do(read_to_end, keys, id, folder.cursor))


async def stream_async(
    client: AsyncClient, id: str, folder: Folder, timeout: float | None
) -> AsyncGenerator[Item, None]:
    """Yield the items of a run's output, for an event loop. See `AsyncHandle.stream`."""
    keys, newest = await client._do(begin, id)
    patience = Patience(client._clock, timeout)
    while newest is not None:
        session = client._open()
        async with session.feed.subscribe(keys, id, newest) as inbox:
            for item in folder.fold(await client._do(read_to_end, keys, id, folder.cursor)):
                yield item
                patience.renew()
            while not (folder.ended or newest is None or inbox.behind):
                if not await inbox.wait(patience.left()):
                    raise patience.error(id)
                client._open()  # raises if the client was closed meanwhile
                for item in folder.fold(inbox.take()):
                    yield item
                    patience.renew()
                if inbox.doubtful and not folder.ended:
                    inbox.doubtful = False
                    keys, newest = await client._do(begin, id)
        if folder.ended:
            return
        if inbox.behind and newest is not None:
            keys, newest = await client._do(begin, id)
    for item in folder.fold(await client._do(read_to_end, keys, id, folder.cursor)):
        yield item
