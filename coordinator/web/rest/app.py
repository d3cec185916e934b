"""The ASGI application of the HTTP API."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coordinator.client.async_client import AsyncClient
from coordinator.printable import json_text
from coordinator.views.json_data import to_json_data
from coordinator.web.auth import Access, Role, find_role
from coordinator.web.problems import HANDLERS, Problem


def api(client: AsyncClient, *, access: Access | None = None) -> Starlette:
    """Return the HTTP API as an ASGI application, to mount in a host application.

    Args:
        client: The client that carries out the requests. The caller of this function closes it.
        access: A function that returns the role of the caller: all, read or none. By default every caller may do everything.
    """

    async def view(request: Request) -> Response:
        if await find_role(access, request) is Role.NONE:
            raise Problem(403, "Forbidden", "The caller has no access.")
        found = await client.handle(request.path_params["id"]).view()
        return Response(json_text(to_json_data(found)), media_type="application/json")

    return Starlette(routes=[Route("/runs/{id}", view)], exception_handlers=HANDLERS)
