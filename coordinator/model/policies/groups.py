"""Groups of runs, and the limits of how many runs of a group may be ready or running at the same time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from coordinator.errors import BadOption
from coordinator.model.limits import GROUP_NAME, MOST_AT_ONCE

GroupBy = str | Callable[[Mapping[str, Any]], str]
NO_LIMIT = "-"  # the stored form of a limit of None


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """A limit of how many runs of a group may be ready or running at the same time.

    Attributes:
        kind: The kind of the runs.
        group: The group; None if the limit is for each group of the kind that has no limit of its own.
        at_once: The limit; None for no limit.
        source: `operator` if a client or a command set the limit, `handler` if workers published it.
    """

    kind: str
    group: str | None
    at_once: int | None
    source: Literal["operator", "handler"]


def check_group(group: object) -> str:
    """Return the name of a group if it is valid.

    Raises:
        BadOption: It is not text of 1 to 200 printable characters.
    """
    if type(group) is not str or not 1 <= len(group) <= GROUP_NAME or not group.isprintable():
        raise BadOption(f"group {group!r:.80} is not text of 1 to {GROUP_NAME} printable characters")
    return group


def check_at_once(at_once: object) -> int:
    """Return a limit if it is valid.

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


def describe_limits(at_once: Mapping[str, int | None]) -> str:
    """Return the limits of handlers by kind in the form in which join.lua takes them."""
    return " ".join(f"{kind}={NO_LIMIT if limit is None else limit}" for kind, limit in sorted(at_once.items()))
