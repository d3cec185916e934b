"""Page through the runs of a namespace, without reading more than a page of each index.

The indexes of a status are sorted sets, one or more for each partition. A cursor has, for each index, the number of entries that
were read. Runs that end between two pages move entries, so that a run may be shown twice or, rarely, be missed.

If the entries of an index may not match the filter, a few fields of each run are read first. Only runs that match are read as a
whole.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.client.operations.open_namespace import OpenNamespace, reading
from coordinator.client.reading.listing import waiting_groups, waiting_routes
from coordinator.errors import BadCall, BadOption, CoordinatorError, NotFound, Unreadable
from coordinator.model.run import ENDED, RunView, Status
from coordinator.model.run_id import partition_for, partition_of
from coordinator.store.keys import Keys, Namespace
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans.merge import Plan, merge_plans
from coordinator.store.replies import require_all, text
from coordinator.store.script import Request, read
from coordinator.views.run_view import run_view, unreadable_view
from coordinator.web.page.run_filter import RunFilter

PAGE = 50  # runs of a page
STEP = 200  # entries that are read together, if not every entry matches
MOST_SCANNED = 1000  # the most entries that one request examines, even if few of them match
MOST_OWNED = 1000  # the most runs of one worker that are listed
MOST_GROUPS = 1000  # the most groups of one partition whose lines are listed
MOST_OFFSET = 10**12  # the highest offset that a page may have; no index has more entries
FEW = 4  # up to this number of indexes, a whole step of each is read; of more indexes, fewer entries of each

Steps = Generator[list[Request], Any, Any]
Entry = tuple[float, str, Keys, str]  # sort key, name of the index, keys of the partition, id
Index = tuple[Keys, str]


@dataclass(slots=True)
class RunPage:
    """A page of runs.

    Attributes:
        runs: The runs.
        cursor: The cursor for the next page; empty after the last page.
        scanned: The number of entries that were read.
    """

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


def keep_matching(namespace: OpenNamespace, ids: Sequence[str], wanted: RunFilter) -> Plan[list[str]]:
    """Return the ids of the runs that match a filter, in the same order. Runs that are gone or damaged do not match."""
    space = yield from namespace.space()
    found: list[str] = yield from reading(_keep_matching(space, ids, wanted))
    return found


def _keep_matching(space: Namespace, ids: Sequence[str], wanted: RunFilter) -> Steps:
    found: list[str] = []
    for start in range(0, len(ids), MOST_SCANNED):
        part = [(id, space.keys(partition_of(id, space.partitions))) for id in ids[start : start + MOST_SCANNED]]
        replies = yield [read(keys.at, "HMGET", keys.run(id), *wanted.fields) for id, keys in part]
        fields = require_all([None if isinstance(reply, BadCall) else reply for reply in replies])
        found += [
            id
            for (id, _), values in zip(part, fields, strict=True)
            if values is not None and wanted.takes_fields(values)
        ]
    return found


def read_cursor(cursor: str) -> dict[str, int]:
    """Return the number of entries that were read of each index, from the text of a cursor.

    Raises:
        BadOption: The cursor is not valid.
    """
    if not cursor:
        return {}
    try:
        found = json.loads(base64.urlsafe_b64decode(cursor))
        return {str(name): min(max(0, int(offset)), MOST_OFFSET) for name, offset in found.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, binascii.Error):
        raise BadOption("the cursor is not valid: begin with the first page") from None


def _write_cursor(offsets: Mapping[str, int]) -> str:
    return base64.urlsafe_b64encode(json.dumps(offsets).encode()).decode()


def _page(space: Namespace, wanted: RunFilter, offsets: dict[str, int]) -> Steps:
    if wanted.status is None:
        return (yield from _newest(space, wanted))
    indexes: list[Index] = yield from _indexes(space, wanted, wanted.status)
    runs: list[RunView] = []
    scanned = 0
    while scanned < MOST_SCANNED:
        step = STEP if wanted.narrow else PAGE
        entries: list[Entry] = yield from _next_entries(indexes, wanted.status, step, offsets)
        if not entries:
            return RunPage(runs, "", scanned)
        views: dict[str, RunView] = yield from _matching_views(entries, wanted, PAGE - len(runs))
        for _, name, _, id in entries:
            offsets[name] = offsets.get(name, 0) + 1
            scanned += 1
            if id in views:
                runs.append(views[id])
            if len(runs) == PAGE:
                return RunPage(runs, _write_cursor(offsets), scanned)
    return RunPage(runs, _write_cursor(offsets), scanned)


def _newest(space: Namespace, wanted: RunFilter) -> Steps:
    """Return the runs that were created last, among the first entries of each status. There is no further page."""
    found: dict[str, Entry] = {}
    statuses: dict[str, Status] = {}
    for status in Status:
        indexes: list[Index] = yield from _indexes(space, wanted, status)
        step = STEP if wanted.narrow else PAGE
        entries: list[Entry] = yield from _next_entries(indexes, status, step, {}, newest=status is Status.QUEUED)
        found |= {entry[3]: entry for entry in entries}
        statuses |= {entry[3]: status for entry in entries}
    # An id begins with the time at which the run was created, and ends with its partition.
    order = sorted(found.values(), key=lambda entry: entry[3].partition("-")[0], reverse=True)
    views: dict[str, RunView] = yield from _matching_views(order, wanted, PAGE, statuses)
    return RunPage([views[entry[3]] for entry in order if entry[3] in views], "", len(found))


def _indexes(space: Namespace, wanted: RunFilter, status: Status) -> Steps:
    parts = [space.keys(partition_for(wanted.group, space.partitions))] if wanted.group else space.everywhere()
    match status:
        case Status.QUEUED:
            routes = yield from waiting_routes(parts)
            groups = yield from waiting_groups(parts, MOST_GROUPS)
            ready = [
                (keys, index)
                for keys, route in routes
                if wanted.takes_route(route)
                for index in (keys.ready(route), keys.suspect(route))
            ]
            return ready + [(keys, keys.line(group)) for keys, group in groups if wanted.takes_group(group)]
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


def _next_entries(
    indexes: Sequence[Index], status: Status, step: int, offsets: Mapping[str, int], *, newest: bool = False
) -> Steps:
    """Return the next entries of all indexes together, in the order of the status.

    Args:
        indexes: The sorted sets, each with the keys of its partition.
        status: The status of the indexes. Entries of ended runs come in reverse order.
        step: The largest number of entries.
        offsets: The number of entries of each index that were read before.
        newest: Read the entries in reverse order for any status.
    """
    if status is Status.RUNNING:
        return (yield from _running_entries(indexes, step, offsets))
    reverse = newest or status in ENDED
    order = ("REV",) if reverse else ()
    # If there are many indexes, read only a part of each. Entries behind the last one of an index that has more are left for the
    # next step.
    size = step if len(indexes) <= FEW else max(5, math.ceil(2 * step / len(indexes)))
    requests: list[Request] = []
    for keys, index in indexes:
        start = offsets.get(index, 0)
        requests.append(read(keys.at, "ZRANGE", index, start, start + size - 1, *order, "WITHSCORES"))
    replies = require_all((yield requests)) if requests else []
    entries = [
        (float(flat[i + 1]), index, keys, text(flat[i]))
        for (keys, index), flat in zip(indexes, replies, strict=True)
        for i in range(0, len(flat), 2)
    ]
    lasts = [float(flat[-1]) for flat in replies if len(flat) == 2 * size]
    if lasts:
        horizon = max(lasts) if reverse else min(lasts)
        entries = [entry for entry in entries if (entry[0] >= horizon if reverse else entry[0] <= horizon)]
    # The sort is stable, so entries of one index with the same score keep their order, on which the offsets rely.
    return sorted(entries, key=lambda entry: entry[0], reverse=reverse)[:step]


def _running_entries(indexes: Sequence[Index], step: int, offsets: Mapping[str, int]) -> Steps:
    """Return the next running runs, the newest id first. The set of a worker's runs is small and unordered, and read whole."""
    replies = yield [read(keys.at, "SRANDMEMBER", index, MOST_OWNED) for keys, index in indexes]
    everyone = [
        (0.0, "running", keys, text(id))
        for (keys, _), ids in zip(indexes, require_all(replies), strict=True)
        for id in ids
    ]
    start = offsets.get("running", 0)
    return sorted(everyone, key=lambda entry: entry[3], reverse=True)[start : start + step]


