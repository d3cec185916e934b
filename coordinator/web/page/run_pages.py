"""Page through the runs of a namespace, without reading more than a page of each index.

The indexes of a status are sorted sets, one or more for each partition. A cursor has, for each index, the number of entries that
were read. Runs that end between two pages move entries, so that a run may be shown twice or, rarely, be missed.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.client.listing import routes_of, waiting_routes
from coordinator.client.operations.open_namespace import OpenNamespace, reading
from coordinator.errors import BadOption, CoordinatorError, NotFound
from coordinator.model.names import parse_route
from coordinator.model.run import ENDED, RunView, Status
from coordinator.store.keys import Keys, Namespace
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans.together import Plan, together
from coordinator.store.replies import require_all, text
from coordinator.store.script import Request, read
from coordinator.views.run_view import run_view, unreadable_view

PAGE = 50  # runs of a page
STEP = 200  # entries that are read together, if not every entry matches
MOST_SCANNED = 2000  # entries that one request examines at most, however few of them match
MOST_OWNED = 1000  # runs of one worker that are listed

Steps = Generator[list[Request], Any, Any]
Entry = tuple[float, str, Keys, str]  # sort key, name of the index, keys of the partition, id


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Selects the runs that are listed. Empty values match every run.

    Attributes:
        status: The status; pages are in the order of its index.
        kind: The kind.
        queue: The queue.
        key: The idempotency key.
        meta: Names and texts that the meta of a run must have.
        since: Unix time; runs created before it are left out.
        until: Unix time; runs created after it are left out.
    """

    status: Status
    kind: str = ""
    queue: str = ""
    key: str = ""
    meta: Mapping[str, str] = field(default_factory=dict)
    since: float = 0.0
    until: float = 0.0

    @property
    def step(self) -> int:
        """The number of entries to read together: as many as a page has, if every entry of the indexes matches."""
        by_route = (self.kind or self.queue) and self.status is not Status.QUEUED
        return STEP if by_route or self.key or self.meta or self.since or self.until else PAGE

    def takes_route(self, route: str) -> bool:
        """Return True if runs of this route may match."""
        if not (self.kind or self.queue):
            return True
        queue, kind, _ = parse_route(route)
        return self.kind in ("", kind) and self.queue in ("", queue)

    def takes(self, view: RunView) -> bool:
        """Return True if the run matches."""
        created = view.created.timestamp()
        return (
            view.status is self.status
            and self.kind in ("", view.kind)
            and self.queue in ("", view.queue)
            and self.key in ("", view.key)
            and all(name in view.meta and _as_text(view.meta[name]) == value for name, value in self.meta.items())
            and created >= self.since
            and (not self.until or created <= self.until)
        )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


@dataclass(slots=True)
class RunPage:
    """A page of runs. `cursor` continues after it; it is empty after the last page. `scanned` counts the entries that were read."""

    runs: list[RunView]
    cursor: str
    scanned: int


def list_page(namespace: OpenNamespace, wanted: RunFilter, cursor: str) -> Plan[RunPage]:
    """Return the page of matching runs after a cursor, which is empty for the first page.

    Raises:
        BadOption: The cursor is not valid.
    """
    offsets = read_cursor(cursor)
    space = yield from namespace.space()
    page: RunPage = yield from reading(_page(space, wanted, offsets))
    return page


def read_cursor(cursor: str) -> dict[str, int]:
    """Return the number of read entries of each index.

    Raises:
        BadOption: The cursor is not valid.
    """
    if not cursor:
        return {}
    try:
        found = json.loads(base64.urlsafe_b64decode(cursor))
        return {str(name): max(0, int(offset)) for name, offset in found.items()}
    except (ValueError, TypeError, AttributeError, binascii.Error):
        raise BadOption("the cursor is not valid: begin with the first page") from None


def _write_cursor(offsets: Mapping[str, int]) -> str:
    return base64.urlsafe_b64encode(json.dumps(offsets).encode()).decode()


