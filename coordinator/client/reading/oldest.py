"""Plans that find the oldest run of each queue, and the longest wait in the line of each group, with a few short commands."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from coordinator.model.limits import PRIORITY_STEP
from coordinator.store.keys import Keys
from coordinator.store.replies import require_all, text
from coordinator.store.script import Request, read

MOST_AFTER_WOKEN = 20  # runs of a line that are examined after a woken one


def oldest_times(queues: Sequence[tuple[Keys, str]]) -> Generator[list[Request], Any, list[int | None]]:
    """Return when the oldest run of each queue could first be claimed, in milliseconds; None for an empty queue.

    A queue is ordered by priority first. So the oldest run is the first entry of the highest or of the lowest priority: runs of a
    lower priority wait longer.

    Args:
        queues: The keys of a partition, and the name of a sorted set of queued runs.
    """
    found: list[list[_Entry]] = yield from _first_entries(queues)
    return [min((entry.time for entry in entries), default=None) for entries in found]


def waiting_since(lines: Sequence[tuple[Keys, str]]) -> Generator[list[Request], Any, list[int | None]]:
    """Return since when the run that waits longest in the line of each group waits, in milliseconds; None for an empty line.

    A run that was woken keeps its score, so it may enter its line before runs that wait longer. If the first run of a line has
    entered in this way, the runs after it are examined too, at most 20.

    Args:
        lines: The keys of a partition, and the label of a group.
    """
    places = [(keys, keys.line(group)) for keys, group in lines]
    firsts: list[list[_Entry]] = yield from _first_entries(places)
    found: list[list[int]] = yield from _entered(lines, firsts)
    later = [
        (index, entry.score // PRIORITY_STEP * PRIORITY_STEP)
        for index, (entries, times) in enumerate(zip(firsts, found, strict=True))
        for entry, time in zip(entries, times, strict=True)
        if time > entry.time
    ]
    if later:
        replies = require_all((yield [_read_from(*places[index], lowest, MOST_AFTER_WOKEN) for index, lowest in later]))
        more: list[list[int]] = yield from _entered([lines[index] for index, _ in later], [*map(_entries, replies)])
        for (index, _), times in zip(later, more, strict=True):
            found[index] += times
    return [min(times, default=None) for times in found]


class _Entry(NamedTuple):
    """An entry of a queue or a line: the run, and its score."""

    run: str
    score: int

    @property
    def time(self) -> int:
        """The time in the score, without the priority."""
        return self.score % PRIORITY_STEP


def _first_entries(queues: Sequence[tuple[Keys, str]]) -> Generator[list[Request], Any, list[list[_Entry]]]:
    """Return the first entries of the highest and of the lowest priority of each queue."""
    ends = require_all(
        (yield [read(keys.at, "ZRANGE", key, place, place, "WITHSCORES") for keys, key in queues for place in (0, -1)])
    )
    found = [_entries(first) for first in ends[::2]]
    mixed = []
    for index, last in enumerate(map(_entries, ends[1::2])):
        lowest = [entry.score // PRIORITY_STEP for entry in last]
        if found[index] and lowest and lowest[0] != found[index][0].score // PRIORITY_STEP:
            mixed.append((index, lowest[0] * PRIORITY_STEP))
    if mixed:
        replies = require_all((yield [_read_from(*queues[index], lowest, 1) for index, lowest in mixed]))
        for (index, _), entry in zip(mixed, replies, strict=True):
            found[index] += _entries(entry)
    return found


def _entered(
    lines: Sequence[tuple[Keys, str]], entries: Sequence[Sequence[_Entry]]
) -> Generator[list[Request], Any, list[list[int]]]:
    """Return when the runs entered their lines. `explain_line` in view.lua does the same."""
    requests: list[Request] = [
        read(keys.at, "HGET", keys.run(entry.run), "held")
        for (keys, _), of_line in zip(lines, entries, strict=True)
        for entry in of_line
    ]
    replies = iter((yield requests) if requests else ())
    # The time of a run whose key has another type is the time of its score.
    return [[max(entry.time, _number(next(replies))) for entry in of_line] for of_line in entries]


def _number(stored: Any) -> int:
    return int(stored) if isinstance(stored, bytes) and stored.isdigit() else 0


def _read_from(keys: Keys, key: str, lowest: int, most: int) -> Request:
    """Return the request for the first entries from a score on."""
    return read(keys.at, "ZRANGE", key, lowest, "+inf", "BYSCORE", "LIMIT", 0, most, "WITHSCORES")


def _entries(flat: Sequence[Any]) -> list[_Entry]:
    return [_Entry(text(flat[i]), int(float(flat[i + 1]))) for i in range(0, len(flat), 2)]
