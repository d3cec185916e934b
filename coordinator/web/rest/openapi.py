"""Write the OpenAPI document from the table of routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from coordinator.web import problems
from coordinator.web.rest.endpoint import Endpoint, Parameter
from coordinator.web.rest.routes import ID
from coordinator.web.rest.schemas import PROBLEM

# Problems that every operation may answer.
_COMMON: Mapping[int, str] = {
    400: "The request is not valid.",
    401: "The caller is not known.",
    403: "The caller may not do this.",
    500: "The server has a bug, or stored data is damaged.",
    503: "`Unreachable`: the server can't reach Redis.",
    504: "`Unconfirmed`: Redis did not answer. The request may have been carried out. Repeat it with the same Idempotency-Key.",
}


def document(routes: Sequence[Endpoint], root: str) -> dict[str, Any]:
    """Return the OpenAPI document of the routes.

    Args:
        routes: The table of routes.
        root: The path at which the application is mounted.
    """
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in routes:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "run-coordinator",
            "version": version("run-coordinator"),
            "description": "Durable runs over HTTP. Errors are problem documents (RFC 9457); their field `error` has a name.",
        },
        "servers": [{"url": root or "/"}],
        "paths": paths,
        "components": {
            "schemas": {"Problem": PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    parameters = (ID, *endpoint.parameters) if "{id}" in endpoint.path else endpoint.parameters
    found: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.text,
        "parameters": [_parameter(parameter) for parameter in parameters],
        "responses": {
            **{str(status): _answer(endpoint, status) for status in endpoint.answers},
            **{str(status): _problem(text) for status, text in sorted({**_COMMON, **endpoint.problems}.items())},
        },
    }
    if endpoint.body is not None:
        found["requestBody"] = {
            "description": endpoint.body.text,
            "required": endpoint.body.required,
            "content": {"application/json": {"schema": endpoint.body.schema}},
        }
    return found


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.text,
        "schema": parameter.schema,
    }


def _answer(endpoint: Endpoint, status: int) -> dict[str, Any]:
    answer = endpoint.answers[status]
    content = {} if answer.schema is None else {"content": {answer.media: {"schema": answer.schema}}}
    return {"description": answer.text, **content}


def _problem(text: str) -> dict[str, Any]:
    reference = {"$ref": "#/components/schemas/Problem"}
    return {"description": text, "content": {problems.MEDIA_TYPE: {"schema": reference}}}
