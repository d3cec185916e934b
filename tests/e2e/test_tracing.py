"""The trace of a run whose process is killed three times, with real processes."""

from __future__ import annotations

import json
import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from coordinator import Client, Status
from tests.e2e.processes import Stage, stop, wait_for_start
from tests.waiting import wait_until


@pytest.mark.matrix("more cases with real processes")
def test_run_that_is_killed_three_times_has_one_root_and_four_linked_attempts(stage: Stage, client: Client) -> None:
    fleet = stage._start("workers", "start", "tests.e2e.traced_app:runs", "--lease", "5")
    handle = client.enqueue("traced")
    for number in (1, 2, 3):
        wait_for_start(stage, number)
        os.kill(stage.events("start")[-1].pid, signal.SIGKILL)
    wait_for_start(stage, 4)
    stage.open_gate("enough")
    assert handle.result(timeout=60) == 4
    spans: list[dict[str, Any]] = []

    def exported() -> bool:
        spans[:] = [json.loads(line) for line in Path(f"{stage.journal}.spans").read_text().splitlines()]
        return any(span["name"].startswith("run ") for span in spans)

    wait_until(exported, "the root is exported")
    (root,) = [span for span in spans if span["name"] == "run default:traced"]
    attempts = [span for span in spans if span["name"] == "process default:traced"]
    attempts.sort(key=lambda span: int(span["attributes"]["runs.attempt"]))
    assert [span["attributes"]["runs.outcome"] for span in attempts] == ["lost", "lost", "lost", "completed"]
    assert {span["parent_id"] for span in attempts} == {root["context"]["span_id"]}
    assert {span["context"]["trace_id"] for span in spans} == {root["context"]["trace_id"]}
    for before, after in pairwise(attempts):
        assert [link["context"]["span_id"] for link in after["links"]] == [before["context"]["span_id"]]
    phases = {span["name"]: span["parent_id"] for span in spans if span["name"].startswith("phase ")}
    assert phases == {
        f"phase phase {number}": span["context"]["span_id"] for number, span in enumerate(attempts, 1)
    }  # the phases of the lost attempts were exported before the kills
    assert stop(fleet) == 0


def test_run_that_is_cancelled_while_it_is_queued_is_reported_by_one_of_two_coordinators(
    stage: Stage, client: Client
) -> None:
    coordinators = [stage._start("python", "-m", "tests.e2e.traced_coordinator", "start") for _ in range(2)]
    spans = Path(f"{stage.journal}.spans")

    def exported() -> list[str]:
        lines = spans.read_text().splitlines() if spans.exists() else []
        return [json.loads(line)["attributes"]["messaging.message.id"] for line in lines]

    def noticed() -> bool:
        """Cancel one more run until one is reported: before the coordinators have started, such ends are not noted."""
        assert client.enqueue("traced").cancel() is Status.CANCELLED
        return bool(exported())

    wait_until(noticed, "the first span of a coordinator")
    later = [client.enqueue("traced") for _ in range(20)]
    for handle in later:
        handle.cancel()
    expected = {handle.id for handle in later}
    wait_until(lambda: expected <= set(exported()), "a root span for each run")
    found = exported()
    assert len(found) == len(set(found)), "a run was reported twice"
    assert [stop(one) for one in coordinators] == [0, 0]
