"""All runs that a filter means, as ids: every page of every index, where `list` reads a bounded part and brings whole views.

A walk is no snapshot: what moves while it goes on may be missed or come twice. Who changes what was found walks again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.client.listing import all_of, routes_of, waiting_lines
from coordinator.model.run import Status, parse_route
from coordinator.store.keys import Keys, Namespace
from coordinator.store.replies import text
from coordinator.store.script import Request, read

PAGE = 1000

Steps = Generator[list[Request], Any, Any]


@dataclass(frozen=True, slots=True)
class Walk:
    """Which runs are meant. `since` is the beginning of an id: those that were made before it are not."""

    status: Status
    kind: str | None = None
    queue: str | None = None
    since: str = ""

    def ids(self, space: Namespace) -> Generator[list[Request], Any, list[str]]:
        """Each once, in the order in which its index has them."""
        found: dict[str, None] = {}
        for keys, command, key, known in (yield from self._indexes(space.everywhere())):
            start: int | None = 0
            while start is not None:
                start, page = yield from _page(keys, command, key, start)
                recent = [id for id in page if id >= self.since and id not in found]
                found |= dict.fromkeys(recent if known else (yield from self._matching(keys, recent)))
        return list(found)

    def _indexes(self, parts: Sequence[Keys]) -> Steps:
        """Partition, command that pages, key, and whether all that is there is of the kind and queue that are meant."""
        every = self.kind is None and self.queue is None
        match self.status:
            case Status.QUEUED:
                lines = yield from waiting_lines(parts)
                return [
                    (keys, "ZRANGE", key, True)
                    for keys, route in lines
                    if self._meant(route)
                    for key in (keys.ready(route), keys.suspect(route))
                ]
            case Status.DELAYED:
                return [(keys, "ZRANGE", keys.delayed(), every) for keys in parts]
            case Status.RUNNING:
                workers = yield [read(keys.at, "ZRANGE", keys.workers(), 0, -1) for keys in parts]
                return [
                    (keys, "SSCAN", keys.owned(text(worker)), every)
                    for keys, ids in zip(parts, all_of(workers), strict=True)
                    for worker in ids
                ]
            case Status.WAITING:
                return []
            case ended:
                return [(keys, "ZRANGE", keys.ended(ended), every) for keys in parts]

    def _meant(self, route: str) -> bool:
        queue, kind, _ = parse_route(route)
        return self.kind in (None, kind) and self.queue in (None, queue)

    def _matching(self, keys: Keys, ids: Sequence[str]) -> Steps:
        routes = routes_of((yield [read(keys.at, "HGET", keys.run(id), "route") for id in ids]))
        return [id for id, route in zip(ids, routes, strict=True) if route and self._meant(route)]


def _page(keys: Keys, command: str, key: str, start: int) -> Steps:
    """The ids of a page, and where the next one begins; None where there is none."""
    if command == "ZRANGE":
        (members,) = all_of((yield [read(keys.at, command, key, start, start + PAGE - 1)]))
        return start + PAGE if len(members) == PAGE else None, [text(member) for member in members]
    ((cursor, members),) = all_of((yield [read(keys.at, command, key, start, "COUNT", PAGE)]))
    return int(cursor) or None, [text(member) for member in members]
