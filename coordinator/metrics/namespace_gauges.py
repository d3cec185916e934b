"""Read the gauges of a namespace from the server: queues, statuses, limits, schedules, workers.

The server answers each request in constant or logarithmic time, however many runs there are.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from coordinator.client.reading.listing import waiting_routes
from coordinator.client.reading.oldest import oldest_times
from coordinator.client.reading.overview import read_overview
from coordinator.metrics import catalog
from coordinator.metrics.catalog import MOST_LIMITED, MOST_QUEUES, MOST_RATES, OTHER
from coordinator.metrics.samples import Samples
from coordinator.model.limits import FAR_FUTURE, PRIORITY_STEP
from coordinator.model.names import parse_route
from coordinator.model.policies.rates import RateLimit
from coordinator.store.keys import Keys, Namespace
from coordinator.store.replies import require_all
from coordinator.store.script import Request, read
from coordinator.views.namespace_view import GroupView, Overview, WorkerView

LATE_MS = 5000  # a schedule whose fire time passed this long ago is late
ACTIVE_SECONDS = 60.0  # a coordinator that was seen within this time counts as active


def read_gauges(space: Namespace) -> Generator[list[Request], Any, Samples]:
    """Read all gauges of a namespace, and return them."""
    samples = Samples()
    overview: Overview = yield from read_overview(space)
    _add_overview(samples, overview)
    _add_groups(samples, overview.groups)
    _add_rates(samples, overview.rates)
    now = require_all((yield [read(space.keys(0).at, "TIME")]))[0]
    clock = int(now[0]) * 1000 + int(now[1]) // 1000
    yield from _add_queues(samples, space, clock)
    yield from _add_lateness(samples, space, clock)
    samples.add(catalog.UP, 1.0)
    return samples


def _add_overview(samples: Samples, overview: Overview) -> None:
    for status, count in overview.counts.items():
        samples.add(catalog.IN_STATUS, count, str(status))
    samples.add(catalog.ASIDE, overview.aside)
    samples.add(catalog.COORDINATORS, sum(one.age < ACTIVE_SECONDS for one in overview.coordinators))
    for state in ("live", "draining", "expired", "condemned"):
        samples.add(catalog.WORKERS, sum(_state(one) == state for one in overview.workers), state)


def _add_groups(samples: Samples, groups: Sequence[GroupView]) -> None:
    """Add the numbers of waiting and admitted runs of groups, summed by kind. A group is not a label, because there may be many."""
    shown = _kinds_shown(groups)
    for group in groups:
        kind = group.kind if group.kind in shown else OTHER
        samples.add(catalog.GROUP_WAITING, group.held, kind)
        samples.add(catalog.GROUP_ADMITTED, group.taken, kind)
        samples.add(catalog.GROUPS_FULL, not group.waits_for_rate, kind)
        samples.add(catalog.GROUPS_PACED, group.waits_for_rate, kind)
        samples.highest(catalog.GROUP_OLDEST, group.waited, kind)


def _kinds_shown(groups: Sequence[GroupView]) -> set[str]:
    """Return the kinds with the most runs that wait for their group, at most MOST_LIMITED kinds."""
    waiting: dict[str, int] = {}
    for group in groups:
        waiting[group.kind] = waiting.get(group.kind, 0) + group.held
    return set(sorted(waiting, key=lambda kind: (-waiting[kind], kind))[:MOST_LIMITED])


def _add_rates(samples: Samples, rates: Sequence[RateLimit]) -> None:
    """Add the numbers and the waits of external calls by the name of their limit. Names beyond MOST_RATES count as OTHER."""
    for index, rate in enumerate(sorted(rates, key=lambda rate: (-rate.waiting, -rate.held, rate.name))):
        name = rate.name if index < MOST_RATES else OTHER
        samples.add(catalog.RATE_CALLS, rate.held, name)
        samples.add(catalog.RATE_WAITING, rate.waiting, name)
        samples.highest(catalog.RATE_WAIT, rate.wait, name)


def _state(worker: WorkerView) -> str:
    if worker.condemned:
        return "condemned"
    if worker.expired:
        return "expired"
    return "draining" if worker.draining else "live"


# ---- queues


def _add_queues(samples: Samples, space: Namespace, clock: int) -> Generator[list[Request], Any, None]:
    """Add the depth of each queue and kind, and the age of its oldest run."""
    routes: list[tuple[Keys, str]] = yield from waiting_routes(space.everywhere())
    queues = [(keys, route, key) for keys, route in routes for key in (keys.ready(route), keys.suspect(route))]
    sizes = require_all((yield [read(keys.at, "ZCARD", key) for keys, _, key in queues]))
    times: list[int | None] = yield from oldest_times([(keys, key) for keys, _, key in queues])
    depths: dict[tuple[str, str], float] = {}
    ages: dict[tuple[str, str], float] = {}
    for (_, route, _), size, time in zip(queues, sizes, times, strict=True):
        name = parse_route(route)[:2]
        depths[name] = depths.get(name, 0.0) + int(size)
        ages[name] = max(ages.get(name, 0.0), 0.0 if time is None else (clock - time) / 1000)
    shown = sorted(depths, key=lambda one: (-depths[one], one))[:MOST_QUEUES]
    for name, depth in depths.items():
        labels = name if name in shown else (OTHER, OTHER)
        samples.add(catalog.DEPTH, depth, *labels)
        samples.highest(catalog.OLDEST, ages[name], *labels)


def _age(entry: Sequence[Any], clock: int) -> float:
    return max(0.0, (clock - int(float(entry[1])) % PRIORITY_STEP) / 1000) if entry else 0.0


# ---- times that have passed


def _add_lateness(samples: Samples, space: Namespace, clock: int) -> Generator[list[Request], Any, None]:
    """Add how late the first delayed run is, and the numbers of schedules and of late schedules."""
    parts = space.everywhere()
    requests: list[Request] = []
    for keys in parts:
        requests += [
            read(keys.at, "ZRANGE", keys.delayed(), 0, 0, "WITHSCORES"),
            read(
                keys.at, "ZCOUNT", keys.schedules(), "-inf", f"({FAR_FUTURE}"
            ),  # the stored time of a paused schedule is in the far future
            read(keys.at, "ZCOUNT", keys.schedules(), "-inf", clock - LATE_MS),
        ]
    replies = require_all((yield requests))
    overdue = [max(0.0, (clock - float(first[1])) / 1000) for first in replies[::3] if first]
    samples.add(catalog.OVERDUE, max(overdue, default=0.0))
    samples.add(catalog.SCHEDULES, sum(int(count) for count in replies[1::3]))
    samples.add(catalog.SCHEDULES_LATE, sum(int(count) for count in replies[2::3]))
