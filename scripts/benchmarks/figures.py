"""Medians with their spread over rounds, and their format."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

Spread = dict[str, list[float]]


def collected(rows: Sequence[dict[str, float]]) -> Spread:
    """Return the median, minimum and maximum of each figure over the rounds that have it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: spread([row[name] for row in rows if name in row]) for name in names}


def spread(values: Sequence[float]) -> list[float]:
    return [rounded(value) for value in (statistics.median(values), min(values), max(values))]


def rounded(value: float) -> float:
    """Round to four significant digits, because the next digits differ from one measurement to the next."""
    return float(f"{value:.4g}")


def shown(value: float) -> str:
    """Return a number as text with three or more digits: 1,234 or 12.3 or 1.23."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
