"""The ASGI application of the HTTP API, made from the table of routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coordinator.client.async_client import AsyncClient
from coordinator.errors import BadOption
from coordinator.web.auth import Access, Role, find_role
from coordinator.web.gate import caller_name
from coordinator.web.problems import HANDLERS, Problem
from coordinator.web.rest.call import Call
from coordinator.web.rest.endpoint import Endpoint
from coordinator.web.rest.json_bodies import ABSENT, json_response, read_json
from coordinator.web.rest.limits import Limits
from coordinator.web.rest.openapi import document
from coordinator.web.rest.owners import FindOwner, Kinds, Ownership, check_kinds, find_owner
from coordinator.web.rest.routes import ID, ROUTES
from coordinator.web.rest.schemas import check, parse_text
from coordinator.web.streams import OpenStreams


def api(
    client: AsyncClient,
    *,
    owner: FindOwner | None = None,
    owner_field: str = "owner",
    kinds: Kinds | None = None,
    access: Access | None = None,
    limits: Limits | None = None,
) -> Starlette:
    """Return the HTTP API as an ASGI application, to mount in a host application.

    The API has no login. The host application authenticates callers, and its functions `owner` and `access` say what they may do.

    Args:
        client: The client that carries out the requests. The code that made it closes it.
        owner: A function that returns the owner of a request. A caller then sees and changes only runs whose meta has this owner,
            and runs that it enqueues get it. A request for which the function returns None is refused. Without the function,
            every caller sees all runs.
        owner_field: The name of the owner in the meta of a run.
        kinds: The kinds that callers may enqueue. A dict may give options of `enqueue` for each kind. None allows every kind.
        access: A function that returns the role of the caller: `all`, `read` or `none`. By default every caller has `all`.
        limits: The limits of requests, streams and callers.

    Raises:
        Refused: `kinds` is a single text.
    """
    bounds = limits or Limits()
    service = _Service(
        client, owner, owner_field, check_kinds(kinds), access, bounds, OpenStreams(bounds.streams, bounds.waits)
    )
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in ROUTES:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    routes = [service.route(path, endpoints) for path, endpoints in by_path.items()]
    app = Starlette(routes=[*routes, service.document_route()], exception_handlers=HANDLERS)
    app.router.redirect_slashes = False
    app.state.streams = service.streams
    return app


@dataclass(frozen=True, slots=True)
class _Service:
    """The API for one client: it checks each request, and calls the function that the table of routes has for it."""

    client: AsyncClient
    owner: FindOwner | None
    owner_field: str
    kinds: Kinds | None
    access: Access | None
    limits: Limits
    streams: OpenStreams

    def route(self, path: str, endpoints: Mapping[str, Endpoint]) -> Route:
        """Return the route of a path, for all methods that the table has for it."""

        async def answer(request: Request) -> Response:
            endpoint = endpoints[request.method]
            return await endpoint.call(await self._check(request, endpoint))

        return _route(path, answer, set(endpoints))

    def document_route(self) -> Route:
        """Return the route of the OpenAPI document."""

        async def answer(request: Request) -> Response:
            await self._find_role(request)
            return json_response(document(ROUTES, request.scope.get("root_path", "")))

        return _route("/openapi.json", answer, {"GET"})

    async def _check(self, request: Request, endpoint: Endpoint) -> Call:
        """Check the caller, the parameters and the body of a request, and return them as a `Call`.

        Raises:
            Problem: The caller may not send this request, or its body can't be read.
            BadOption: A parameter or the body is not valid.
        """
        role = await self._find_role(request)
        if endpoint.changes and role is not Role.ALL:
            raise Problem(403, "ReadOnly", "The caller may only read.")
        ownership = Ownership(await find_owner(self.owner, request), self.owner_field, self.kinds)
        values = read_parameters(request, endpoint)
        body = await self._read_body(request, endpoint)
        caller = caller_name(request) if ownership.owner is None else f"owner {ownership.owner}"
        return Call(request, self.client, ownership, caller, values, body, self.limits, self.streams)

    async def _find_role(self, request: Request) -> Role:
        role = await find_role(self.access, request)
        if role is Role.NONE:
            raise Problem(403, "Forbidden", "The caller has no access.")
        return role

    async def _read_body(self, request: Request, endpoint: Endpoint) -> Any:
        if endpoint.body is None:
            return ABSENT
        value = await read_json(request, self.limits.body)
        if value is not ABSENT:
            return check(value, endpoint.body.schema, "the body")
        if endpoint.body.required:
            raise BadOption("the request needs a body of JSON")
        return ABSENT


def read_parameters(request: Request, endpoint: Endpoint) -> dict[str, Any]:
    """Return the parameters of a request by name. A missing parameter has its default, or None.

    Raises:
        BadOption: A parameter is not known, is given twice, or has a value that is not valid.
    """
    parameters = (ID, *endpoint.parameters) if "{id}" in endpoint.path else endpoint.parameters
    known = {parameter.name for parameter in parameters if parameter.place == "query"}
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            raise BadOption(f"there is no query parameter {name!r:.80}: there are {', '.join(sorted(known)) or 'none'}")
        if given.count(name) > 1:
            raise BadOption(f"query parameter {name!r} is given twice")
    places: dict[str, Mapping[str, str]] = {
        "path": request.path_params, "query": request.query_params, "header": request.headers,
    }  # fmt: skip
    values: dict[str, Any] = {}
    for parameter in parameters:
        text = places[parameter.place].get(parameter.name)
        if text is None:
            values[parameter.name] = parameter.schema.get("default")
        else:
            values[parameter.name] = parse_text(text, parameter.schema, f"{parameter.place} {parameter.name}")
    return values


def _route(path: str, answer: Any, methods: set[str]) -> Route:
    route = Route(path, answer, methods=sorted(methods))
    route.methods = methods  # without HEAD, which Starlette adds: a HEAD of a stream would never end
    return route
