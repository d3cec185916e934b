"""The gate of a stand-alone application: it checks the host, the origin and the token of each request.

An application that is mounted in a host application has no gate. The host application checks the host and authenticates its users.
If it uses a cookie for this, a browser may also send the cookie with requests from pages of other sites. So `SameOrigin` refuses
requests that could change runs if they come from a page of another origin.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.web.auth import Caller, Role, TokenFile
from coordinator.web.problems import Problem

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_CALLER = "coordinator.caller"  # where the gate puts the caller in the scope of a request


class Gate:
    """An ASGI application that passes a request on to another application if its Host, its Origin and its token are valid.

    A web page of another site can send requests to a server on the user's machine. Its requests have another Origin, or, if the
    site's name was rebound to this machine (DNS rebinding), another Host.
    """

    def __init__(
        self, app: ASGIApp, *, hosts: Collection[str], tokens: TokenFile | None = None, allow_changes: bool = False
    ) -> None:
        """Make a gate.

        Args:
            app: The application behind the gate.
            hosts: The host names under which the application may be called; loopback names are always allowed.
            tokens: The callers and their tokens. None allows every request that reaches the port.
            allow_changes: False if no caller may change runs, whatever its role.
        """
        self._app, self._tokens = app, tokens
        self._hosts = LOOPBACK | {host.lower() for host in hosts}
        self._highest = Role.ALL if allow_changes else Role.READ

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a valid request to the application. Answer any other request with a problem document."""
        if scope["type"] == "http":
            try:
                scope[_CALLER] = self._check(Headers(scope=scope))
            except Problem as problem:
                await problem.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers) -> Caller:
        host = headers.get("host", "")
        if host_name(host) not in self._hosts:
            raise Problem(
                421, "WrongHost", "The server does not answer for this host name: start it with --allow-host."
            )
        check_origin(headers)
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            raise Problem(403, "WrongOrigin", "The request comes from a page of another site.")
        if self._tokens is None:
            return Caller("local", self._highest)
        caller = self._tokens.find_caller(headers.get("authorization"))
        if caller is None:
            # A browser asks its user for a name and a password, and sends them with each request, streams included.
            challenge = {"WWW-Authenticate": 'Basic realm="coordinator", charset="UTF-8"'}
            raise Problem(
                401, "Unauthorized", "Send a token of the token file: 'Authorization: Bearer TOKEN'.", challenge
            )
        return Caller(caller.name, caller.role if self._highest is Role.ALL else Role.READ)


class SameOrigin:
    """A middleware for an application without a gate. It refuses requests of pages of other origins that could change runs."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the application. Answer 403 if it could change runs and comes from a page of another origin."""
        if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            try:
                check_origin(Headers(scope=scope))
            except Problem as problem:
                await problem.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


def check_origin(headers: Headers) -> None:
    """Check that a request does not come from a page of another origin. A request without an Origin header is allowed.

    Raises:
        Problem: The request has another origin than the host that it was sent to.
    """
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        raise Problem(403, "WrongOrigin", "The request comes from a page of another origin.")


def host_name(host: str) -> str:
    """Return the name in a Host header, in lower case and without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def caller_of(request: Request) -> Caller | None:
    """Return the caller that the gate has identified for a request; None if the application has no gate."""
    return cast("Caller | None", request.scope.get(_CALLER))


def caller_name(request: Request) -> str:
    """Return the name under which the streams and waiting requests of a caller are counted: its own name, or else its host."""
    caller = caller_of(request)
    if caller is not None:
        return f"caller {caller.name}"
    return f"host {request.client.host if request.client else ''}"


def role_of_caller(request: Request) -> Role:
    """Return the role of the caller that the gate has identified; NONE without a gate. This is an `access` function."""
    caller = caller_of(request)
    return Role.NONE if caller is None else caller.role
