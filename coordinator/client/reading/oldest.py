"""A plan that finds the oldest queued run of each queue, in a fixed number of short commands."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from coordinator.model.limits import PRIORITY_STEP
from coordinator.store.keys import Keys
from coordinator.store.replies import require_all
from coordinator.store.script import Request, read


def oldest_times(queues: Sequence[tuple[Keys, str]]) -> Generator[list[Request], Any, list[int | None]]:
    """Return when the oldest run of each queue could first be claimed, in milliseconds; None for an empty queue.

    A queue is ordered by priority first. So the oldest run is the first entry of the highest or of the lowest priority: runs of a
    lower priority wait longer.

    Args:
        queues: The keys of a partition, and the name of a sorted set of queued runs.
    """
    ends = require_all(
        (yield [read(keys.at, "ZRANGE", key, place, place, "WITHSCORES") for keys, key in queues for place in (0, -1)])
    )
    firsts, lasts = ([_score(entry) for entry in ends[place::2]] for place in (0, 1))
    mixed = [
        (index, last // PRIORITY_STEP * PRIORITY_STEP)
        for index, (first, last) in enumerate(zip(firsts, lasts, strict=True))
        if first is not None and last is not None and first // PRIORITY_STEP != last // PRIORITY_STEP
    ]
    requests: list[Request] = []
    for index, lowest in mixed:
        keys, key = queues[index]
        requests.append(read(keys.at, "ZRANGE", key, lowest, "+inf", "BYSCORE", "LIMIT", 0, 1, "WITHSCORES"))
    found = [None if first is None else first % PRIORITY_STEP for first in firsts]
    replies = require_all((yield requests)) if requests else []
    for (index, _), entry in zip(mixed, replies, strict=True):
        time, score = found[index], _score(entry)
        if time is not None and score is not None:
            found[index] = min(time, score % PRIORITY_STEP)
    return found


def _score(entry: Sequence[Any]) -> int | None:
    return int(float(entry[1])) if entry else None
