"""Find the ids of all runs that match filters.

This module reads whole indexes, but only ids. listing.py reads a bounded part of each index, but the whole view of each run.

A walk is not a snapshot: a run that changes its status during the walk may be missed or found twice. A caller that changes runs
therefore walks again until a walk finds no new ids.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.client.reading.listing import routes_of, waiting_groups, waiting_routes
from coordinator.model.names import parse_route
from coordinator.model.run import Status
from coordinator.store.keys import Keys, Namespace
from coordinator.store.replies import require_all, text
from coordinator.store.script import Request, read

PAGE = 1000
MOST_GROUPS = 10_000_000  # groups of one partition; more than a server can hold

Steps = Generator[list[Request], Any, Any]


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk through the ids of all runs that match these filters.

    Attributes:
        status: The status of the runs.
        kind: The kind of the runs, or None for all kinds.
        queue: The queue of the runs, or None for all queues.
        since: The beginning of a run id. Runs whose id sorts before it are left out.
    """

    status: Status
    kind: str | None = None
    queue: str | None = None
    since: str = ""

    def ids(self, space: Namespace) -> Generator[list[Request], Any, list[str]]:
        """Return each id once, in the order of the index in which it was found."""
        found: dict[str, None] = {}
        for keys, command, key, known in (yield from self._indexes(space.everywhere())):
            start: int | None = 0
            while start is not None:
                start, page = yield from _page(keys, command, key, start)
                recent = [id for id in page if id >= self.since and id not in found]
                found |= dict.fromkeys(recent if known else (yield from self._matching(keys, recent)))
        return list(found)

    def _indexes(self, parts: Sequence[Keys]) -> Steps:
        """Return the indexes to read, as (keys of the partition, command that reads a page, key, True if every entry matches)."""
        every = self.kind is None and self.queue is None
        match self.status:
            case Status.QUEUED:
                routes = yield from waiting_routes(parts)
                ready = [
                    (keys, "ZRANGE", key, True)
                    for keys, route in routes
                    if self._matches(route)
                    for key in (keys.ready(route), keys.suspect(route))
                ]
                groups = yield from waiting_groups(parts, MOST_GROUPS)
                return ready + [(keys, "ZRANGE", keys.line(group), every) for keys, group in groups]
            case Status.DELAYED:
                return [(keys, "ZRANGE", keys.delayed(), every) for keys in parts]
            case Status.RUNNING:
                workers = yield [read(keys.at, "ZRANGE", keys.workers(), 0, -1) for keys in parts]
                return [
                    (keys, "SSCAN", keys.owned(text(worker)), every)
                    for keys, ids in zip(parts, require_all(workers), strict=True)
                    for worker in ids
                ]
            case Status.WAITING:
                return [(keys, "ZRANGE", keys.waiting(), every) for keys in parts]
            case ended:
                return [(keys, "ZRANGE", keys.ended(ended), every) for keys in parts]

    def _matches(self, route: str) -> bool:
        queue, kind, _ = parse_route(route)
        return self.kind in (None, kind) and self.queue in (None, queue)

    def _matching(self, keys: Keys, ids: Sequence[str]) -> Steps:
        routes = routes_of((yield [read(keys.at, "HGET", keys.run(id), "route") for id in ids]))
        return [id for id, route in zip(ids, routes, strict=True) if route and self._matches(route)]


def _page(keys: Keys, command: str, key: str, start: int) -> Steps:
    """Read one page of an index. Return the start of the next page (None after the last page), and the ids of this page."""
    if command == "ZRANGE":
        (members,) = require_all((yield [read(keys.at, command, key, start, start + PAGE - 1)]))
        return start + PAGE if len(members) == PAGE else None, [text(member) for member in members]
    ((cursor, members),) = require_all((yield [read(keys.at, command, key, start, "COUNT", PAGE)]))
    return int(cursor) or None, [text(member) for member in members]
