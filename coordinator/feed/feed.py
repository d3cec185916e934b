"""Follow the changes of all runs of a namespace."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from coordinator.client.async_client import AsyncClient
from coordinator.client.operations.open_namespace import OpenNamespace
from coordinator.clock import Clock, SystemClock
from coordinator.errors import Refused, Unreachable
from coordinator.feed.events import RunEvent, RunLook, derive_events
from coordinator.feed.looks import look_at, owned_runs
from coordinator.store.plans.merge import Plan
from coordinator.store.transport.wire import watch_keys

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.05  # changes within this time are read together
POLL_SECONDS = 0.25  # between two reads of the workers' runs, if the server reports no changes
RETRY_SECONDS = 0.5  # between two tries to reach the server
KNOWN = 50_000  # runs of which the feed remembers the last look


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes that the feed has read together.

    Attributes:
        now: The server's time; 0.0 if the server can't be reached.
        events: The changes of runs, oldest first.
        workers: Whether a worker joined, left or changed.
        error: Why the server can't be reached; empty if it can. The next batch comes when it can be reached again.
        gap: Whether changes may have been missed since the batch before.
    """

    now: float
    events: tuple[RunEvent, ...] = ()
    workers: bool = False
    error: str = ""
    gap: bool = False


@dataclass(slots=True)
class _Changed:
    """The changes that the server has reported and that the feed has not read yet.

    Attributes:
        ids: The runs that have changed.
        workers: True if the record of a worker has changed.
        everything: True if reports were lost, so that any run may have changed.
    """

    ids: dict[str, None] = field(default_factory=dict)
    workers: bool = False
    everything: bool = False

    def add(self, keys: Sequence[str]) -> None:
        self.everything |= not keys
        for key in keys:
            what, _, id = key.partition("}:")[2].partition(":")
            if what == "run":
                self.ids[id] = None
            else:
                self.workers = True


class Feed:
    """The changes of all runs of a namespace, as the server reports them.

    If the server does not report changes to this user, the feed reads the runs of the workers four times a second. It then misses
    changes of runs that no worker owns at such a moment.

    Attributes:
        looks: The last look at each run that changed, by id.
    """

    def __init__(self, client: AsyncClient, clock: Clock | None = None) -> None:
        self._client = client
        self._clock = clock or SystemClock()
        self._since = 0.0
        self.looks: OrderedDict[str, RunLook] = OrderedDict()

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Yield changes as they happen, without end. The first batch has no events: it says that the feed follows the runs now.

        If this method is called again, for example after an error, the first batch has the changes of known runs in between.

        Raises:
            CoordinatorError: The server refuses to answer this client.
        """
        gap = self._since > 0  # the feed was followed before
        while True:
            try:
                async with aclosing(self._follow(gap)) as batches:
                    async for batch in batches:
                        yield batch
            except Unreachable as error:
                gap = True
                yield Batch(0.0, error=str(error), gap=True)
                await self._clock.asleep(RETRY_SECONDS)

    async def _follow(self, gap: bool) -> AsyncGenerator[Batch, None]:
        space = await self._client._do(_space)
        prefixes = [prefix for keys in space.everywhere() for prefix in (keys.run(""), keys.worker(""))]
        try:
            async with aclosing(watch_keys(self._client._settings.address, prefixes)) as reported:
                await anext(reported)
                yield await self._begin(gap)
                async with aclosing(self._read(reported)) as batches:
                    async for batch in batches:
                        yield batch
        except Refused as error:
            log.warning("feed: changes are polled, because the server does not report them: %s", error)
        yield await self._begin(gap)
        async with aclosing(self._poll()) as batches:
            async for batch in batches:
                yield batch

    async def _begin(self, gap: bool) -> Batch:
        """Return the first batch after a connect. After a gap, it has the changes of known runs that were missed meanwhile."""
        known = [id for id, look in self.looks.items() if not look.ended] if gap else []
        batch = await self._look(known)
        self._since = self._since or batch.now
        return Batch(batch.now, batch.events, workers=True, gap=gap)

    async def _read(self, reported: AsyncGenerator[list[str], None]) -> AsyncGenerator[Batch, None]:
        """Yield a batch for the runs that the server reports. Reports that come while a batch is read go into the next batch."""
        changed, came = _Changed(), asyncio.Event()

        async def gather() -> None:
            try:
                async for keys in reported:
                    changed.add(keys)
                    came.set()
            finally:
                came.set()

        gathering = asyncio.create_task(gather())
        try:
            while True:
                await came.wait()
                if gathering.done():
                    await gathering
                await self._clock.asleep(GATHER_SECONDS)
                came.clear()
                taken, changed.ids, changed.workers, changed.everything = (
                    _Changed(changed.ids, changed.workers, changed.everything), {}, False, False,
                )  # fmt: skip
                if taken.everything:
                    self.looks.clear()
                batch = await self._look(list(taken.ids))
                yield Batch(batch.now, batch.events, workers=taken.workers or taken.everything, gap=taken.everything)
        finally:
            gathering.cancel()
            await asyncio.gather(gathering, return_exceptions=True)

    async def _poll(self) -> AsyncGenerator[Batch, None]:
        before: dict[str, list[str]] = await self._client._do(owned_runs)
        while True:
            await self._clock.asleep(POLL_SECONDS)
            after = await self._client._do(owned_runs)
            had, have = ({(w, id) for w, ids in owned.items() for id in ids} for owned in (before, after))
            batch = await self._look(sorted({id for _, id in had ^ have}))
            yield Batch(batch.now, batch.events, workers=before.keys() != after.keys())
            before = after

    async def _look(self, ids: list[str]) -> Batch:
        found, now = await self._client._do(look_at, ids)
        events: list[RunEvent] = []
        for id, look in found.items():
            if look is None:
                self.looks.pop(id, None)
                continue
            events += derive_events(self.looks.get(id), look, self._since, now)
            self.looks[id] = look
            self.looks.move_to_end(id)
        while len(self.looks) > KNOWN:
            self.looks.popitem(last=False)
        return Batch(now, tuple(sorted(events, key=lambda event: event.at)))


def _space(namespace: OpenNamespace) -> Plan:  # type: ignore[type-arg]  # the plan of OpenNamespace.space
    return namespace.space()