def _matching_views(
    entries: Sequence[Entry], wanted: RunFilter, most: int, statuses: Mapping[str, Status] | None = None
) -> Steps:
    """Return the views of the first runs that match, by id.

    Args:
        entries: The runs, in order.
        wanted: The filter.
        most: The largest number of views.
        statuses: The status of the index of each run, if the filter has none. It is shown for a damaged run.
    """
    if wanted.narrow:
        replies = yield [read(keys.at, "HMGET", keys.run(id), *wanted.fields) for _, _, keys, id in entries]
        fields = require_all([None if isinstance(reply, BadCall) else reply for reply in replies])
        entries = [
            entry
            for entry, values in zip(entries, fields, strict=True)
            if values is not None and wanted.takes_fields(values)
        ]
    found: dict[str, RunView] = {}
    for start in range(0, len(entries), PAGE):
        if len(found) >= most:
            break
        views: list[RunView] = yield from _views(entries[start : start + PAGE], wanted.status, statuses or {})
        found |= {view.id: view for view in views if wanted.takes(view)}
    return dict(list(found.items())[:most])


def _views(entries: Sequence[Entry], status: Status | None, statuses: Mapping[str, Status]) -> Steps:
    """Return the views of those entries whose runs still exist."""
    found: list[RunView] = []
    answers = yield from merge_plans([client_plans.view(keys, id) for _, _, keys, id in entries])
    for (_, _, _, id), answer in zip(entries, answers, strict=True):
        if isinstance(answer, NotFound) or answer is None:
            continue
        if isinstance(answer, CoordinatorError):
            raise answer
        try:
            found.append(run_view(id, answer))
        except Unreadable as error:
            found.append(unreadable_view(id, status or statuses[id], error))
    return found
