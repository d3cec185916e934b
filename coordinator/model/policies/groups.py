"""Groups of runs, and the limits of how many runs of a group may be ready or running at the same time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, NamedTuple

from coordinator.errors import BadOption
from coordinator.model.limits import GROUP_NAME, MOST_AT_ONCE
from coordinator.model.policies.rates import decode_rate, encode_rate

GroupBy = str | Callable[[Mapping[str, Any]], str]
NO_LIMIT = "-"  # the stored form of a limit of None
KEEP = "="  # the argument of limit.lua that keeps a limit


class Unchanged(Enum):
    """The type of UNCHANGED, which stands for a limit that a call does not change."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return self.name


UNCHANGED: Final = Unchanged.UNCHANGED


class HandlerLimit(NamedTuple):
    """The limits that a handler publishes for each group of its kind.

    Attributes:
        at_once: How many runs of a group may be ready or running at the same time; None for no limit.
        rate: How many runs of a group may start per unit of time, for example `10/min`; None for no limit.
        burst: How many runs of a group may start at one moment; None for the default of the rate.
    """

    at_once: int | None = None
    rate: str | None = None
    burst: int | None = None


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """A limit of how many runs of a group may be ready or running at the same time, and of how many may start per unit of time.

    Attributes:
        kind: The kind of the runs.
        group: The group; None if the limit is for each group of the kind that has no limit of its own.
        at_once: The limit; None for no limit, and if `known` is False.
        source: `operator` if a client or a command set one of the limits, `handler` if workers published them.
        rate: How many runs of a group may start per unit of time, for example `10/min`; None for no limit.
        burst: The number of runs that may start at one moment, after a time without starts; None without a rate.
        known: False if only a rate is set, and no worker has published whether the kind has a limit of places. Then no run is
            admitted.
    """

    kind: str
    group: str | None
    at_once: int | None
    source: Literal["operator", "handler"]
    rate: str | None = None
    burst: int | None = None
    known: bool = True


def check_group(group: object) -> str:
    """Return the name of a group if it is valid.

    Raises:
        BadOption: It is not text of 1 to 200 printable characters.
    """
    if type(group) is not str or not 1 <= len(group) <= GROUP_NAME or not group.isprintable():
        raise BadOption(f"group {group!r:.80} is not text of 1 to {GROUP_NAME} printable characters")
    return group


def check_at_once(at_once: object) -> int:
    """Return the number of places of a group if it is valid.

    Raises:
        BadOption: It is not a whole number from 0 to 999,999,999.
    """
    if type(at_once) is not int or not 0 <= at_once <= MOST_AT_ONCE:
        raise BadOption(f"at_once {at_once!r:.80} is not a whole number of 0 or more")
    return at_once


def compute_group(group_by: GroupBy, kind: str, inputs: Mapping[str, Any]) -> str:
    """Return the group of a run from its inputs.

    Args:
        group_by: The name of an input whose value is the group, or a function of all inputs.
        kind: The kind of the run, for messages.
        inputs: The inputs.

    Raises:
        BadOption: There is no such input, or its value is not a valid name of a group.
    """
    if not isinstance(group_by, str):
        return check_group(group_by(inputs))
    if group_by not in inputs:
        raise BadOption(f"kind {kind!r} is grouped by its input {group_by!r}, which this run does not have")
    value = inputs[group_by]
    return check_group(str(value) if type(value) is int else value)


def encode_starts(rate: str | None, burst: int | None) -> str:
    """Return the stored form of a rate of starts, as limit.lua takes it: "<number> <ms> <burst>", or "-" for none.

    Raises:
        BadOption: The rate or the burst is not valid.
    """
    if rate is None and burst is None:
        return NO_LIMIT
    return encode_rate(rate, burst, None if rate else 0).rpartition(" ")[0]


def decode_starts(stored: str) -> tuple[str | None, int | None]:
    """Return a rate of starts, such as `10/min`, and its burst, from the form that `encode_starts` returns.

    Both are None if the stored form is "-" or can't be read.
    """
    found = decode_rate("", f"{stored} {NO_LIMIT}")
    return (found.rate, found.burst) if found is not None else (None, None)


def describe_limits(limits: Mapping[str, HandlerLimit]) -> str:
    """Return the limits of handlers, given by kind, as the text that join.lua takes."""
    parts = []
    for kind, limit in sorted(limits.items()):
        starts = encode_starts(limit.rate, limit.burst)
        places = NO_LIMIT if limit.at_once is None else str(limit.at_once)
        parts.append(f"{kind}={places}" + ("" if starts == NO_LIMIT else "," + starts.replace(" ", "/")))
    return " ".join(parts)


def has_limit(handler: object) -> bool:
    """Return True if a handler declares a limit for each group of its kind: `at_once` or `rate`."""
    return getattr(handler, "at_once", None) is not None or getattr(handler, "rate", None) is not None


def describe_ungrouped(kind: str) -> str:
    """Return why a run without a group is refused, and what to do."""
    return (
        f"kind {kind!r} has a limit for each group, so its runs need a group: "
        "give group=… (--group of the command); group_by=… of a handler counts only if the handler itself is enqueued, "
        "and not the name of its kind"
    )


def describe_ungrouped_schedule(schedule: str, kind: str) -> str:
    """Return why a schedule of a kind with a limit is refused, and what to do."""
    return (
        f"schedule {schedule!r} was not set: kind {kind!r} has a limit for each group, and the runs of schedules have no group; "
        "schedule a kind without a limit whose handler enqueues the run: run.enqueue(…, group=…)"
    )
