"""Read a JSON body of a request within its limit, and write JSON that every client can parse."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from starlette.requests import Request
from starlette.responses import Response

from coordinator.printable import json_text
from coordinator.views.json_data import to_json_data
from coordinator.web.problems import Problem

ABSENT = object()  # the body of a request that has none


async def read_json(request: Request, limit: int) -> Any:
    """Return the value of a JSON body; ABSENT if the body is empty.

    Raises:
        Problem: The body is too large (413), has another media type (415), or is not JSON (400).
    """
    data = await _read_body(request, limit)
    if not data:
        return ABSENT
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise Problem(415, "UnsupportedMediaType", "Send the body as application/json.")
    try:
        return json.loads(data, parse_constant=_refuse_constant, parse_float=_finite_number)
    except RecursionError:
        raise Problem(400, "BadBody", "The body is nested too deeply.") from None
    except ValueError as error:
        reason = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise Problem(400, "BadBody", f"The body is not valid JSON: {reason}.") from None


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a value as a JSON response that must not be cached: runs change, and another caller may not see them."""
    return Response(to_json(value), status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


def to_json(value: Any) -> str:
    """Return a value as JSON on one line. Numbers that JSON does not have (NaN and infinities) become null."""
    return json_text(_finite(to_json_data(value)))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


async def _read_body(request: Request, limit: int) -> bytes:
    """Read and return the body of a request. Stop reading when it is larger than the limit.

    Raises:
        Problem: The body is larger than `limit` bytes (413).
    """
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise Problem(413, "TooLarge", f"The body is too large: the limit is {limit:,} bytes.")
        parts.append(part)
    return b"".join(parts)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite_number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text:.40} is too large for a number")
    return number
