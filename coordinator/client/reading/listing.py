"""The runs that `Client.list` returns: newest first, or in the order of the queue for runs that wait.

A listing reads a bounded part of each index and the whole view of each run. scan.py reads whole indexes, but only ids.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.errors import BadCall, BadOption, CoordinatorError, Unreadable
from coordinator.model.names import name, parse_route
from coordinator.model.run import ENDED, RunView, Status
from coordinator.store.keys import Keys, Namespace
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans.merge import merge_plans
from coordinator.store.replies import require_all, text
from coordinator.store.script import Request, read
from coordinator.views.run_view import run_view, unreadable_view

MOST = 10_000  # the most entries of one index in one partition that are read, even if few of them match
ROUTES = 10_000  # the most routes of one partition that are read
GROUPS = 1_000  # the most groups of one partition whose lines are read
VIEWS_AT_ONCE = 500
PAGE = 1000

Steps = Generator[list[Request], Any, Any]
Entry = tuple[float, Keys, str]


def routes_of(replies: Sequence[Any]) -> Sequence[str]:
    """Return the routes of runs from replies to HGET. A route is empty if the run is gone or damaged."""
    return [_route(reply) for reply in require_all([None if isinstance(r, BadCall) else r for r in replies])]


def _route(reply: Any) -> str:
    try:
        route = text(reply or b"")
        parse_route(route)
    except ValueError:
        return ""
    return route


@dataclass(frozen=True, slots=True)
class Listing:
    """The filters of a listing, and the largest number of runs to list. None matches every status, kind or queue."""

    status: Status | None
    kind: str | None
    queue: str | None
    limit: int

    @classmethod
    def of(cls, status: Status | str | None, kind: str | None, queue: str | None, limit: int) -> Listing:
        """Check the values of the filters, and return them as a listing.

        Raises:
            BadName: The kind or the queue is not a name.
            BadOption: The limit or the status is not valid.
        """
        if not 1 <= limit <= MOST:
            raise BadOption(f"limit {limit!r} is not between 1 and {MOST}")
        try:
            wanted = None if status is None else Status(status)
        except ValueError:
            raise BadOption(f"status {status!r} is not known: use one of {', '.join(Status)}") from None
        return cls(wanted, kind and name(kind, "kind"), queue and name(queue, "queue"), limit)

    def views(self, space: Namespace) -> Generator[list[Request], Any, list[RunView]]:
        """Return the views of at most `limit` matching runs.

        Queued, delayed and waiting runs come in the order of their index. Running runs are sorted by start, ended runs by end, and
        runs of all statuses by creation, the newest first.
        """
        parts = space.everywhere()
        if self.status is None:
            newest: list[RunView] = yield from self._newest(parts)
            return newest
        entries: list[Entry] = yield from self._entries(self.status, parts)
        views: list[RunView] = yield from views_of(entries, self.status)
        found = [view for view in views if view.status is self.status]  # the others changed since the index was read
        if self.status is Status.RUNNING:
            found.sort(key=lambda view: view.started or view.created, reverse=True)
        elif self.status in ENDED:
            found.sort(key=lambda view: view.ended or view.created, reverse=True)
        return found[: self.limit]

    def _newest(self, parts: Sequence[Keys]) -> Steps:
        """Return the views of the newest runs of all statuses. Whole runs are read only for the runs that are listed."""
        found: dict[str, tuple[Status, Entry]] = {}
        for status in Status:
            found |= {entry[2]: (status, entry) for entry in (yield from self._entries(status, parts))}
        newest = sorted(found.values(), key=lambda one: one[1][2][:20], reverse=True)[: self.limit]
        views: dict[str, RunView] = {}
        for status in Status:
            of_status = [entry for found_as, entry in newest if found_as is status]
            views |= {view.id: view for view in (yield from views_of(of_status, status))}
        return [views[id] for _, (_, _, id) in newest if id in views]

    def _entries(self, status: Status, parts: Sequence[Keys]) -> Steps:
        match status:
            case Status.QUEUED:
                return (yield from self._queued(parts))
            case Status.DELAYED:
                return (yield from self._indexed([(keys, keys.delayed()) for keys in parts], newest=False))
            case Status.RUNNING:
                return (yield from self._running(parts))
            case Status.WAITING:
                return (yield from self._indexed([(keys, keys.waiting()) for keys in parts], newest=False))
            case _:
                return (yield from self._indexed([(keys, keys.ended(status)) for keys in parts], newest=True))

    def matches(self, route: str) -> bool:
        """Return True if the kind and the queue of this route match the filters."""
        if self.kind is None and self.queue is None:
            return True
        queue, kind, _ = parse_route(route)
        return self.kind in (None, kind) and self.queue in (None, queue)

    def matches_group(self, group: str) -> bool:
        """Return True if the kind of this group matches the filters. `group` is "<kind>:<name>"."""
        return self.kind in (None, group.partition(":")[0])

    def _queued(self, parts: Sequence[Keys]) -> Steps:
        routes = yield from waiting_routes(parts)
        wanted = [
            (keys, index)
            for keys, route in routes
            if self.matches(route)
            for index in (keys.ready(route), keys.suspect(route))
        ]
        groups = yield from waiting_groups(parts, GROUPS)
        lines = [(keys, keys.line(group)) for keys, group in groups if self.matches_group(group)]
        wanted += lines
        rev = () if self.status else ("REV",)
        replies = yield [
            read(keys.at, "ZRANGE", index, 0, self.limit - 1, *rev, "WITHSCORES") for keys, index in wanted
        ]
        entries = [
            entry for (keys, _), flat in zip(wanted, require_all(replies), strict=True) for entry in scored(keys, flat)
        ]
        if lines and self.queue is not None:
            entries = yield from self.matching(entries)
        return sorted(entries, key=lambda entry: entry[0], reverse=self.status is None)[: self.limit]

    def _indexed(self, indexes: Sequence[tuple[Keys, str]], *, newest: bool) -> Steps:
        """Return the first matching entries of all indexes together, read page by page.

        Args:
            indexes: The sorted sets, each with the keys of its partition.
            newest: Begin with the entries that have the highest scores.
        """
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
                for (keys, _), flat in zip(open_indexes, require_all(replies), strict=True)
                for entry in scored(keys, flat)
            ]
            entries += yield from self.matching(rows)
            full = [len(flat) >= 2 * page for flat in replies]
            open_indexes = [index for index, more in zip(open_indexes, full, strict=True) if more]
            start += page
        return sorted(entries, key=lambda entry: entry[0], reverse=newest)[: self.limit]

    def _running(self, parts: Sequence[Keys]) -> Steps:
        workers = yield [read(keys.at, "ZRANGE", keys.workers(), 0, MOST) for keys in parts]
        pairs = [(keys, text(worker)) for keys, ids in zip(parts, require_all(workers), strict=True) for worker in ids]
        owned = yield [read(keys.at, "SRANDMEMBER", keys.owned(worker), PAGE) for keys, worker in pairs]
        rows = [(0.0, keys, text(id)) for (keys, _), ids in zip(pairs, require_all(owned), strict=True) for id in ids]
        rows.sort(key=lambda entry: entry[2], reverse=True)
        return (yield from self.matching(rows))[: self.limit]

    def matching(self, rows: Sequence[Entry]) -> Steps:
        """Return the entries whose runs match the kind and the queue of the filters."""
        if self.kind is None and self.queue is None:
            return list(rows)
        found = []
        for start in range(0, len(rows), PAGE):
            part = rows[start : start + PAGE]
            routes = yield [read(keys.at, "HGET", keys.run(id), "route") for _, keys, id in part]
            found += [row for row, route in zip(part, routes_of(routes), strict=True) if route and self.matches(route)]
        return found


def waiting_routes(parts: Sequence[Keys]) -> Steps:
    """Return the routes that may have queued runs, each with the keys of its partition."""
    replies = yield [read(keys.at, "SRANDMEMBER", keys.routes(), ROUTES) for keys in parts]
    return [
        (keys, route)
        for keys, routes in zip(parts, require_all(replies), strict=True)
        for route in sorted(map(text, routes))
    ]


def waiting_groups(parts: Sequence[Keys], most: int) -> Steps:
    """Return up to `most` groups with runs in their lines, for each partition: the keys of the partition, and "<kind>:<name>"."""
    replies = yield [read(keys.at, "SRANDMEMBER", keys.groups(), most) for keys in parts]
    return [
        (keys, group)
        for keys, groups in zip(parts, require_all(replies), strict=True)
        for group in sorted(map(text, groups))
    ]


def scored(keys: Keys, flat: Sequence[Any]) -> list[Entry]:
    """Return the entries of a flat reply to ZRANGE … WITHSCORES, each as score, keys of the partition and id."""
    return [(float(flat[i + 1]), keys, text(flat[i])) for i in range(0, len(flat), 2)]


def views_of(entries: Sequence[Entry], status: Status) -> Steps:
    """Return the views of those entries whose runs still exist.

    The view of a damaged run has this status, and the reason in `unreadable`.
    """
    views = []
    for start in range(0, len(entries), VIEWS_AT_ONCE):
        part = entries[start : start + VIEWS_AT_ONCE]
        answers = yield from merge_plans([client_plans.view(keys, id) for _, keys, id in part])
        for (_, _, id), answer in zip(part, answers, strict=True):
            if isinstance(answer, CoordinatorError):
                raise answer
            if answer is not None:
                views.append(_view(id, answer, status))
    return views


def _view(id: str, reply: Sequence[Any], status: Status) -> RunView:
    try:
        return run_view(id, reply)
    except Unreadable as error:
        return unreadable_view(id, status, error)
