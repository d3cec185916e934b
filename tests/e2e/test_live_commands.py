"""The commands `coordinator events` and `coordinator top` as real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator import Client
from tests.e2e.processes import ROOT, Stage

COORDINATOR = str(Path(sys.executable).parent / "coordinator")
HANG = 60.0


def run_command(stage: Stage, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COORDINATOR, *words], cwd=ROOT, env=stage.environment(), capture_output=True, text=True, timeout=HANG
    )


@pytest.fixture
def waiting_run(stage: Stage, client: Client) -> str:
    return client.enqueue("nobody").id


def test_events_follow_prints_changes_of_a_run_until_it_ends(stage: Stage, client: Client, waiting_run: str) -> None:
    following = subprocess.Popen(
        [COORDINATOR, "events", "--follow", "--json", "--run", waiting_run], cwd=ROOT, env=stage.environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert following.stdout is not None
        assert following.stderr is not None
        assert "following" in following.stderr.readline()
        client.enqueue("nobody")
        client.handle(waiting_run).cancel()
        told = [json.loads(line) for line in following.stdout]
        assert [(event["run"], event["status"]) for event in told] == [(waiting_run, "cancelled")]
        assert following.wait(HANG) == 0
    finally:
        following.kill()
        following.communicate(timeout=HANG)


def test_events_prints_the_past_of_a_run(stage: Stage, client: Client, waiting_run: str) -> None:
    client.handle(waiting_run).cancel()
    done = run_command(stage, "events", "--run", waiting_run, "--json")
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == ["queued", "cancelled"]
    assert "cancelled" in run_command(stage, "events", "--kind", "nobody").stdout


def test_top_prints_the_state_once_if_the_output_is_not_a_terminal(stage: Stage, waiting_run: str) -> None:
    done = run_command(stage, "top")
    assert done.returncode == 0, done.stderr
    assert "no live worker takes kind nobody" in done.stdout
    found = json.loads(run_command(stage, "top", "--json").stdout)
    assert [(row["kind"], row["queued"]) for row in found["queues"]] == [("nobody", 1)]


def test_top_says_that_the_server_is_not_reachable(stage: Stage) -> None:
    done = run_command(stage, "top", "--url", "redis://127.0.0.1:1/0", "--timeout", "0.5")
    assert done.returncode == 4
    assert done.stderr.startswith("error:")
