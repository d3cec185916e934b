"""The headers with which the page and its data are sent, and the check of requests that change runs."""

from __future__ import annotations

import hmac
import secrets
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.printable import json_text
from coordinator.web.gate import check_origin
from coordinator.web.problems import Problem

COOKIE = "coordinator_csrf"
HEADER = "x-csrf-token"
LARGEST_BODY = 2 * 2**20

# Only files of this server, no inline script or style, no frames, no other host.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class SecurityHeaders:
    """A middleware that adds the security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, and add the headers to its response."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


def new_token(request: Request) -> str:
    """Return the CSRF token in the browser's cookie, or a new token."""
    known = request.cookies.get(COOKIE, "")
    return known if len(known) >= 32 else secrets.token_urlsafe(32)


def with_cookie(response: Response, request: Request, token: str) -> Response:
    """Set the cookie with the CSRF token, and return the response.

    Scripts can't read the cookie, and a browser does not send it with requests from other sites.
    """
    path = request.scope.get("root_path") or "/"
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, token, path=path, secure=secure, httponly=True, samesite="strict")
    return response


def check_change(request: Request) -> None:
    """Check that a request that changes runs comes from the page.

    Raises:
        Problem: The request has another origin, or does not have the token of the browser's cookie.
    """
    check_origin(request.headers)
    cookie, header = request.cookies.get(COOKIE, ""), request.headers.get(HEADER, "")
    if len(cookie) < 32 or not hmac.compare_digest(cookie.encode(), header.encode()):
        raise Problem(403, "BadCsrfToken", "The request does not have the token of this browser: reload the page.")
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Problem(415, "WrongType", "The body must be application/json.")


async def read_body(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        Problem: The body is larger than 2 MiB (413).
    """
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > LARGEST_BODY:
            raise Problem(413, "TooLarge", "The body is larger than 2 MiB.")
    return data


def answer(data: Any) -> Response:
    """Return data as a JSON response that must not be cached."""
    return Response(json_text(data), media_type="application/json", headers={"Cache-Control": "no-store"})
