"""Schedules with SIGKILL: of three coordinators, one is killed every other second; each fire time fires exactly once."""

from __future__ import annotations

import os
import subprocess
import time
from collections import defaultdict
from itertools import cycle

import pytest

from coordinator import Client, RunView
from coordinator.store.script import read
from tests.e2e.processes import Stage
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("more cases with real processes")

SCHEDULES = int(os.environ.get("RUNS_TEST_SCHEDULES", "10"))
SECONDS = float(os.environ.get("RUNS_TEST_SECONDS", "12"))
KILL_EVERY = float(os.environ.get("RUNS_TEST_KILL_EVERY", "2"))
DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"


def fire_time(run: RunView) -> int:
    """Return the fire time in seconds, taken from the id of the run."""
    number = 0
    for digit in run.id[:10]:
        number = number * 32 + DIGITS.index(digit)
    return number // 1000


@pytest.mark.timeout(60 + 4 * SECONDS)
def test_coordinators_killed_in_turn_fire_each_second_once(stage: Stage, client: Client) -> None:
    names = [f"s{n}" for n in range(SCHEDULES)]
    for name in names:
        client.schedule(name, "every 1s", "report", {"number": 1}, overlap="allow")
    coordinators = [stage.coordinator() for _ in range(3)]
    wait_until(lambda: all(view.fired for view in client.schedules()), "every schedule to have fired")
    _kill_in_turn(stage, coordinators, SECONDS)
    for process in coordinators:
        process.terminate()
        process.wait(30)
    times: dict[str, list[int]] = defaultdict(list)
    for run in client.list(kind="report", limit=10_000):
        times[run.meta["schedule"]].append(fire_time(run))
    for view in client.schedules():
        found = sorted(times[view.name])
        assert len(found) >= SECONDS - 5, "it went on all the time"
        assert found == list(range(found[0], found[0] + len(found))), "no second is left out or repeated"
        assert view.fired == len(found), "each was fired by one coordinator"


def _kill_in_turn(stage: Stage, coordinators: list[subprocess.Popen[bytes]], seconds: float) -> None:
    """Kill one coordinator at a time and start another in its place. The others continue."""
    begun = time.monotonic()
    for n, place in enumerate(cycle(range(3)), start=1):
        if n * KILL_EVERY > seconds:
            wait_until(lambda: time.monotonic() > begun + seconds, "the end of the time", timeout=seconds)
            return
        wait_until(lambda: time.monotonic() > begun + n * KILL_EVERY, "the next kill", timeout=60)  # noqa: B023  # The function is called immediately.
        coordinators[place].kill()
        coordinators[place].wait()
        coordinators[place] = stage.coordinator()


def test_schedule_commands_set_list_pause_and_remove(stage: Stage, client: Client) -> None:
    def run(*words: str) -> tuple[int, str]:
        log = stage.directory / f"log-{len(stage.started)}"
        process = stage._start("coordinator", "schedule", *words)
        return process.wait(30), log.read_text()

    assert run("list") == (0, "no schedules\n")
    nightly = ("set", "nightly", "0 2 * * *", "report", "topic=tides", "pages:=3", "--tz", "Europe/Berlin")
    assert run(*nightly) == (0, "schedule nightly is set: 0 2 * * *, report\n")
    assert run("set", "often", "every 90s", "report", "--overlap", "cancel", "--catch-up", "none")[0] == 0
    first, second = client.schedules()
    assert (first.name, first.when, first.tz, first.inputs) == (
        "nightly", "0 2 * * *", "Europe/Berlin", {"topic": "tides", "pages": 3},
    )  # fmt: skip
    assert (second.when, second.overlap, second.catch_up) == ("every 90 s", "cancel", "none")
    assert run("pause", "often") == (0, "schedule often is paused\n")
    code, shown = run("list")
    assert code == 0
    assert "0 2 * * * Europe/Berlin" in shown
    assert "paused" in shown
    assert run("unpause", "often")[0] == 0
    assert run("remove", "often")[0] == 0
    code, said = run("remove", "often")
    assert (code, said.startswith("error: there is no schedule often")) == (3, True)
    for words in (("set", "x", "every so often", "report"), ("set", "x", "0 2 * * *", "report", "--tz", "Mars"), ()):
        assert run(*words)[0] == 2, words
    code, as_json = run("list", "--json")
    assert (code, '"trouble"' in as_json) == (0, True)


def test_schedule_with_a_problem_is_reported_with_exit_code_1(stage: Stage, client: Client) -> None:
    client.schedule("good", 30, "report")
    client.schedule("bad", 30, "report")
    wire = client._open().wire
    key = f"{{{stage.namespace}:0}}:schedule:bad"
    wire.ask([read(f"{{{stage.namespace}:0}}", "HSET", key, "rules", "garbled")])
    log = stage.directory / f"log-{len(stage.started)}"
    process = stage._start("coordinator", "schedule", "list")
    assert process.wait(30) == 1
    assert "its record can't be read" in log.read_text()
