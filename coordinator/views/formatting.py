"""Format numbers, times, sizes and users' values for a terminal. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from coordinator.printable import clean as clean
from coordinator.printable import json_text
from coordinator.views.json_data import to_json_data


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 run`, `1,200 runs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_duration(seconds: float) -> str:
    """Return a duration with about two digits: `12 ms`, `9.9 s`, `5 min`."""
    seconds = max(0.0, seconds)
    if seconds < 0.095:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def format_size(count: int) -> str:
    """Return a number of bytes as text in MiB or GiB; empty for 0, which means unknown."""
    if not count:
        return ""
    mebibytes = count / 2**20
    return f"{mebibytes:.0f} MiB" if mebibytes < 1000 else f"{mebibytes / 1024:.1f} GiB"


def format_age(moment: datetime, now: float) -> str:
    """Return the time that has passed between a moment and now, as text: `5 min`."""
    return format_duration(now - moment.timestamp())


def format_time_and_age(moment: datetime, now: float) -> str:
    """Return a local time and its distance from now: `2026-01-31 12:00:00 (5 min ago)`."""
    local = moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    ahead = moment.timestamp() - now
    return f"{local} (in {format_duration(ahead)})" if ahead > 0 else f"{local} ({format_duration(-ahead)} ago)"


def format_value(value: Any) -> str:
    """Return a result or an input as text for a terminal: a str without control characters, everything else as JSON."""
    return clean(value) if isinstance(value, str) else json_text(to_json_data(value), indent=2)


def most_similar(name: str, known: Iterable[str]) -> str:
    """Return the most similar of the known names, for the question "did you mean …?"; an empty text if none is similar."""
    return next(iter(get_close_matches(name, sorted(known), n=1)), "")
