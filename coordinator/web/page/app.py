"""The ASGI application of the page: its files, the data that it reads, and the changes that it makes."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coordinator.client.async_client import AsyncClient
from coordinator.errors import BadOption
from coordinator.web.auth import Access, Role, find_role
from coordinator.web.gate import caller_name
from coordinator.web.page.changes import ChangeRequest, carry_out
from coordinator.web.page.fleets import read_fleets
from coordinator.web.page.live import LiveBoard
from coordinator.web.page.output import OutputStreams
from coordinator.web.page.queries import PageQueries
from coordinator.web.page.schedule_fires import read_fires
from coordinator.web.page.security import SecurityHeaders, answer, check_change, new_token, read_body, with_cookie
from coordinator.web.problems import HANDLERS, Problem

TYPES = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8",
         "svg": "image/svg+xml"}  # fmt: skip

Handler = Callable[[Request], Awaitable[Response]]


@cache
def read_assets() -> Mapping[str, bytes]:
    """Return the files of the page by name."""
    folder = files("coordinator.web.page") / "assets"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in TYPES}


def page(client: AsyncClient, *, access: Access | None = None) -> Starlette:
    """Return the page as an ASGI application. Its addresses are relative, so it may be mounted under any path.

    Args:
        client: The client that reads and changes runs. The caller of this function closes it.
        access: A function that returns the role of the caller: all, read or none. By default every caller may do everything.
    """
    return PageApp(client, access).starlette()


class PageApp:
    """The page: it answers the requests for its files, for its data, and for changes of runs."""

    def __init__(self, client: AsyncClient, access: Access | None) -> None:
        self._client, self._access = client, access
        self._queries = PageQueries(client)
        self.live = LiveBoard(client)
        self.output = OutputStreams(client)

    def starlette(self) -> Starlette:
        """Return the ASGI application with all routes of the page."""
        reads: Mapping[str, Handler] = {
            "/data/session": self._session,
            "/data/live": self._live,
            "/data/runs": self._runs,
            "/data/runs/{id}": self._run,
            "/data/runs/{id}/messages": self._messages,
            "/data/runs/{id}/output": self._output,
            "/data/schedules": self._schedules,
            "/data/schedules/{name}": self._fires,
            "/data/fleets": self._fleets,
            "/data/doctor": self._doctor,
        }
        changes: Mapping[str, Handler] = {
            "/data/changes": self._change,
            "/data/signals": self._signal,
            "/data/grants": self._grant,
        }
        routes = [Route("/", self._index), Route("/assets/{name}", self._asset)]
        routes += [Route(path, self._for(Role.READ, handler), methods=["GET"]) for path, handler in reads.items()]
        routes += [Route(path, self._for(Role.ALL, handler), methods=["POST"]) for path, handler in changes.items()]
        app = Starlette(routes=routes, exception_handlers=HANDLERS, middleware=[Middleware(SecurityHeaders)])
        app.state.close_streams, app.state.output = self.close_streams, self.output
        return app

    def close_streams(self) -> None:
        """End all streams, because the server stops. Browsers connect again on their own."""
        self.live.close()
        self.output.streams.close()

    def _for(self, least: Role, handler: Handler) -> Handler:
        async def checked(request: Request) -> Response:
            role = await find_role(self._access, request)
            if role is Role.NONE:
                raise Problem(403, "Forbidden", "The caller has no access.")
            if least is Role.ALL:
                if role is not Role.ALL:
                    raise Problem(403, "Forbidden", "The caller may read, but not change: start with --allow-changes.")
                check_change(request)
            return await handler(request)

        return checked

    # ---- files

    async def _index(self, request: Request) -> Response:
        if await find_role(self._access, request) is Role.NONE:
            raise Problem(403, "Forbidden", "The caller has no access.")
        return _file("index.html")

    async def _asset(self, request: Request) -> Response:
        if await find_role(self._access, request) is Role.NONE:
            raise Problem(403, "Forbidden", "The caller has no access.")
        name = request.path_params["name"]
        if name not in read_assets():
            raise Problem(404, "NotFound", "There is no such file.")
        return _file(name)

    # ---- data

    async def _session(self, request: Request) -> Response:
        role, token = await find_role(self._access, request), new_token(request)
        facts = {"role": str(role), "csrf": token, **self._queries.facts()}
        return with_cookie(answer(facts), request, token)

    async def _live(self, request: Request) -> Response:
        return self.live.response(caller_name(request))

    async def _runs(self, request: Request) -> Response:
        return answer(await self._queries.runs(request.query_params))

    async def _run(self, request: Request) -> Response:
        return answer(await self._queries.run(request.path_params["id"]))

    async def _messages(self, request: Request) -> Response:
        start, full = request.query_params.get("start", "0"), request.query_params.get("full") == "1"
        if not re.fullmatch("[0-9]{1,12}", start):
            raise BadOption("start must be a number of at most 12 digits")
        return answer(await self._queries.messages(request.path_params["id"], int(start), full=full))

    async def _output(self, request: Request) -> Response:
        return await self.output.response(request, request.path_params["id"])

    async def _schedules(self, request: Request) -> Response:
        return answer(await self._queries.schedules())

    async def _fires(self, request: Request) -> Response:
        return answer(await read_fires(self._client, request.path_params["name"]))

    async def _fleets(self, request: Request) -> Response:
        return answer(await self._client._do(read_fleets))

    async def _doctor(self, request: Request) -> Response:
        cheap = request.query_params.get("cheap") == "1"
        return answer(await (self._queries.cheap_doctor() if cheap else self._queries.doctor()))

    # ---- changes

    async def _change(self, request: Request) -> Response:
        wanted = ChangeRequest.of(_json(await read_body(request)))
        return answer(await carry_out(self._client, wanted))

    async def _signal(self, request: Request) -> Response:
        body = _json(await read_body(request))
        if not isinstance(body, dict) or not isinstance(body.get("run"), str) or not isinstance(body.get("topic"), str):
            raise BadOption("give a run and a topic")
        sent = await self._client.handle(body["run"]).send(body["topic"], body.get("payload"))
        return answer({"sent": sent})

    async def _grant(self, request: Request) -> Response:
        body = _json(await read_body(request))
        if not isinstance(body, dict) or not isinstance(body.get("run"), str):
            raise BadOption("give a run and an amount: usd, tokens or requests")
        usd, tokens, requests = (body.get(name) or 0 for name in ("usd", "tokens", "requests"))
        await self._client.handle(body["run"]).grant(usd=usd, tokens=tokens, requests=requests)
        return answer({"granted": True})


def _file(name: str) -> Response:
    headers = {"Cache-Control": "no-cache"}
    return Response(read_assets()[name], media_type=TYPES[name.rpartition(".")[2]], headers=headers)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise BadOption("the body is nested too deeply") from None
    except ValueError:
        raise BadOption("the body is not JSON") from None
