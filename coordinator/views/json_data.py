"""Convert views, results and inputs to data that JSON can represent."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from coordinator.model.run import RunView


def to_json_data(value: Any) -> Any:
    """Convert a value for JSON: times become ISO 8601, bytes base64, views objects. Fields of a run that are None are left out."""
    if isinstance(value, RunView):
        return _without_none({**_fields(value), "attempt": value.attempt})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(key): to_json_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json_data(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: to_json_data(getattr(value, field.name)) for field in dataclasses.fields(value)}


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
