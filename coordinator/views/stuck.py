"""Which runs wait for somebody who is not there, and for whom. Pure, no I/O.

A run that waits for its turn is not stuck, nor one that is delayed or takes long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coordinator.model.run import RunView, Status, parse_route, route
from coordinator.views.build import Overview
from coordinator.views.terminal import SEEN_LATELY, span

LATE = 5.0  # seconds after which what is due should have been moved


def lines(overview: Overview) -> list[tuple[str, str]]:
    """Queue and kind of the lines in which runs wait and from which nobody takes any."""
    served = _served(overview)
    stuck = [parse_route(line)[:2] for line in overview.queues if line not in served or _paused(line, overview)]
    return sorted(set(stuck))


def of(views: Iterable[RunView], overview: Overview, now: float) -> list[RunView]:
    """Those that are stuck; their `why` says for whom they wait."""
    served, leases = _served(overview), {worker.id: worker for worker in overview.workers}
    helper = (
        "" if any(one.age < SEEN_LATELY for one in overview.coordinators) else ": no coordinator is running to do it"
    )
    found = []
    for view in views:
        why = ""
        if view.status is Status.QUEUED:
            line = route(view.queue, view.kind, view.schema)
            why = view.why if line not in served or _paused(line, overview) else ""
        elif view.status is Status.DELAYED and view.due is not None:
            late = now - view.due.timestamp()
            why = f"it was due {span(late)} ago, and was not moved{helper}" if late > LATE else ""
        elif view.status is Status.RUNNING:
            worker = leases.get(view.owner or "")
            if worker is None:
                why = f"its worker {view.owner} has no lease: 'coordinator doctor' says more"
            elif worker.expired or worker.condemned:
                heard = span(worker.lease_age)
                why = f"its worker was last heard of {heard} ago, and the run was not taken back yet{helper}"
        if why:
            found.append(replace(view, why=why, due=None, note=None))
    return found


def _served(overview: Overview) -> set[str]:
    return {line for worker in overview.workers if not (worker.expired or worker.condemned) for line in worker.routes}


def _paused(line: str, overview: Overview) -> bool:
    queue, kind, _ = parse_route(line)
    return f"queue:{queue}" in overview.paused or f"kind:{kind}" in overview.paused
