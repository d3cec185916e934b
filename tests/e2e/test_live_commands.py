"""The commands `coordinator events` and `coordinator top` as real processes."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from coordinator import Client
from tests.conftest import StartServer
from tests.e2e.conftest import MakeStage
from tests.e2e.processes import ROOT, Stage
from tests.waiting import wait_until

COORDINATOR = str(Path(sys.executable).parent / "coordinator")
HANG = 60.0


def run_command(stage: Stage, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COORDINATOR, *words], cwd=ROOT, env=stage.environment(), capture_output=True, text=True, timeout=HANG
    )


@pytest.fixture
def waiting_run(stage: Stage, client: Client) -> str:
    return client.enqueue("nobody").id


@contextmanager
def followed(stage: Stage, *options: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Yield a process of `events --follow` that is following, and its output."""
    following = subprocess.Popen(
        [COORDINATOR, "events", "--follow", "--json", *options], cwd=ROOT, env=stage.environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert following.stdout is not None
        assert following.stderr is not None
        assert "following" in following.stderr.readline()
        yield following, following.stdout
    finally:
        following.kill()
        following.communicate(timeout=HANG)


def test_events_follow_prints_changes_of_a_run_until_it_ends(stage: Stage, client: Client, waiting_run: str) -> None:
    with followed(stage, "--run", waiting_run) as (process, output):
        client.enqueue("nobody")
        client.handle(waiting_run).cancel()
        told = [json.loads(line) for line in output]
        assert [(event["run"], event["status"]) for event in told] == [(waiting_run, "cancelled")]
        assert process.wait(HANG) == 0


def test_events_follow_prints_only_changes_of_the_kind(stage: Stage, client: Client) -> None:
    with followed(stage, "--kind", "wanted") as (_, output):
        client.enqueue("nobody")
        wanted = client.enqueue("wanted")
        first = json.loads(output.readline())
        assert (first["run"], first["kind"], first["status"]) == (wanted.id, "wanted", "queued")


def test_events_prints_the_past_of_a_run(stage: Stage, client: Client, waiting_run: str) -> None:
    client.handle(waiting_run).cancel()
    done = run_command(stage, "events", "--run", waiting_run, "--json")
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == ["queued", "cancelled"]
    assert "cancelled" in run_command(stage, "events", "--kind", "nobody").stdout


def test_events_prints_at_most_the_limit_of_newest_events(stage: Stage, client: Client, waiting_run: str) -> None:
    client.handle(waiting_run).cancel()
    for limit, statuses in (("1", ["cancelled"]), ("2", ["queued", "cancelled"])):
        done = run_command(stage, "events", "--limit", limit, "--json")
        assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == statuses


@pytest.mark.matrix("kills and restarts a server of its own")
def test_events_follow_says_that_changes_may_be_missing_after_an_outage(
    start_server: StartServer, make_stage: MakeStage
) -> None:
    server = start_server()
    stage = make_stage(server.url)
    with Client(server.url, stage.namespace) as client:
        client.enqueue("nobody")
        with followed(stage) as (process, output):
            server.kill()
            server.restart()
            assert process.stderr is not None
            notes = iter(process.stderr.readline, "")
            assert any("changes in between may be missing" in note for note in notes)
            wanted = client.enqueue("wanted")
            assert json.loads(output.readline())["run"] == wanted.id


def test_top_prints_the_state_once_if_the_output_is_not_a_terminal(stage: Stage, waiting_run: str) -> None:
    done = run_command(stage, "top")
    assert done.returncode == 0, done.stderr
    assert "no live worker takes kind nobody" in done.stdout
    found = json.loads(run_command(stage, "top", "--json").stdout)
    assert [(row["kind"], row["queued"]) for row in found["queues"]] == [("nobody", 1)]


def test_top_is_refreshed_in_a_terminal_of_80_columns_until_ctrl_c(
    stage: Stage, client: Client, waiting_run: str
) -> None:
    terminal, inside = os.openpty()
    termios.tcsetwinsize(inside, (24, 80))
    environment = stage.environment() | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        [COORDINATOR, "top"], cwd=ROOT, env=environment, stdin=inside, stdout=inside, stderr=inside
    )
    os.close(inside)
    shown = bytearray()

    def shows(text: str) -> bool:
        """Read what the command has written, and return True if the text is in the last frame."""
        while select.select([terminal], [], [], 0)[0]:
            shown.extend(os.read(terminal, 65536))
        frames = re.split(r"\x1b\[H", shown.decode(errors="replace"))
        return text in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frames[-1])

    try:
        wait_until(lambda: shows("no live worker takes kind nobody"), "the first frame", HANG)
        client.handle(waiting_run).cancel()
        wait_until(lambda: shows(f"cancelled  {waiting_run}"), "the change", HANG)
        frame = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", re.split(r"\x1b\[H", shown.decode(errors="replace"))[-1])
        assert max(len(line.rstrip("\r")) for line in frame.split("\n")) <= 80
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG) == 0
    finally:
        process.kill()
        process.wait(HANG)
        os.close(terminal)


def test_top_says_that_the_server_is_not_reachable(stage: Stage) -> None:
    done = run_command(stage, "top", "--url", "redis://127.0.0.1:1/0", "--timeout", "0.5")
    assert done.returncode == 4
    assert done.stderr.startswith("error:")
