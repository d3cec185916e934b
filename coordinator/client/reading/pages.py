"""Page through all runs of a namespace with a cursor. Each page reads a bounded part of each index.

A cursor names the last entry that was examined, by its status, score and id. So entries that are added or removed before the cursor
do not move the runs after it. A run that changes its status between two pages may be shown twice, or be missed.

listing.py returns the first runs only, and scan.py returns all ids.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from coordinator.client.reading.listing import (
    GROUPS,
    PAGE,
    Entry,
    Listing,
    Steps,
    scored,
    views_of,
    waiting_groups,
    waiting_routes,
)
from coordinator.errors import BadOption
from coordinator.model.run import ENDED, RunView, Status
from coordinator.store.keys import Keys, Namespace
from coordinator.store.replies import require_all, text
from coordinator.store.script import Request, read

STEP = 100  # entries that are examined together
FEW = 4  # up to this number of indexes, STEP entries of each are read together; of more indexes, fewer entries of each
MOST_EXAMINED = 1_000  # the most entries that one page examines, even if few of them match

_ORDER = tuple(Status)  # the order of statuses, if a page has runs of all


class Cursor(NamedTuple):
    """The last entry that was examined: its status, score and id. With an empty id, no entry of the status was examined yet."""

    status: Status
    score: float = 0.0
    id: str = ""

    def __str__(self) -> str:
        """Return the cursor as text that fits into a URL."""
        return base64.urlsafe_b64encode(json.dumps([self.status, self.score, self.id]).encode()).decode()

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Return the cursor from its text.

        Raises:
            BadOption: The text is not a cursor.
        """
        try:
            status, score, id = json.loads(base64.urlsafe_b64decode(text.encode()))
            found = cls(Status(status), float(score), str(id))
            if not math.isfinite(found.score):
                raise ValueError("the score is not a number")
        except (ValueError, TypeError, RecursionError, binascii.Error):
            raise BadOption(f"cursor {text!r:.80} is not valid: begin again without a cursor") from None
        return found


@dataclass(frozen=True, slots=True)
class Page:
    """A page of runs, and the cursor for the next page. A page may have fewer runs than requested. The last page has no cursor."""

    runs: Sequence[RunView]
    cursor: Cursor | None


