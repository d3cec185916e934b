"""Find late schedules and late runs of a namespace, with a few fast commands, and sort the groups in which runs wait."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.client.operations.open_namespace import OpenNamespace, reading
from coordinator.feed.events import read_time
from coordinator.store.keys import Namespace
from coordinator.store.plans.merge import Plan
from coordinator.store.replies import require_all
from coordinator.store.script import Request, read
from coordinator.views.formatting import format_count, format_duration
from coordinator.views.namespace_view import GroupView

LATE = 5.0  # seconds after its time from which a run or a schedule counts as late; a live coordinator acts earlier
LONG_LINE = 60.0  # seconds of waiting for a place in a group after which the wait is reported
MOST_GROUPS = 50  # groups with the longest lines that are reported

Steps = Generator[list[Request], Any, Any]


@dataclass(frozen=True, slots=True)
class Lateness:
    """The late schedules and runs of a namespace, and the groups with the longest lines.

    Attributes:
        schedules: The number of schedules whose fire time has passed.
        delayed: Seconds since the first delayed run should have been queued; 0 if none is late.
        waiting: Seconds since the first waiting run should have been woken; 0 if none is late.
        groups: The groups with the most runs in their lines, at most 50. The group whose first run waits longest comes first.
    """

    schedules: int = 0
    delayed: float = 0.0
    waiting: float = 0.0
    groups: tuple[GroupView, ...] = ()


def read_lateness(namespace: OpenNamespace, groups: Sequence[GroupView]) -> Plan[Lateness]:
    """Read the late schedules and runs of a namespace, and when the groups with the longest lines began to wait.

    Args:
        namespace: The namespace.
        groups: The groups that have runs in their lines.
    """
    space = yield from namespace.space()
    longest = sorted(groups, key=lambda group: group.held, reverse=True)[:MOST_GROUPS]
    found: Lateness = yield from reading(_lateness(space, longest))
    return found


def _lateness(space: Namespace, groups: Sequence[GroupView]) -> Steps:
    parts = space.everywhere()
    now = read_time(require_all((yield [read(parts[0].at, "TIME")]))[0])
    requests: list[Request] = []
    for keys in parts:
        requests += [
            read(keys.at, "ZCOUNT", keys.schedules(), "-inf", int((now - LATE) * 1000)),
            read(keys.at, "ZRANGE", keys.delayed(), 0, 0, "WITHSCORES"),
            read(keys.at, "ZRANGE", keys.waiting(), 0, 0, "WITHSCORES"),
        ]
    of_parts = require_all((yield requests))
    return Lateness(
        sum(int(count) for count in of_parts[::3]),
        _overdue(of_parts[1::3], now),
        _overdue(of_parts[2::3], now),
        tuple(sorted(groups, key=lambda group: group.waited, reverse=True)),
    )


def _overdue(replies: Sequence[Sequence[Any]], now: float) -> float:
    late = max((now - float(flat[1]) / 1000 for flat in replies if flat), default=0.0)
    return late if late > LATE else 0.0


def describe_lateness(late: Lateness) -> list[str]:
    """Return one sentence each for late schedules, late delayed runs, late waiting runs and long lines, if there are any."""
    found = []
    if late.schedules:
        verb = "is" if late.schedules == 1 else "are"
        found.append(f"{format_count(late.schedules, 'schedule')} {verb} late by more than {LATE:g} s")
    if late.delayed:
        found.append(f"the first delayed run was due {format_duration(late.delayed)} ago and has not been queued")
    if late.waiting:
        found.append(f"the first waiting run should have been woken {format_duration(late.waiting)} ago")
    # A group that admits no run has a sentence of its own.
    slow = [group for group in late.groups if group.at_once and group.waited > LONG_LINE]
    if slow:
        first, more = slow[0], len(slow) - 1
        others = f"; {format_count(more, 'more group')} with a wait above {LONG_LINE:g} s" if more else ""
        why = (
            f"waits for its rate ({first.rate})"
            if first.waits_for_rate
            else f"is full ({first.taken} of {first.at_once})"
        )
        found.append(
            f"group {first.group} of {first.kind} {why}: "
            f"{format_count(first.held, 'run')} in its line, the first for {format_duration(first.waited)}{others}"
        )
    return found
