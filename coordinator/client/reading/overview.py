"""Plans that read the state of a whole namespace: its workers, its counts, and the position of a run in its queue."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from coordinator.client.reading.listing import MOST, waiting_groups, waiting_routes
from coordinator.client.reading.oldest import waiting_since
from coordinator.model.features import split_announced
from coordinator.model.names import parse_route
from coordinator.model.policies.rates import RateLimit
from coordinator.model.run import ENDED, Status
from coordinator.store.keys import Keys, Namespace
from coordinator.store.plans.groups import find_limit, find_rate
from coordinator.store.plans.rates import read_rates
from coordinator.store.replies import pairs, require_all, text
from coordinator.store.script import Request, read
from coordinator.views.namespace_view import CoordinatorView, GroupView, Overview, WorkerView

_FIELDS = ("host", "pid", "fleet", "code", "slots", "lease", "condemned", "drain", "routes", "memory", "stuck")


def workers(space: Namespace) -> Generator[list[Request], Any, list[WorkerView]]:
    """Return the registered workers. A worker that is registered in several partitions is returned once."""
    parts = space.everywhere()
    listed = yield [read(keys.at, "ZRANGE", keys.workers(), 0, MOST, "WITHSCORES") for keys in parts]
    entries = [
        (keys, text(flat[i]), float(flat[i + 1]))
        for keys, flat in zip(parts, require_all(listed), strict=True)
        for i in range(0, len(flat), 2)
    ]
    requests: list[Request] = [read(keys.at, "HMGET", keys.worker(worker), *_FIELDS) for keys, worker, _ in entries]
    requests += [read(keys.at, "SCARD", keys.owned(worker)) for keys, worker, _ in entries]
    *replies, now = require_all((yield [*requests, read(parts[0].at, "TIME")]))
    clock = int(now[0]) + int(now[1]) / 1e6
    shown: dict[str, WorkerView] = {}
    for (_, worker, deadline), known, running in zip(
        entries, replies[: len(entries)], replies[len(entries) :], strict=True
    ):
        one = _worker(worker, deadline / 1000, known, int(running), clock)
        shown[worker] = _merge(shown[worker], one) if worker in shown else one
    return sorted(shown.values(), key=lambda one: (one.fleet, one.host, one.pid, one.id))


def _worker(id: str, deadline: float, known: Sequence[bytes | None], running: int, clock: float) -> WorkerView:
    host, pid, fleet, code, slots, lease, condemned, drain, routes, memory, stuck = (
        text(value or b"") for value in known
    )
    lease_seconds = int(lease or 0) / 1000
    return WorkerView(
        id=id,
        host=host,
        pid=int(pid or 0),
        fleet=fleet,
        code=code,
        slots=int(slots or 0),
        running=running,
        lease=lease_seconds,
        lease_age=max(0.0, clock - (deadline - lease_seconds)),
        condemned=bool(condemned),
        draining=bool(drain),
        routes=tuple(routes.split()),
        memory=int(memory or 0),
        stuck=tuple(stuck.split()),
    )


def _merge(a: WorkerView, b: WorkerView) -> WorkerView:
    return replace(
        a,
        running=a.running + b.running,
        lease_age=max(a.lease_age, b.lease_age),
        condemned=a.condemned or b.condemned,
        draining=a.draining or b.draining,
        stuck=(*a.stuck, *b.stuck),
    )


def read_overview(space: Namespace) -> Generator[list[Request], Any, Overview]:
    """Return the counts for each status, the ready queues, the workers and the coordinators."""
    parts = space.everywhere()
    routes: list[tuple[Keys, str]] = yield from waiting_routes(parts)
    known: list[WorkerView] = yield from workers(space)
    waiting = require_all(
        (yield [read(k.at, "ZCARD", key) for k, route in routes for key in (k.ready(route), k.suspect(route))])
    )
    queues: dict[str, int] = {}
    for index, (_, route) in enumerate(routes):
        queues[route] = queues.get(route, 0) + int(waiting[2 * index]) + int(waiting[2 * index + 1])
    now = require_all((yield [read(parts[0].at, "TIME")]))[0]
    clock = int(now[0]) * 1000
    groups: tuple[GroupView, ...] = yield from read_groups(parts, clock + int(now[1]) // 1000)
    rates: list[RateLimit] = yield from read_rates(parts)
    ended = sorted(ENDED)
    width = 5 + len(ended)
    requests: list[Request] = []
    for keys in parts:
        requests += [
            read(keys.at, "ZCARD", keys.delayed()),
            read(keys.at, "ZCARD", keys.aside()),
            read(keys.at, "SRANDMEMBER", keys.paused(), MOST),
            read(keys.at, "ZRANGE", keys.coordinators(), 0, MOST, "WITHSCORES"),
            read(keys.at, "ZCARD", keys.waiting()),
            *(read(keys.at, "ZCOUNT", keys.ended(status), f"({clock}", "+inf") for status in ended),
        ]
    replies = require_all((yield requests))
    rows = [replies[i : i + width] for i in range(0, len(replies), width)]
    counts = dict.fromkeys(Status, 0)
    counts[Status.QUEUED] = sum(queues.values()) + sum(group.held for group in groups)
    counts[Status.RUNNING] = sum(worker.running for worker in known)
    counts[Status.DELAYED] = sum(int(row[0]) for row in rows)
    counts[Status.WAITING] = sum(int(row[4]) for row in rows)
    for index, status in enumerate(ended):
        counts[status] = sum(int(row[5 + index]) for row in rows)
    return Overview(
        namespace=space.name,
        partitions=space.partitions,
        durability=space.durability,
        counts=counts,
        queues={route: count for route, count in sorted(queues.items()) if count},
        paused=tuple(sorted({text(one) for row in rows for one in row[2]})),
        aside=sum(int(row[1]) for row in rows),
        workers=tuple(known),
        coordinators=_coordinators([row[3] for row in rows], clock),
        groups=groups,
        rates=tuple(rates),
    )


def read_groups(parts: Sequence[Keys], clock: int) -> Generator[list[Request], Any, tuple[GroupView, ...]]:
    """Return the groups with runs in their lines at the server's time `clock` in ms, sorted by kind and name."""
    listed: list[tuple[Keys, str]] = yield from waiting_groups(parts, MOST)
    if not listed:
        return ()
    limits = require_all((yield [read(keys.at, "HGETALL", keys.limits()) for keys in parts]))
    stored = {keys.at: pairs(reply) for keys, reply in zip(parts, limits, strict=True)}
    counts = require_all(
        (
            yield [
                request
                for keys, group in listed
                for request in (
                    read(keys.at, "ZCARD", keys.line(group)),
                    read(keys.at, "SCARD", keys.admitted(group)),
                )
            ]
        )
    )
    since: list[int | None] = yield from waiting_since(listed)
    views = []
    for index, ((keys, label), entered) in enumerate(zip(listed, since, strict=True)):
        kind, _, group = label.partition(":")
        held, taken = counts[2 * index : 2 * index + 2]
        if held and entered is not None:
            limit, rate = find_limit(stored[keys.at], kind, group), find_rate(stored[keys.at], kind, group)[0]
            waited = max(0.0, (clock - entered) / 1000)
            views.append(GroupView(kind, group, int(held), int(taken), limit, rate, waited))
    return tuple(sorted(views, key=lambda view: (view.kind, view.group)))


