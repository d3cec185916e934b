"""Convert views, results and inputs to data that JSON can represent."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from coordinator.model.run import Counters, RunView

# The other counters are bookkeeping of the scripts, and may change.
SHOWN_COUNTERS = ("life", "attempt", "epoch", "releases", "recoveries", "strikes", "failures")


def to_json_data(value: Any) -> Any:
    """Return a value as data for JSON: times become ISO 8601, bytes become base64, views become objects, None becomes null."""
    if isinstance(value, RunView):
        return {**_fields(value), "attempt": value.attempt}
    if isinstance(value, Counters):
        return {name: getattr(value, name) for name in SHOWN_COUNTERS}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(key): to_json_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json_data(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: to_json_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
