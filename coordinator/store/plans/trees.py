"""Cancelling a run with everything below it, as plans. A run's children are named by a set in each partition, since a child's
partition is its own.

Each run is cancelled first, then felled (no more children are taken over), then its children are listed: so a child that is
enqueued meanwhile is found or refused. Whoever dies in the middle calls again; nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.model.run import Counters, Status, partition_of
from coordinator.store.keys import Namespace
from coordinator.store.replies import text
from coordinator.store.script import Request, read
from coordinator.store.scripts import BLOCK_CHILDREN, CANCEL

FELLED_MS = 86_400_000  # a handler that ignores its cancel may go on after the grace; a day later nobody does
PAGE = 200

Steps = Generator[list[Request], Any, Any]


@dataclass(frozen=True, slots=True)
class Felled:
    """A run of a tree in one of its lives, as it was when it was cancelled; `status` is None where it was gone."""

    id: str
    life: int
    status: Status | None = None


def cancel_below(
    space: Namespace, root: Felled, *, operation: str, grace: float
) -> Generator[list[Request], Any, dict[str, Status]]:
    """Everything below a run that was cancelled just now: each with what it is now."""
    found: dict[str, Status] = {}
    seen, left = {root.id}, [root]
    while left:
        batch, left = left[:PAGE], left[PAGE:]
        yield from fell(space, [one for one in batch if one.status is Status.RUNNING])
        open_sets = [(keys, one.id, 0) for one in batch for keys in space.everywhere()]
        while open_sets:  # page by page: a run may have any number of children
            scans = [read(keys.at, "SSCAN", keys.children(id), at, "COUNT", PAGE) for keys, id, at in open_sets]
            pages = _all((yield [*scans]))
            fresh = list(
                dict.fromkeys(text(member) for _, members in pages for member in members if text(member) not in seen)
            )
            seen.update(fresh)
            became = yield from _cancelled(space, fresh, operation, grace)
            found |= {child.id: child.status for child in became if child.status is not None}
            # those that run first: they may be enqueueing; and of one that is gone, what is below it
            running = [child for child in became if child.status is Status.RUNNING]
            left = running + left + [child for child in became if child.status is not Status.RUNNING]
            cursors = [int(cursor) for cursor, _ in pages]
            open_sets = [(keys, id, at) for (keys, id, _), at in zip(open_sets, cursors, strict=True) if at]
    return found


def fell(space: Namespace, runs: Sequence[Felled]) -> Steps:
    """Nothing more is taken over below these runs."""
    yield from _fell(space, runs, again=False)


def revived(space: Namespace, run: Felled) -> Steps:
    """It is again, below a run whose life is over and that is about to begin another."""
    yield from _fell(space, [run], again=True)


def _fell(space: Namespace, runs: Sequence[Felled], *, again: bool) -> Steps:
    calls = [
        BLOCK_CHILDREN.call(keys.at, id=run.id, life=run.life, again=int(again), ttl=FELLED_MS)
        for run in runs
        for keys in space.everywhere()
    ]
    _all((yield [*calls]))


def _cancelled(space: Namespace, ids: Sequence[str], operation: str, grace: float) -> Steps:
    """Each id as it is now; without a status where there is no such run any more, or none that can be read."""
    places = [space.keys(partition_of(id, space.partitions)) for id in ids]
    counters = _all(
        (yield [read(keys.at, "HGET", keys.run(id), "counters") for keys, id in zip(places, ids, strict=True)])
    )
    lives = [_life(found) for found in counters]
    calls = [
        CANCEL.call(keys.at, now="", id=id, operation=operation, life=life, grace=round(grace * 1000))
        for keys, id, life in zip(places, ids, lives, strict=True)
        if life
    ]
    replies = iter(_all((yield [*calls])))
    return [Felled(id, life, _status(next(replies)) if life else None) for id, life in zip(ids, lives, strict=True)]


def _life(counters: Any) -> int:
    """0 where there is none."""
    try:
        return Counters.parse(text(counters)).life if counters else 0
    except (ValueError, TypeError):
        return 0


def _status(reply: Sequence[Any]) -> Status | None:
    match [text(part) for part in reply]:
        case ["cancelled"]:
            return Status.CANCELLED
        case ["cancelling"]:
            return Status.RUNNING
        case ["ended", status]:
            return Status(status)
        case _:  # it is gone, or was revived between two looks
            return None


def _all(replies: Sequence[Any]) -> Sequence[Any]:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