@dataclass(frozen=True, slots=True)
class Pager:
    """A reader of pages of runs.

    Attributes:
        filters: The status, the kind and the queue of the runs, and the largest number of runs of a page.
        takes: Returns True if a run that matches the filters belongs on a page.
    """

    filters: Listing
    takes: Callable[[RunView], bool]

    def page(self, space: Namespace, cursor: Cursor | None) -> Generator[list[Request], Any, Page]:
        """Return the page after a cursor; None reads the first page.

        Ended runs are sorted by the time of their end, newest first. Running runs are sorted by id. Queued, delayed and waiting
        runs are sorted by their score in the server's sorted sets, lowest first.

        Raises:
            BadOption: The cursor belongs to another status.
        """
        at = cursor or Cursor(self.filters.status or _ORDER[0])
        if self.filters.status not in (None, at.status):
            raise BadOption(f"the cursor belongs to status {at.status}: begin again without a cursor")
        found: list[RunView] = []
        examined = 0
        while True:
            entries: list[Entry] = yield from self._next(space, at)
            examined += len(entries)
            views: list[RunView] = yield from self._views(entries, at.status)
            by_id = {view.id: view for view in views}
            for score, _, id in entries:
                at = Cursor(at.status, score, id)
                view = by_id.get(id)
                if view is not None and view.status is at.status and self.takes(view):
                    found.append(view)
                if len(found) == self.filters.limit:
                    return Page(found, at)
            if not entries:
                after = self._next_status(at.status)
                if after is None:
                    return Page(found, None)
                at = Cursor(after)
            if examined >= MOST_EXAMINED:
                return Page(found, at)

    def _next_status(self, status: Status) -> Status | None:
        place = _ORDER.index(status) + 1
        return None if self.filters.status or place == len(_ORDER) else _ORDER[place]

    def _views(self, entries: Sequence[Entry], status: Status) -> Steps:
        matching = yield from self.filters.matching(entries)
        return (yield from views_of(matching, status))

    def _next(self, space: Namespace, at: Cursor) -> Steps:
        """Return the next entries after a cursor, over all indexes of its status."""
        parts = space.everywhere()
        if at.status is Status.RUNNING:
            return (yield from self._running(parts, at))
        indexes: list[tuple[Keys, str]] = yield from self._indexes(parts, at.status)
        entries: list[Entry] = []
        unread: list[Entry] = []  # the last entry that was read of each index that may have more
        newest = at.status in ENDED
        # If there are many indexes, read only a part of each.
        size = STEP if len(indexes) <= FEW else max(5, math.ceil(2 * STEP / len(indexes)))
        open_indexes, offset = indexes, 0
        while open_indexes:
            replies = yield [_read_from(keys, index, at, offset, size, newest=newest) for keys, index in open_indexes]
            rest = []
            for (keys, index), flat in zip(open_indexes, require_all(replies), strict=True):
                after = [entry for entry in scored(keys, flat) if _is_after(entry, at, newest=newest)]
                entries += after
                if len(flat) == 2 * size:
                    # If all of them were examined before, they have the score of the cursor, and more may follow.
                    if after:
                        unread.append(after[-1])
                    else:
                        rest.append((keys, index))
            open_indexes, offset = rest, offset + size
        found = sorted(entries, key=_place, reverse=newest)
        if unread:
            # Entries behind the last one of an index that has more are left for the next step.
            last = sorted(unread, key=_place, reverse=newest)[0]
            found = found[: found.index(last) + 1]
        return found[:STEP]

    def _indexes(self, parts: Sequence[Keys], status: Status) -> Steps:
        match status:
            case Status.QUEUED:
                routes = yield from waiting_routes(parts)
                matching = [(keys, route) for keys, route in routes if self.filters.matches(route)]
                groups = yield from waiting_groups(parts, GROUPS)
                lines = [(keys, keys.line(group)) for keys, group in groups if self.filters.matches_group(group)]
                ready = [
                    (keys, index) for keys, route in matching for index in (keys.ready(route), keys.suspect(route))
                ]
                return ready + lines
            case Status.DELAYED:
                return [(keys, keys.delayed()) for keys in parts]
            case Status.WAITING:
                return [(keys, keys.waiting()) for keys in parts]
            case ended:
                return [(keys, keys.ended(ended)) for keys in parts]

    def _running(self, parts: Sequence[Keys], at: Cursor) -> Steps:
        """Return a page of running runs, sorted by id.

        Each worker has a set of its runs. A set has about as many entries as the worker has slots.
        """
        workers = yield [read(keys.at, "ZRANGE", keys.workers(), 0, -1) for keys in parts]
        pairs = [(keys, text(worker)) for keys, ids in zip(parts, require_all(workers), strict=True) for worker in ids]
        owned = yield [read(keys.at, "SRANDMEMBER", keys.owned(worker), PAGE * 10) for keys, worker in pairs]
        entries = [
            (0.0, keys, text(id)) for (keys, _), ids in zip(pairs, require_all(owned), strict=True) for id in ids
        ]
        return sorted((entry for entry in entries if entry[2] > at.id), key=_place)[:STEP]


def _read_from(keys: Keys, index: str, at: Cursor, offset: int, size: int, *, newest: bool) -> Request:
    """Return the request for `size` entries of an index, from the score of the cursor on, after skipping `offset` entries."""
    start = f"{at.score:.17g}" if at.id else "+inf" if newest else "-inf"
    bounds = (start, "-inf", "BYSCORE", "REV") if newest else (start, "+inf", "BYSCORE")
    return read(keys.at, "ZRANGE", index, *bounds, "LIMIT", offset, size, "WITHSCORES")


def _place(entry: Entry) -> tuple[float, str]:
    score, _, id = entry
    return score, id


def _is_after(entry: Entry, at: Cursor, *, newest: bool) -> bool:
    if not at.id:
        return True
    return _place(entry) < (at.score, at.id) if newest else _place(entry) > (at.score, at.id)