def _coordinators(rows: Sequence[Sequence[Any]], clock: float) -> tuple[CoordinatorView, ...]:
    seen: dict[str, float] = {}
    for flat in rows:
        for i in range(0, len(flat), 2):
            id, _ = split_announced(text(flat[i]))
            seen[id] = max(seen.get(id, 0.0), float(flat[i + 1]))
    return tuple(CoordinatorView(id, max(0.0, (clock - at) / 1000)) for id, at in sorted(seen.items()))


def count_before(
    space: Namespace, keys: Keys, id: str, route: str, score: int
) -> Generator[list[Request], Any, int | None]:
    """Return the number of runs of the same queue and kind that workers take before a run; None if the run is not queued.

    Runs of other partitions and schemas are compared by their scores.

    Args:
        space: The namespace.
        keys: The keys of the run's partition.
        id: The run.
        route: The route of the run.
        score: The score of the run in its ready queue.
    """
    queue, kind, _ = parse_route(route)
    routes: list[tuple[Keys, str]] = yield from waiting_routes(space.everywhere())
    others = [
        (part, index)
        for part, other in routes
        if parse_route(other)[:2] == (queue, kind)
        for index in (part.ready(other), part.suspect(other))
        if (part.at, other) != (keys.at, route)
    ]
    own = (keys.ready(route), keys.suspect(route))
    requests: list[Request] = [read(keys.at, "ZRANK", index, id) for index in own]
    requests += [read(keys.at, "ZCOUNT", index, "-inf", f"({score}") for index in own]
    requests += [read(part.at, "ZCOUNT", index, "-inf", f"({score}") for part, index in others]
    ready_rank, suspect_rank, ready, suspects, *counts = require_all((yield requests))
    if ready_rank is None and suspect_rank is None:
        return None
    here = ready_rank + suspects if ready_rank is not None else suspect_rank + ready
    return int(here) + sum(int(count) for count in counts)
