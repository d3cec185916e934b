"""The application to mount in a host application: the page, and the HTTP API under /api."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import Mount

from coordinator.client.async_client import AsyncClient
from coordinator.web.auth import Access
from coordinator.web.gate import SameOrigin
from coordinator.web.page.app import page
from coordinator.web.problems import HANDLERS
from coordinator.web.rest.app import api


def app(client: AsyncClient, *, access: Access | None = None) -> Starlette:
    """Return the page and the HTTP API as an ASGI application, to mount in a host application behind its own login.

    Args:
        client: The client that carries out the requests. The caller of this function closes it.
        access: A function that returns the role of the caller: all, read or none. By default every caller may do everything.
    """
    rest, dashboard = api(client, access=access), page(client, access=access)
    rest.add_middleware(SameOrigin)
    served = Starlette(routes=[Mount("/api", rest), Mount("/", dashboard)], exception_handlers=HANDLERS)

    def close_streams() -> None:
        rest.state.streams.close()
        dashboard.state.close_streams()

    served.state.close_streams = close_streams  # a server calls it when it stops: it would wait for open streams
    return served
