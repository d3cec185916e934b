"""Plans that read looks at runs (snapshots of a few fields), the runs of each worker, and the ages of queues."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from coordinator.client.operations.open_namespace import OpenNamespace, reading
from coordinator.client.reading.listing import waiting_routes
from coordinator.client.reading.oldest import oldest_times
from coordinator.errors import BadName, CoordinatorError, Unconfirmed, Unreachable
from coordinator.feed.events import LOOK_FIELDS, RunLook, read_look, read_time
from coordinator.model.run_id import partition_of
from coordinator.store.keys import Keys, Namespace
from coordinator.store.plans.merge import Plan
from coordinator.store.replies import require_all, text
from coordinator.store.script import Request, read

LOOKS_AT_ONCE = 500
MOST_OWNED = 200  # the most runs of one worker that are read
MOST_WORKERS = 1000

Steps = Generator[list[Request], Any, Any]


def look_at(namespace: OpenNamespace, ids: Sequence[str]) -> Plan[tuple[dict[str, RunLook | None], float]]:
    """Return a look at each run (None if it is gone or can't be read), and the server's time."""
    space = yield from namespace.space()
    found: tuple[dict[str, RunLook | None], float] = yield from reading(_looks(space, ids))
    return found


def _looks(space: Namespace, ids: Sequence[str]) -> Steps:
    found: dict[str, RunLook | None] = {}
    now = 0.0
    for start in range(0, max(1, len(ids)), LOOKS_AT_ONCE):
        part = [(id, keys) for id in ids[start : start + LOOKS_AT_ONCE] if (keys := _keys(space, id)) is not None]
        requests: list[Request] = [read(keys.at, "HMGET", keys.run(id), *LOOK_FIELDS) for id, keys in part]
        *replies, clock = yield [*requests, read(space.keys(0).at, "TIME")]
        now = read_time(require_all([clock])[0])
        for (id, _), reply in zip(part, replies, strict=True):
            if isinstance(reply, (Unreachable, Unconfirmed)):
                raise reply
            found[id] = None if isinstance(reply, CoordinatorError) else read_look(id, reply)
    return found, now


def _keys(space: Namespace, id: str) -> Keys | None:
    try:
        return space.keys(partition_of(id, space.partitions))
    except BadName:
        return None


def owned_runs(namespace: OpenNamespace) -> Plan[dict[str, list[str]]]:
    """Return the ids of the runs that each worker owns, by the worker's id. At most 200 runs of a worker are read."""
    space = yield from namespace.space()
    found: dict[str, list[str]] = yield from reading(_owned(space))
    return found


def _owned(space: Namespace) -> Steps:
    parts = space.everywhere()
    listed = yield [read(keys.at, "ZRANGE", keys.workers(), 0, MOST_WORKERS - 1) for keys in parts]
    pairs = [(keys, text(id)) for keys, ids in zip(parts, require_all(listed), strict=True) for id in ids]
    replies = yield [read(keys.at, "SRANDMEMBER", keys.owned(worker), MOST_OWNED) for keys, worker in pairs]
    found: dict[str, list[str]] = {}
    for (_, worker), ids in zip(pairs, require_all(replies), strict=True):
        found.setdefault(worker, []).extend(sorted(map(text, ids)))
    return found


def oldest_queued(namespace: OpenNamespace) -> Plan[dict[str, float]]:
    """Return, for each route with queued runs, when its oldest run was queued, as a Unix time."""
    space = yield from namespace.space()
    found: dict[str, float] = yield from reading(_oldest(space))
    return found


def _oldest(space: Namespace) -> Steps:
    routes = yield from waiting_routes(space.everywhere())
    queues = [(route, keys, key) for keys, route in routes for key in (keys.ready(route), keys.suspect(route))]
    times: list[int | None] = yield from oldest_times([(keys, key) for _, keys, key in queues])
    found: dict[str, float] = {}
    for (route, _, _), time in zip(queues, times, strict=True):
        if time is not None:
            found[route] = min(found.get(route, time / 1000), time / 1000)
    return found
