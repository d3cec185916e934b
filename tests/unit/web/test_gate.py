from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from coordinator import BadOption
from coordinator.web.auth import TokenFile
from coordinator.web.gate import Gate, caller_of
from coordinator.web.server import WebSettings

TOKEN = "alice-token-0123456789"


async def show_caller(request: Request) -> PlainTextResponse:
    caller = caller_of(request)
    return PlainTextResponse(f"{caller.name} {caller.role}" if caller else "nobody")


async def call(headers: dict[str, str], method: str = "GET", **options: Any) -> httpx.Response:
    app = Starlette(routes=[Route("/", show_caller, methods=["GET", "POST"])])
    transport = httpx.ASGITransport(app=Gate(app, hosts=["runs.example"], **options))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8700") as client:
        return await client.request(method, "/", headers=headers)


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    path = tmp_path / "tokens"
    path.write_text(f"alice all {TOKEN}")
    return TokenFile(path)


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8700", "127.0.0.1:8700", "[::1]:8700", "runs.example", "RUNS.Example:80"]
)
async def test_host_of_the_server_is_answered(host: str) -> None:
    assert (await call({"host": host})).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8700", "", "evil.example:localhost"]
)
async def test_another_host_is_refused(host: str) -> None:
    answer = await call({"host": host})
    assert (answer.status_code, answer.json()["error"]) == (421, "WrongHost")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": ""},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_request_of_a_page_of_another_origin_is_refused(headers: dict[str, str], method: str) -> None:
    answer = await call({"host": "127.0.0.1:8700", **headers}, method)
    assert (answer.status_code, answer.json()["error"]) == (403, "WrongOrigin")


async def test_request_of_an_own_page_is_answered() -> None:
    own = {"host": "127.0.0.1:8700", "origin": "http://127.0.0.1:8700", "sec-fetch-site": "same-origin"}
    assert (await call(own, "POST")).status_code == 200
    link = {"host": "127.0.0.1:8700", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert (await call(link)).status_code == 200


async def test_request_without_a_token_is_asked_for_one(tokens: TokenFile) -> None:
    answer = await call({"host": "localhost"}, tokens=tokens)
    assert (answer.status_code, answer.json()["error"]) == (401, "Unauthorized")
    assert answer.headers["www-authenticate"].startswith("Basic ")
    assert answer.headers["content-type"] == "application/problem+json"


async def test_caller_can_only_read_unless_changes_are_allowed(tokens: TokenFile) -> None:
    known = {"host": "localhost", "authorization": f"Bearer {TOKEN}"}
    assert (await call(known, tokens=tokens)).text == "alice read"
    assert (await call(known, tokens=tokens, allow_changes=True)).text == "alice all"
    assert (await call({"host": "localhost"})).text == "local read"
    assert (await call({"host": "localhost"}, allow_changes=True)).text == "local all"


def test_server_for_other_machines_needs_tokens(tokens: TokenFile) -> None:
    with pytest.raises(BadOption, match="--auth"):
        WebSettings(host="0.0.0.0")
    assert WebSettings(host="0.0.0.0", tokens=tokens).tokens is tokens


@pytest.mark.parametrize("module", ["coordinator", "workers", "coordinator.cli.app", "workers.cli.app"])
def test_other_packages_do_not_import_the_web_packages(module: str) -> None:
    code = f"import sys, {module}; print([name for name in ('starlette', 'uvicorn', 'coordinator.web') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_command_without_the_extra_names_it() -> None:
    code = (
        "import sys; sys.modules['starlette'] = None; sys.argv = ['coordinator', 'web'];"
        "from coordinator.cli.app import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3
    assert "pip install 'run-coordinator[web]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