def _page(space: Namespace, wanted: RunFilter, offsets: dict[str, int]) -> Steps:
    indexes: list[tuple[Keys, str]] = yield from _indexes(space, wanted)
    runs: list[RunView] = []
    scanned = 0
    while scanned < MOST_SCANNED:
        entries: list[Entry] = yield from _next_entries(indexes, wanted, offsets)
        if not entries:
            return RunPage(runs, "", scanned)
        matching: Sequence[Entry] = yield from _with_route(entries, wanted)
        views: list[tuple[str, RunView | None]] = yield from _views(matching, wanted.status)
        by_id = dict(views)
        for _, name, _, id in entries:
            offsets[name] = offsets.get(name, 0) + 1
            scanned += 1
            view = by_id.get(id)
            if view is not None and wanted.takes(view):
                runs.append(view)
            if len(runs) == PAGE:
                return RunPage(runs, _write_cursor(offsets), scanned)
    return RunPage(runs, _write_cursor(offsets), scanned)


def _indexes(space: Namespace, wanted: RunFilter) -> Steps:
    parts = space.everywhere()
    match wanted.status:
        case Status.QUEUED:
            routes = yield from waiting_routes(parts)
            return [
                (keys, index)
                for keys, route in routes
                if wanted.takes_route(route)
                for index in (keys.ready(route), keys.suspect(route))
            ]
        case Status.RUNNING:
            workers = yield [read(keys.at, "ZRANGE", keys.workers(), 0, MOST_OWNED - 1) for keys in parts]
            return [
                (keys, keys.owned(text(worker)))
                for keys, ids in zip(parts, require_all(workers), strict=True)
                for worker in ids
            ]
        case Status.DELAYED:
            return [(keys, keys.delayed()) for keys in parts]
        case Status.WAITING:
            return [(keys, keys.waiting()) for keys in parts]
        case ended:
            return [(keys, keys.ended(ended)) for keys in parts]


def _next_entries(indexes: Sequence[tuple[Keys, str]], wanted: RunFilter, offsets: Mapping[str, int]) -> Steps:
    """Return the next entries over all indexes, in order."""
    status, step = wanted.status, wanted.step
    if status is Status.RUNNING:  # sets without an order: they are as small as the number of slots
        replies = yield [read(keys.at, "SRANDMEMBER", index, MOST_OWNED) for keys, index in indexes]
        everyone = [
            (0.0, "running", keys, text(id))
            for (keys, _), ids in zip(indexes, require_all(replies), strict=True)
            for id in ids
        ]
        start = offsets.get("running", 0)
        return sorted(everyone, key=lambda entry: entry[3], reverse=True)[start : start + step]
    newest = status in ENDED
    order = ("REV",) if newest else ()
    requests: list[Request] = []
    for keys, index in indexes:
        start = offsets.get(index, 0)
        requests.append(read(keys.at, "ZRANGE", index, start, start + step - 1, *order, "WITHSCORES"))
    replies = yield requests
    entries = [
        (float(flat[i + 1]), index, keys, text(flat[i]))
        for (keys, index), flat in zip(indexes, require_all(replies), strict=True)
        for i in range(0, len(flat), 2)
    ]
    # The sort is stable, so entries of one index with the same score keep their order, on which the offsets rely.
    return sorted(entries, key=lambda entry: entry[0], reverse=newest)[:step]


def _with_route(entries: Sequence[Entry], wanted: RunFilter) -> Steps:
    if wanted.status is Status.QUEUED or not (wanted.kind or wanted.queue):
        return entries
    replies = yield [read(keys.at, "HGET", keys.run(id), "route") for _, _, keys, id in entries]
    return [
        entry
        for entry, route in zip(entries, routes_of(replies), strict=True)
        if route and wanted.takes_route(route)
    ]  # fmt: skip


def _views(entries: Sequence[Entry], status: Status) -> Steps:
    """Return the id and the view of each run. A run that is gone has None."""
    found: list[tuple[str, RunView | None]] = []
    answers = yield from together([client_plans.view(keys, id) for _, _, keys, id in entries])
    for (_, _, _, id), answer in zip(entries, answers, strict=True):
        if isinstance(answer, NotFound) or answer is None:
            found.append((id, None))
        elif isinstance(answer, CoordinatorError):
            raise answer
        else:
            try:
                found.append((id, run_view(id, answer)))
            except CoordinatorError as error:
                found.append((id, unreadable_view(id, status, error)))  # type: ignore[arg-type]  # Unreadable
    return found
