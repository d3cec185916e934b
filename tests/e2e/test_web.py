"""`coordinator web` as a real process, with real workers, HTTP clients and a browser."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from coordinator import Client
from tests.e2e.processes import Stage, children
from tests.waiting import wait_until

TOKEN = "alice-token-0123456789"


class WebStage(Stage):
    """A stage with the handlers of web_app.py and web servers."""

    app = "tests.e2e.web_app:runs"

    def web(self, *options: str, port: int = 0) -> tuple[subprocess.Popen[bytes], str]:
        """Start `coordinator web`, and return its process and URL."""
        log = self.directory / f"log-{len(self.started)}"
        process = self._start("coordinator", "web", "--port", str(port), *options)

        def find_url() -> str:
            assert process.poll() is None, self.logs()
            found = re.search(r"web server started: (http://\S+:\d+)/", log.read_text())
            return found[1] if found else ""

        return process, wait_until(find_url, "the web server to start")


@pytest.fixture
def stage(stage: Stage) -> Iterator[WebStage]:
    web = WebStage(stage.urls, stage.namespace, stage.directory, stage.place)
    yield web
    web.close()


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "tokens"
    path.write_text(f"alice all {TOKEN}\n")
    return str(path)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_server_is_read_only_unless_changes_are_allowed(stage: WebStage, client: Client) -> None:
    client.enqueue("tell", {"turns": 1, "words": 1})
    body = {"kind": "tell", "inputs": {"turns": 1, "words": 1}}
    _, url = stage.web()
    assert len(httpx.get(f"{url}/api/runs").json()["runs"]) == 1
    refused = httpx.post(f"{url}/api/runs", json=body)
    assert (refused.status_code, refused.json()["error"]) == (403, "ReadOnly")
    _, url = stage.web("--allow-changes")
    assert httpx.post(f"{url}/api/runs", json=body).status_code == 201
    foreign = httpx.post(f"{url}/api/runs", json=body, headers={"Origin": "http://evil.example"})
    assert (foreign.status_code, foreign.json()["error"]) == (403, "WrongOrigin")
    assert httpx.get(f"{url}/api/runs", headers={"Host": "evil.example"}).status_code == 421
    assert len(client.list()) == 2


def test_server_with_a_token_file_asks_for_a_token(stage: WebStage, token_file: str) -> None:
    _, url = stage.web("--host", "127.0.0.1", "--auth", token_file)
    assert httpx.get(f"{url}/api/runs").status_code == 401
    assert httpx.get(f"{url}/api/openapi.json").status_code == 401
    assert httpx.get(f"{url}/api/runs", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    password = base64.b64encode(f"alice:{TOKEN}".encode()).decode()
    assert httpx.get(f"{url}/api/runs", headers={"Authorization": f"Basic {password}"}).status_code == 200
    assert TOKEN not in stage.logs()


@pytest.mark.matrix("commands, case by case")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "give a token file with --auth"),
        (["--auth", "/nothing"], "can't read the token file"),
        (["--host", "192.0.2.1", "--auth", "TOKENS"], "can't listen on 192.0.2.1"),
        (["--port", "BUSY"], "is in use by another process"),
    ],
)
def test_options_that_can_not_work_are_refused(stage: WebStage, token_file: str, options: list[str], said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        words = {"TOKENS": token_file, "BUSY": str(busy.getsockname()[1])}
        process = stage._start("coordinator", "web", *(words.get(word, word) for word in options))
        assert process.wait(30) == 2
    assert said in stage.logs()
    assert "Traceback" not in stage.logs()


def test_server_ends_at_sigterm_although_a_request_waits(stage: WebStage, client: Client) -> None:
    run = client.enqueue("tell", {"turns": 1, "words": 1})  # there is no worker
    process, url = stage.web()
    with httpx.Client(timeout=60) as http, http.stream("GET", f"{url}/api/runs/{run.id}/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": the stream is open"
        process.send_signal(signal.SIGTERM)
        assert "event: end" not in list(lines)
    assert process.wait(30) == 0
    assert "Traceback" not in stage.logs()


def test_server_ends_at_sigterm_although_clients_keep_their_connections(stage: WebStage, client: Client) -> None:
    run = client.enqueue("tell", {"turns": 1, "words": 1})  # there is no worker
    process, url = stage.web()
    port = int(url.rpartition(":")[2])
    requests = [
        "GET / HTTP/1.1\r\nHost:",  # the rest of the request never comes
        "GET /data/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",  # the board
        f"GET /data/runs/{run.id}/output HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        f"GET /api/runs/{run.id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",  # answered, and the connection is kept
    ]
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in requests]
        for connection, request in zip(sockets, requests, strict=True):
            connection.sendall(request.encode())
        for connection in sockets[1:]:
            connection.settimeout(60)
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        process.send_signal(signal.SIGTERM)  # the clients neither read on nor close
        assert process.wait(30) == 0
    assert "Traceback" not in stage.logs()


# ---- in a browser ------------------------------------------------------------------------------------------------------

WATCH = """
async ({turns, words}) => {
  const body = JSON.stringify({kind: "tell", inputs: {turns, words}})
  const headers = {"Content-Type": "application/json", "Idempotency-Key": "the run"}
  const answer = await fetch("/api/runs", {method: "POST", body, headers})
  const id = (await answer.json()).id
  Object.assign(window, {words: [], ids: [], pids: new Set(), rewinds: 0, opened: 0, errors: 0, end: null})
  const source = new EventSource(`/api/runs/${id}/events`)
  source.onopen = () => { window.opened += 1 }
  source.onerror = () => { window.errors += 1 }
  source.onmessage = (event) => {
    const {number, value} = JSON.parse(event.data)
    window.ids.push(event.lastEventId)
    window.pids.add(value.pid)
    window.words[number - 1] = value.word
  }
  source.addEventListener("rewind", (event) => {
    window.rewinds += 1
    window.words.length = JSON.parse(event.data).to
  })
  source.addEventListener("end", (event) => { window.end = JSON.parse(event.data).status })
  window.source = source
  return id
}
"""


@pytest.mark.matrix("starts a browser")
def test_browser_gets_the_whole_text_over_kills_a_roll_and_restarts_of_the_web_server(
    stage: WebStage, client: Client, browser: Browser
) -> None:
    stage.coordinator()
    fleet, port = stage.fleet(), free_port()
    process, url = stage.web("--allow-changes", port=port)
    page = browser.new_page()
    page.goto(f"{url}/api/openapi.json")  # any page of this origin
    id = page.evaluate(WATCH, {"turns": 60, "words": 8})

    def seen() -> int:
        return int(page.evaluate("window.ids.length"))

    def continue_for(events: int) -> None:
        target = seen() + events
        wait_until(lambda: seen() >= target, f"{events} more events", 60)

    def restart(how: signal.Signals) -> None:
        nonlocal process
        opened = page.evaluate("window.opened")
        process.send_signal(how)
        process.wait(30)
        process, _ = stage.web("--allow-changes", port=port)
        wait_until(lambda: page.evaluate("window.opened") > opened, "the browser to reconnect", 60)

    continue_for(10)
    os.kill(children(fleet.pid)[0], signal.SIGKILL)
    continue_for(20)
    restart(signal.SIGTERM)
    continue_for(10)
    os.kill(children(fleet.pid)[0], signal.SIGKILL)
    restart(signal.SIGKILL)
    continue_for(20)
    fleet.send_signal(signal.SIGHUP)  # a roll: the process is replaced
    wait_until(lambda: page.evaluate("window.end"), "the end of the run", 120)
    result = client.handle(id).result(timeout=30)
    assert page.evaluate("window.words.join('')") == result
    assert page.evaluate("window.end") == "completed"
    ids: list[str] = page.evaluate("window.ids")
    assert len(ids) == len(set(ids)), "no event is delivered twice: the browser sends the id of the last one"
    assert page.evaluate("window.opened") >= 3
    assert page.evaluate("window.pids.size") >= 3
    # The server tells a browser that has got the end to stop.
    wait_until(lambda: page.evaluate("window.source.readyState") == 2, "the browser to stop", 60)
