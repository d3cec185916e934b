"""Which runs `list` shows: a bounded part of each index is read, newest first, or in the queue's order where they wait."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.errors import BadCall, BadOption, Unreadable
from coordinator.model.run import ENDED, RunView, Status, name, parse_route
from coordinator.store import scripts
from coordinator.store.keys import Keys, Namespace
from coordinator.store.replies import text, word
from coordinator.store.script import Request, read
from coordinator.views.run_view import run_view, unreadable_view

MOST = 10_000  # entries that are looked at in one index of one partition, however few of them match
ROUTES = 10_000
VIEWS_AT_ONCE = 500
PAGE = 1000

Steps = Generator[list[Request], Any, Any]
Entry = tuple[float, Keys, str]


def routes_of(replies: Sequence[Any]) -> Sequence[str]:
    """The routes of runs, as the server has them; nothing where a run's key holds something else, or no route is in it."""
    return [_route(reply) for reply in all_of([None if isinstance(reply, BadCall) else reply for reply in replies])]


def _route(reply: Any) -> str:
    try:
        route = text(reply or b"")
        parse_route(route)
    except ValueError:
        return ""
    return route


def all_of(replies: Sequence[Any]) -> Sequence[Any]:
    """The replies, if none is an error."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


@dataclass(frozen=True, slots=True)
class Listing:
    """What is asked for."""

    status: Status | None
    kind: str | None
    queue: str | None
    limit: int

    @classmethod
    def of(cls, status: Status | str | None, kind: str | None, queue: str | None, limit: int) -> Listing:
        if not 1 <= limit <= MOST:
            raise BadOption(f"limit {limit!r} is not within 1..{MOST}")
        try:
            wanted = None if status is None else Status(status)
        except ValueError:
            raise BadOption(f"status {status!r} is none of {', '.join(Status)}") from None
        return cls(wanted, kind and name(kind, "kind"), queue and name(queue, "queue"), limit)

    def views(self, space: Namespace) -> Generator[list[Request], Any, list[RunView]]:
        """The views, in order."""
        parts = space.everywhere()
        found: list[RunView] = []
        for status in [self.status] if self.status else Status:
            entries: list[Entry] = yield from self._entries(status, parts)
            views: list[RunView] = yield from _views(entries, status)
            found += [view for view in views if view.status is status]  # the others have moved on meanwhile
        if self.status is None:
            found.sort(key=lambda view: view.id[:20], reverse=True)
        elif self.status is Status.RUNNING:
            found.sort(key=lambda view: view.started or view.created, reverse=True)
        elif self.status in ENDED:
            found.sort(key=lambda view: view.ended or view.created, reverse=True)
        return found[: self.limit]

    def _entries(self, status: Status, parts: Sequence[Keys]) -> Steps:
        match status:
            case Status.QUEUED:
                return (yield from self._queued(parts))
            case Status.DELAYED:
                return (yield from self._indexed([(keys, keys.delayed()) for keys in parts], newest=False))
            case Status.RUNNING:
                return (yield from self._running(parts))
            case Status.WAITING:
                return []
            case _:
                return (yield from self._indexed([(keys, keys.ended(status)) for keys in parts], newest=True))

    def matches(self, route: str) -> bool:
        if self.kind is None and self.queue is None:
            return True
        queue, kind, _ = parse_route(route)
        return self.kind in (None, kind) and self.queue in (None, queue)

    def _queued(self, parts: Sequence[Keys]) -> Steps:
        lines = yield from waiting_lines(parts)
        wanted = [
            (keys, line)
            for keys, route in lines
            if self.matches(route)
            for line in (keys.ready(route), keys.suspect(route))
        ]
        rev = () if self.status else ("REV",)
        replies = yield [read(keys.at, "ZRANGE", line, 0, self.limit - 1, *rev, "WITHSCORES") for keys, line in wanted]
        entries = [
            entry for (keys, _), flat in zip(wanted, all_of(replies), strict=True) for entry in _scored(keys, flat)
        ]
        return sorted(entries, key=lambda entry: entry[0], reverse=self.status is None)[: self.limit]

    def _indexed(self, indexes: Sequence[tuple[Keys, str]], *, newest: bool) -> Steps:
        """The first entries of the indexes that match, page by page."""
        entries: list[Entry] = []
        rev = ("REV",) if newest else ()
        page = self.limit if self.kind is None and self.queue is None else PAGE
        start, open_indexes = 0, list(indexes)
        while open_indexes and len(entries) < self.limit and start < MOST:
            replies = yield [
                read(keys.at, "ZRANGE", index, start, start + page - 1, *rev, "WITHSCORES")
                for keys, index in open_indexes
            ]
            rows = [
                entry
                for (keys, _), flat in zip(open_indexes, all_of(replies), strict=True)
                for entry in _scored(keys, flat)
            ]
            entries += yield from self._matching(rows)
            full = [len(flat) >= 2 * page for flat in replies]
            open_indexes = [index for index, more in zip(open_indexes, full, strict=True) if more]
            start += page
        return sorted(entries, key=lambda entry: entry[0], reverse=newest)[: self.limit]

    def _running(self, parts: Sequence[Keys]) -> Steps:
        workers = yield [read(keys.at, "ZRANGE", keys.workers(), 0, MOST) for keys in parts]
        pairs = [(keys, text(worker)) for keys, ids in zip(parts, all_of(workers), strict=True) for worker in ids]
        owned = yield [read(keys.at, "SRANDMEMBER", keys.owned(worker), PAGE) for keys, worker in pairs]
        rows = [(0.0, keys, text(id)) for (keys, _), ids in zip(pairs, all_of(owned), strict=True) for id in ids]
        rows.sort(key=lambda entry: entry[2], reverse=True)
        return (yield from self._matching(rows))[: self.limit]

    def _matching(self, rows: Sequence[Entry]) -> Steps:
        if self.kind is None and self.queue is None:
            return list(rows)
        found = []
        for start in range(0, len(rows), PAGE):
            part = rows[start : start + PAGE]
            routes = yield [read(keys.at, "HGET", keys.run(id), "route") for _, keys, id in part]
            found += [row for row, route in zip(part, routes_of(routes), strict=True) if route and self.matches(route)]
        return found


def waiting_lines(parts: Sequence[Keys]) -> Steps:
    """The routes in which runs may wait, each with its partition."""
    replies = yield [read(keys.at, "SRANDMEMBER", keys.routes(), ROUTES) for keys in parts]
    return [
        (keys, route)
        for keys, routes in zip(parts, all_of(replies), strict=True)
        for route in sorted(map(text, routes))
    ]


def _scored(keys: Keys, flat: Sequence[Any]) -> list[Entry]:
    return [(float(flat[i + 1]), keys, text(flat[i])) for i in range(0, len(flat), 2)]


def _views(entries: Sequence[Entry], status: Status) -> Steps:
    """What can't be read is listed as that, where it was found: one damaged run hides no other."""
    views = []
    for start in range(0, len(entries), VIEWS_AT_ONCE):
        part = entries[start : start + VIEWS_AT_ONCE]
        replies = yield [scripts.VIEW.call(keys.at, id=id) for _, keys, id in part]
        for (_, _, id), reply in zip(part, all_of(replies), strict=True):
            if word(reply) == "ok":
                try:
                    views.append(run_view(id, reply[1:]))
                except Unreadable as error:
                    views.append(unreadable_view(id, status, error))
    return views
