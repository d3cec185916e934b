"""Make values short enough to show: large texts and long lists are cut, and say how much is left out. This module does no I/O."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from coordinator.views.json_data import to_json_data

MOST_TEXT = 4000  # characters of one text
MOST_ITEMS = 200  # entries of one list or object
MOST_DEPTH = 12
CUT = "…cut"  # the name under which a cut object says how many entries are left out


def shorten(value: Any, most_text: int = MOST_TEXT) -> Any:
    """Return a value as data for JSON, with long texts, lists and objects cut. NaN and infinite numbers become null.

    Args:
        value: Plain data or a view.
        most_text: The largest number of characters of one text.
    """
    return _shorten(to_json_data(value), most_text, 0)


def has_long_text(value: Any, most_text: int) -> bool:
    """Return True if `shorten` would cut a text of this value."""
    return bool(shorten(value, most_text) != shorten(value, sys.maxsize))


def _shorten(value: Any, most: int, depth: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= most else f"{value[:most]}… ({len(value) - most:,} more characters)"
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if depth >= MOST_DEPTH and isinstance(value, (Mapping, list)):
        return f"… ({len(value):,} entries)"
    if isinstance(value, Mapping):
        items = list(value.items())
        found = {str(key)[:most]: _shorten(item, most, depth + 1) for key, item in items[:MOST_ITEMS]}
        return found if len(items) <= MOST_ITEMS else {**found, CUT: len(items) - MOST_ITEMS}
    if isinstance(value, list):
        cut = [f"… ({len(value) - MOST_ITEMS:,} more)"] if len(value) > MOST_ITEMS else []
        return [_shorten(item, most, depth + 1) for item in value[:MOST_ITEMS]] + cut
    return value
