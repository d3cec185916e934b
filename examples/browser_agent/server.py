"""The page of agent.py, and the HTTP API behind it. Each browser sees only the runs that it started.

pip install 'run-coordinator[web]'
uvicorn examples.browser_agent.server:app

A real program has a login. This one gives each browser a random name in a cookie.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route

from coordinator import AsyncClient
from coordinator.web import api

PAGE = Path(__file__).with_name("page.html")


async def show_page(request: Request) -> Response:
    response = HTMLResponse(PAGE.read_text())
    if "user" not in request.cookies:
        # SameSite: pages of other sites can't send requests in the name of this browser
        response.set_cookie("user", secrets.token_urlsafe(), httponly=True, samesite="strict")
    return response


def find_user(request: Request) -> str | None:
    return request.cookies.get("user")


app = Starlette(routes=[Route("/", show_page), Mount("/api", api(AsyncClient(), owner=find_user, kinds=["write"]))])
