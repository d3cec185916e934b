"""Budgets with real processes: kills of workers during parallel reservations, and a wait for a grant over a roll."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from coordinator import Client, Handle, Status
from tests.e2e.budget_app import LIMIT, RESERVED
from tests.e2e.processes import Stage, children
from tests.e2e.test_wait_kills import kill_a_worker
from tests.waiting import wait_until

PARENTS = int(os.environ.get("RUNS_TEST_PARENTS", "2"))
KILLS = int(os.environ.get("RUNS_TEST_KILLS", "4"))
CHILDREN = 3
OPTIONS = ["--processes", "2", "--concurrency", "10", "--lease", "5"]


@pytest.mark.matrix("more cases of a promise")
@pytest.mark.timeout(180 + 20 * KILLS)
def test_parallel_reservations_stay_within_the_budget_while_workers_are_killed(stage: Stage, client: Client) -> None:
    stage.coordinator()
    fleet = stage._start("workers", "start", "tests.e2e.budget_app:runs", *OPTIONS)
    parents: list[Handle[float]] = [client.enqueue("parent", {"count": CHILDREN}) for _ in range(PARENTS)]
    calls = PARENTS * CHILDREN * int(LIMIT / 0.01)
    for kill in range(1, KILLS + 1):
        enough = calls * kill // (KILLS + 2)
        wait_until(lambda: len(stage.events("paid")) >= enough, "some calls to be paid", timeout=90)  # noqa: B023
        kill_a_worker(fleet.pid)
    assert Counter(handle.wait(150) for handle in parents) == {Status.COMPLETED: PARENTS}

    paid = Counter(event.run for event in stage.events("paid"))
    assert len(paid) == PARENTS * CHILDREN
    spent = {id: client.handle(id).view().spent for id in paid}
    for id, one in spent.items():
        assert one is not None
        assert one.usd is not None
        assert LIMIT - RESERVED < one.usd <= LIMIT, "the run ends when no reservation fits, and never exceeds the limit"
        # What a killed process had not reported is not counted, and nothing is counted twice.
        assert one.requests is not None
        assert one.requests <= paid[id]
        assert one.usd == pytest.approx(one.requests * 0.01)
    by_parent: Counter[str] = Counter()
    for id, one in spent.items():
        assert one is not None
        by_parent[client.handle(id).view().parent or ""] += one.requests or 0
    totals = {handle.id: handle.view().spent for handle in parents}
    assert {id: total and total.requests for id, total in totals.items()} == dict(by_parent), "children count once"


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.timeout(240)
def test_run_over_its_budget_waits_over_a_roll_and_a_grant_continues_it_at_the_same_line(
    stage: Stage, client: Client
) -> None:
    stage.coordinator()
    fleet = stage._start("workers", "start", "tests.e2e.budget_app:runs", *OPTIONS)
    handle: Handle[int] = client.enqueue("asker", {"count": 6})
    wait_until(lambda: handle.view().status is Status.WAITING, "the run waits for a grant", timeout=90)
    stage.run("coordinator", "show", handle.id)
    assert "waits for a grant, because its budget is spent" in stage.logs()
    before = set(children(fleet.pid))
    os.kill(fleet.pid, signal.SIGHUP)  # a roll
    wait_until(lambda: "roll finished: 2 of 2 replaced" in stage.logs(), "the roll is over", timeout=120)
    assert not before & set(children(fleet.pid))
    assert handle.view().status is Status.WAITING
    stage.run("coordinator", "grant", handle.id, "--requests", "10")
    assert handle.result(timeout=60) == 6
    assert [event.number for event in stage.events("asked")] == list(range(6)), "no question is asked again"
