"""Convert views, results and inputs to data that JSON can represent."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Collection, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from coordinator.model.run import Counters, RunView

# The other counters are bookkeeping of the scripts, and may change.
SHOWN_COUNTERS = ("life", "attempt", "epoch", "releases", "recoveries", "strikes", "failures")


MOST_DEPTH = (
    200  # levels of lists and objects; more could not be converted and encoded within Python's limit of recursion
)


def to_json_data(value: Any) -> Any:
    """Return a value as data for JSON: times become ISO 8601, bytes become base64, views become objects, None becomes null.

    A list or an object that is nested 200 levels deep becomes a text that says how many entries it has.
    """
    return _convert(value, 0)


def _convert(value: Any, depth: int) -> Any:
    if isinstance(value, RunView):
        return {**_fields(value, depth), "attempt": value.attempt}
    if isinstance(value, Counters):
        return {name: getattr(value, name) for name in SHOWN_COUNTERS}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value, depth)
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        return _convert_entries(value, depth)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def _convert_entries(value: Mapping[Any, Any] | Collection[Any], depth: int) -> Any:
    if depth >= MOST_DEPTH:
        return f"… ({len(value):,} entries)"
    if isinstance(value, Mapping):
        return {str(key): _convert(item, depth + 1) for key, item in value.items()}
    return [_convert(item, depth + 1) for item in value]


def _fields(value: Any, depth: int) -> dict[str, Any]:
    return {field.name: _convert(getattr(value, field.name), depth + 1) for field in dataclasses.fields(value)}
