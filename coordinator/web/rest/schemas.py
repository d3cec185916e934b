"""The JSON schemas of the API, and the check of a value against one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from coordinator.errors import BadOption
from coordinator.model.run import ENDED, Status

STRING = {"type": "string"}
NAME = {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,100}$"}
RUN_ID = {"type": "string", "examples": ["01m7m2qa992e485k3221-00"]}
KEY = {"type": "string", "minLength": 1, "maxLength": 512}
SECONDS = {"type": "number", "minimum": 0, "exclusiveMaximum": 1e11}
COUNT = {"type": "integer", "minimum": 0}
FLAG = {"type": "boolean"}
STATUS = {"type": "string", "enum": [str(status) for status in Status]}
ENDED_STATUS = {"type": "string", "enum": sorted(str(status) for status in ENDED)}
EVENT_ID = {"type": "string", "pattern": "^([0-9]{1,19}-[0-9]{1,19})?(/end[0-9]{1,9})?$"}


def optional(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def record(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of an object with these required and optional fields, and no others."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def array(items: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an array whose items have this schema."""
    return {"type": "array", "items": items}


MOMENT = {"type": "string", "format": "date-time"}
ANY: dict[str, Any] = {}
OBJECT = {"type": "object"}
FAILURE = record({"type": STRING, "message": STRING}, {"traceback": STRING})

OPTIONS = {
    **record(
        {},
        {
            "queue": NAME,
            "priority": {"type": "integer", "minimum": -100, "maximum": 100},
            "delay": SECONDS,
            "at": {**SECONDS, "description": "A Unix time; not together with `delay`."},
            "expires": SECONDS,
            "retention": SECONDS,
            "schema": {"type": "integer", "minimum": 0, "maximum": 99},
            "meta": {
                "type": "object",
                "additionalProperties": {"type": ["string", "number", "integer", "boolean", "null"]},
            },
        },
    ),
    "not": {"required": ["delay", "at"]},  # the client checks it
}

# Every answer with a run has these fields. A caller with an owner gets only these.
_PUBLIC_RUN = {
    "id": RUN_ID,
    "kind": STRING,
    "queue": STRING,
    "status": STATUS,
    "inputs": OBJECT,
    "meta": OBJECT,
    "cancelling": FLAG,
    "attempt": COUNT,
    "iteration": COUNT,
    "phases": array(STRING),
    "messages": COUNT,
    "note": optional(OBJECT),
    "error": optional(FAILURE),
    "waiting": optional(OBJECT),
    "signals": OBJECT,
    "parent": optional(RUN_ID),
    "key": optional(STRING),
    "created": MOMENT,
    "due": optional(MOMENT),
    "started": optional(MOMENT),
    "ended": optional(MOMENT),
    "checkpointed": optional(MOMENT),
}
PUBLIC_FIELDS = tuple(_PUBLIC_RUN)
RUN = {"type": "object", "properties": _PUBLIC_RUN, "required": list(_PUBLIC_RUN), "additionalProperties": True}

# One event of a stream. OpenAPI 3.1 has no keyword for a sequence of events.
STREAMED_EVENT = record(
    {"id": STRING, "data": {"type": "string", "contentMediaType": "application/json"}},
    {"event": {"type": "string", "enum": ["rewind", "gap", "end"]}, "retry": {"type": "integer"}},
)

PROBLEM = {
    "type": "object",
    "properties": {"type": STRING, "title": STRING, "status": {"type": "integer"}, "detail": STRING, "error": STRING},
    "required": ["type", "title", "status", "detail", "error"],
}

_NUMBER = re.compile(r"-?[0-9]{1,300}(\.[0-9]{1,300})?([eE][+-]?[0-9]{1,3})?")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "null": (type(None),),
    "number": (int, float), "integer": (int,),
}  # fmt: skip


def check(value: Any, schema: Mapping[str, Any], place: str) -> Any:
    """Return a value if it fits a schema. Only those keywords of JSON Schema are checked that the schemas of requests use.

    Args:
        value: The value.
        schema: The JSON schema.
        place: The name of the value in error messages.

    Raises:
        BadOption: The value does not fit the schema.
    """
    types = schema.get("type")
    if types is not None:
        wanted = [types] if isinstance(types, str) else types
        if not any(_has_type(value, kind) for kind in wanted):
            raise BadOption(f"{place} must be {' or '.join(wanted)}")
    if "enum" in schema and value not in schema["enum"]:
        raise BadOption(f"{place} must be one of {', '.join(schema['enum'])}")
    if isinstance(value, str):
        _check_text(value, schema, place)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_number(value, schema, place)
    elif isinstance(value, dict):
        _check_object(value, schema, place)
    return value


def parse_text(text: str, schema: Mapping[str, Any], place: str) -> Any:
    """Return the value of a parameter from its text: a number or a boolean if the schema says so.

    Args:
        text: The text in the path, the query or a header.
        schema: The JSON schema of the parameter.
        place: The name of the parameter in error messages.

    Raises:
        BadOption: The value does not fit the schema.
    """
    value: Any = text
    match schema.get("type"):
        case "integer":
            value = int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text
        case "number":
            value = float(text) if _NUMBER.fullmatch(text) else text
        case "boolean":
            value = {"true": True, "false": False}.get(text, text)
        case _:
            pass
    return check(value, schema, place)


def _has_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind]) or (kind == "integer" and isinstance(value, float) and value.is_integer())


def _check_text(value: str, schema: Mapping[str, Any], place: str) -> None:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf):
        raise BadOption(
            f"{place} must have {schema.get('minLength', 0)} to {schema.get('maxLength', 'any')} characters"
        )
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        raise BadOption(f"{place} does not match {schema['pattern']}")


def _check_number(value: float, schema: Mapping[str, Any], place: str) -> None:
    low, high, below = schema.get("minimum"), schema.get("maximum"), schema.get("exclusiveMaximum")
    if low is not None and value < low:
        raise BadOption(f"{place} must be at least {low:g}")
    if (high is not None and value > high) or (below is not None and value >= below):
        raise BadOption(f"{place} must be at most {high if below is None else below:g}")


def _check_object(value: Mapping[str, Any], schema: Mapping[str, Any], place: str) -> None:
    fields, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            raise BadOption(f"{place} needs the field {name!r}")
    for name, item in value.items():
        if name in fields:
            check(item, fields[name], f"{place}.{name}")
        elif others is False:
            known = ", ".join(fields) or "none"
            raise BadOption(f"{place} has no field {name!r:.80}: its fields are {known}")
        elif isinstance(others, Mapping):
            check(item, others, f"{place}.{name:.80}")
