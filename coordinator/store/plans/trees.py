"""Plans that cancel a run together with every run below it.

A run's children may be in any partition, so each partition has a set with the ids of the children that it stores. The plan first
cancels a run. Then it makes every partition refuse new children of the run, and only then it lists the children. So a child that is
enqueued meanwhile is either listed or refused. A caller that fails in the middle may call again: no step has an effect twice.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.errors import CoordinatorError
from coordinator.model.limits import DAY_MS
from coordinator.model.run import Counters, Status
from coordinator.model.run_id import partition_of
from coordinator.store.keys import Namespace
from coordinator.store.plans import clients
from coordinator.store.plans.merge import Plan, merge_plans
from coordinator.store.replies import require_all, text
from coordinator.store.script import Request, read
from coordinator.store.scripts import BLOCK_CHILDREN

# How long new children of a cancelled run are refused. A handler that ignores its cancel may still enqueue after the grace. The
# mark is kept as long as the run, within these bounds.
LEAST_BLOCK_MS = 300_000
LONGEST_BLOCK_MS = DAY_MS
PAGE = 200


@dataclass(frozen=True, slots=True)
class CancelledNode:
    """A run of a tree, after its cancel.

    Attributes:
        id: The id of the run.
        life: The life of the run that was cancelled.
        status: The status of the run after the cancel; None if the run did not exist any more.
        started: True if a worker has ever claimed the run: its handler may still be executing, and may enqueue children.
        retention: The retention of the run in ms; None if it was enqueued without one.
    """

    id: str
    life: int
    status: Status | None = None
    started: bool = False
    retention: int | None = None


def cancel_below(
    space: Namespace, root: CancelledNode, *, operation: str, grace: float
) -> Generator[list[Request], Any, dict[str, Status]]:
    """Cancel every run below a cancelled run. Return the new status of each run, by id.

    Args:
        space: The namespace.
        root: The run, which was cancelled just before.
        operation: A random mark of this call, by which the server recognises a repeated call.
        grace: Seconds after which a run that has not stopped is ended by force.
    """
    found: dict[str, Status] = {}
    seen, left = {root.id}, [root]
    while left:
        batch, left = left[:PAGE], left[PAGE:]
        yield from block_children(space, [node for node in batch if node.started or node.status is Status.RUNNING])
        open_sets = [(keys, node.id, 0) for node in batch for keys in space.everywhere()]
        while open_sets:  # page by page: a run may have any number of children
            scans = [read(keys.at, "SSCAN", keys.children(id), at, "COUNT", PAGE) for keys, id, at in open_sets]
            pages = require_all((yield [*scans]))
            fresh = list(
                dict.fromkeys(text(member) for _, members in pages for member in members if text(member) not in seen)
            )
            seen.update(fresh)
            children = yield from _cancel_each(space, fresh, operation, grace)
            found |= {child.id: child.status for child in children if child.status is not None}
            # Running children come first, since they may be enqueueing. A child that is gone may still have children.
            running = [child for child in children if child.status is Status.RUNNING]
            left = running + left + [child for child in children if child.status is not Status.RUNNING]
            cursors = [int(cursor) for cursor, _ in pages]
            open_sets = [(keys, id, at) for (keys, id, _), at in zip(open_sets, cursors, strict=True) if at]
    return found


def list_below(space: Namespace, roots: Sequence[str]) -> Generator[list[Request], Any, list[str]]:
    """Return the ids of all runs below the given runs, without the given runs themselves. Nothing is written."""
    found: dict[str, None] = {}
    left = list(roots)
    while left:
        batch, left = left[:PAGE], left[PAGE:]
        open_sets = [(keys, id, 0) for id in batch for keys in space.everywhere()]
        while open_sets:
            scans = [read(keys.at, "SSCAN", keys.children(id), at, "COUNT", PAGE) for keys, id, at in open_sets]
            pages = require_all((yield [*scans]))
            fresh = dict.fromkeys(text(member) for _, members in pages for member in members)
            left += [id for id in fresh if id not in found]
            found |= fresh
            cursors = [int(cursor) for cursor, _ in pages]
            open_sets = [(keys, id, at) for (keys, id, _), at in zip(open_sets, cursors, strict=True) if at]
    return [id for id in found if id not in set(roots)]


def block_children(space: Namespace, runs: Sequence[CancelledNode]) -> Generator[list[Request], Any, None]:
    """Make every partition refuse new children of these runs."""
    yield from _block(space, runs, again=False)


def unblock_children(space: Namespace, run: CancelledNode) -> Generator[list[Request], Any, None]:
    """Make every partition accept new children of a run again. Call this before the run is revived."""
    yield from _block(space, [run], again=True)


def _block(space: Namespace, runs: Sequence[CancelledNode], *, again: bool) -> Generator[list[Request], Any, None]:
    calls = [
        BLOCK_CHILDREN.call(keys.at, id=run.id, life=run.life, again=int(again), ttl=_block_ms(run))
        for run in runs
        for keys in space.everywhere()
    ]
    require_all((yield [*calls]))


def _block_ms(run: CancelledNode) -> int:
    if run.retention is None:
        return LONGEST_BLOCK_MS
    return min(max(run.retention, LEAST_BLOCK_MS), LONGEST_BLOCK_MS)


def read_retention(found: Any) -> int | None:
    """Return the retention in ms that a run's field `retention` contains; None if it is empty or can't be read."""
    return int(found) if found and text(found).isdecimal() else None


def _cancel_each(
    space: Namespace, ids: Sequence[str], operation: str, grace: float
) -> Generator[list[Request], Any, list[CancelledNode]]:
    """Cancel runs. Return the state of each run after its cancel; its status is None if the run is gone or can't be read."""
    places = [space.keys(partition_of(id, space.partitions)) for id in ids]
    fields = require_all(
        (
            yield [
                read(keys.at, "HMGET", keys.run(id), "counters", "retention")
                for keys, id in zip(places, ids, strict=True)
            ]
        )
    )
    known = [_counters(counters) for counters, _ in fields]
    lives = [0 if one is None else one.life for one in known]
    cancels: list[Plan[list[str]]] = [
        clients.cancel(keys, id, operation=operation, grace=grace, life=life)
        for keys, id, life in zip(places, ids, lives, strict=True)
        if life
    ]
    answers = iter((yield from merge_plans(cancels)))
    return [
        CancelledNode(
            id,
            life,
            _status(next(answers)) if life else None,
            one is not None and one.attempt > 0,
            read_retention(retention),
        )
        for id, life, one, (_, retention) in zip(ids, lives, known, fields, strict=True)
    ]


def _status(answer: Sequence[str] | CoordinatorError) -> Status | None:
    """Return the status that follows from an answer of `cancel`; None if the run is gone, or was revived meanwhile."""
    if isinstance(answer, CoordinatorError):
        raise answer
    return clients.status_after_cancel(answer)


def _counters(found: Any) -> Counters | None:
    """Return the counters of a run, or None if the run is gone or they can't be read."""
    try:
        return Counters.parse(text(found)) if found else None
    except (ValueError, TypeError):
        return None
