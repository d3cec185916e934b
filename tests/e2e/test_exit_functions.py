"""Processes export the spans and metrics that they hold, and call the functions of `atexit`, before they end."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from coordinator import Client
from coordinator.store.keys import Keys
from tests.e2e.processes import Stage, children, stop, wait_for_start
from tests.waiting import wait_until

APP = "tests.e2e.exiting_app:runs"


def spans(stage: Stage) -> Counter[tuple[str, str]]:
    """Count the exported spans of runs and attempts by name and outcome."""
    found = [json.loads(line) for line in _lines(stage, "spans")]
    outcomes = [(span["name"], span["attributes"].get("runs.outcome")) for span in found]
    return Counter(
        (name, outcome) for name, outcome in outcomes if outcome
    )  # a slow save has a span without an outcome


def metrics(stage: Stage, name: str) -> dict[tuple[str, ...], Any]:
    """Return the exported values of a metric by the values of its labels."""
    found = [json.loads(line) for line in _lines(stage, "metrics")]
    return {tuple(labels.values()): value for known, labels, value in found if known == name}


def _lines(stage: Stage, suffix: str) -> list[str]:
    path = Path(f"{stage.journal}.{suffix}")
    return path.read_text().splitlines() if path.exists() else []


def test_worker_that_is_stopped_exports_its_spans_and_metrics(stage: Stage, client: Client) -> None:
    fleet = stage._start("workers", "start", APP)
    handles = [client.enqueue("quick") for _ in range(3)]
    assert [handle.result(timeout=60) for handle in handles] == [1, 1, 1]
    client.enqueue("slow")
    wait_for_start(stage)
    pids = {str(fleet.pid), *map(str, children(fleet.pid))}
    assert spans(stage) == {}
    assert stop(fleet) == 0
    assert spans(stage) == {
        ("run default:quick", "completed"): 3,
        ("process default:quick", "completed"): 3,
        ("process default:slow", "released"): 1,
    }
    assert metrics(stage, "runs_attempts") == {("quick", "completed"): 3, ("slow", "released"): 1}
    assert set(_lines(stage, "goodbyes")) == pids


@pytest.mark.parametrize("embedded", [False, True])
def test_coordinator_that_is_stopped_exports_its_spans_and_metrics(
    stage: Stage, client: Client, *, embedded: bool
) -> None:
    if embedded:
        process = stage._start("workers", "start", APP, "--coordinator", "--queues", "other")
    else:
        process = stage._start("python", "-m", "tests.e2e.exiting_coordinator", "start")
    unreported, ends = Keys(stage.namespace, 0).unreported(), 0

    def noticed() -> bool:
        """Cancel one more run. Before the coordinator has started, such ends are not noted."""
        nonlocal ends
        client.enqueue("quick").cancel()
        ends += 1
        return bool(stage.place.admin.exists(unreported))

    wait_until(noticed, "the coordinator asks for endings")
    handles = [client.enqueue("quick") for _ in range(5)]
    for handle in handles:
        handle.cancel()
    wait_until(lambda: stage.place.admin.llen(unreported) == 1, "the coordinator has taken all endings")
    assert stop(process) == 0
    found = spans(stage)
    assert set(found) == {("run default:quick", "cancelled")}
    assert 5 <= found.total() <= 5 + ends
    assert metrics(stage, "runs_ended") == {("quick", "cancelled"): found.total()}


@pytest.mark.parametrize("hurried", [False, True])
def test_exit_function_that_hangs_delays_the_exit_by_a_limited_time(
    stage: Stage, client: Client, monkeypatch: pytest.MonkeyPatch, *, hurried: bool
) -> None:
    monkeypatch.setenv("HANGS", "yes")
    fleet = stage._start("workers", "start", APP, "--grace", "600")
    client.enqueue("stubborn" if hurried else "slow")
    wait_for_start(stage)
    (child,) = children(fleet.pid)
    fleet.send_signal(signal.SIGTERM)
    if hurried:
        wait_until(lambda: "draining 1 run" in stage.logs(), "the first signal has arrived")
        fleet.send_signal(signal.SIGTERM)
    assert fleet.wait(60) == 0, "the exit code is that of the drain"
    (line,) = [line for line in stage.logs().splitlines() if f"process {child} ends" in line]
    assert f"for {1 if hurried else 5} s" in line
    assert "say_goodbye" in line, "the log names the function that hangs"
    assert _lines(stage, "goodbyes") == []
