"""Runs that are stuck because a worker or a coordinator is missing, or because they are paused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from coordinator.model.run import AttemptRecord, Counters, Failure, HeldRun, RunView, Status, Waiting, WaitingChildren
from coordinator.views.namespace_view import CoordinatorView, GroupView, Overview, WorkerView
from coordinator.views.stuck_runs import find_blocked_routes, find_closed_kinds, find_stuck_runs

NOW = 1_700_000_000.0


def view(status: Status, **more: Any) -> RunView:
    plain = RunView(
        id="r", kind="k", queue="q", status=status, inputs={}, meta={}, cancelling=False, why="why", counters=Counters(), schema=0,
        iteration=0, phases=(), note=None, error=None, owner=None, cause=None, created=datetime.fromtimestamp(NOW, UTC), due=None,
        started=None, ended=None, checkpointed=None, parent=None, key=None,
    )  # fmt: skip
    return replace(plain, **more)


WORKER = WorkerView("w1", "h", 1, "f", "c", 1, 1, 15.0, 1.0, False, False, ("q:k@0",))
WELL = Overview("n", 1, "local", {}, {"q:k@0": 3}, (), 0, (WORKER,), (CoordinatorView("c1", 0.5),))
ALONE = replace(WELL, workers=(), coordinators=())


def whys(views: RunView, overview: Overview) -> list[str]:
    return [one.why for one in find_stuck_runs([views], overview, NOW)]


def at(ago: float) -> datetime:
    return datetime.fromtimestamp(NOW - ago, UTC)


@pytest.mark.parametrize(
    "sound",
    [
        view(Status.QUEUED),
        view(Status.QUEUED, group="g", held=HeldRun(3, 1, 1)),
        view(Status.DELAYED, due=at(-100)),
        view(Status.DELAYED, due=at(1)),
        view(Status.RUNNING, owner="w1"),
        view(Status.WAITING, waiting=Waiting(("t",), at(100), None)),
        view(Status.WAITING, waiting=Waiting(("t",), at(100), at(-1))),
        view(Status.WAITING, waiting=Waiting((), at(100), at(1))),
        view(Status.COMPLETED),
        view(Status.DEAD),
    ],
)
def test_run_that_waits_behind_others_is_not_stuck(sound: RunView) -> None:
    assert whys(sound, WELL) == []


def test_run_that_no_live_worker_can_take_is_stuck() -> None:
    for overview in (ALONE, replace(WELL, workers=(replace(WORKER, routes=("q:other@0",)),))):
        assert whys(view(Status.QUEUED), overview) == ["why"]
        assert find_blocked_routes(overview) == [("q", "k")]


@pytest.mark.parametrize("paused", ["queue:q", "kind:k"])
def test_paused_run_is_stuck(paused: str) -> None:
    overview = replace(WELL, paused=(paused,))
    assert whys(view(Status.QUEUED), overview) == ["why"]
    assert find_blocked_routes(overview) == [("q", "k")]


@pytest.mark.parametrize("at_once", [0, None])
def test_run_of_a_group_that_admits_none_is_stuck(at_once: int | None) -> None:
    overview = replace(WELL, groups=(GroupView("k", "g", 1, 0, at_once), GroupView("other", "g", 1, 1, 1)))
    assert whys(view(Status.QUEUED, group="g", held=HeldRun(0, 0, at_once)), overview) == ["why"]
    assert find_closed_kinds(overview) == ["k"]


def test_served_route_is_not_examined() -> None:
    assert find_blocked_routes(WELL) == []


def test_overdue_run_is_stuck_and_the_missing_coordinator_is_named() -> None:
    late = view(Status.DELAYED, due=at(60))
    assert whys(late, WELL) == ["it was due 60 s ago and has not been enqueued"]
    assert whys(late, ALONE) == ["it was due 60 s ago and has not been enqueued: no coordinator is running"]


def test_run_that_is_not_woken_at_its_time_is_stuck() -> None:
    late = view(Status.WAITING, waiting=Waiting(("t",), at(100), at(60)))
    assert whys(late, WELL) == ["its wait ended 60 s ago and it has not been woken"]
    assert whys(late, ALONE) == ["its wait ended 60 s ago and it has not been woken: no coordinator is running"]


def test_run_whose_wait_can_not_be_read_is_stuck() -> None:
    assert whys(view(Status.WAITING), WELL) == ["why"]


def test_run_whose_worker_is_gone_is_stuck() -> None:
    running = view(Status.RUNNING, owner="w1")
    silent = replace(WELL, workers=(replace(WORKER, lease_age=30.0),))
    assert whys(running, silent) == ["its worker sent its last heartbeat 30 s ago, and the run is not recovered yet"]
    assert whys(running, ALONE) == ["its worker w1 has no lease: 'coordinator doctor' shows more"]


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.FAILED, Status.RUNNING])
def test_run_whose_handler_does_not_stop_is_stuck(status: Status) -> None:
    overview = replace(WELL, workers=(replace(WORKER, stuck=("r",)),))
    (why,) = whys(view(status, owner="w1"), overview)
    assert (
        why
        == "a handler of it does not stop and occupies a slot of worker process 1 on h until that process is replaced"
    )


def attempt(how: str, life: int = 1) -> AttemptRecord:
    return AttemptRecord(how, life, 1, None, at(60), None, 0, 0, 0, "w1", "c", "", None)


def test_run_whose_handler_could_not_be_started_again_and_again_is_stuck() -> None:
    error = Failure("BadInputs", "the inputs lack 'n'")
    story = (attempt("recovered"), *[attempt("rejected")] * 3)
    (why,) = whys(view(Status.DELAYED, due=at(-100), story=story, error=error), WELL)
    assert why == "its handler could not be started in its last 3 attempts: BadInputs: the inputs lack 'n'"


@pytest.mark.parametrize(
    "story",
    [
        [attempt("rejected")] * 2,
        [*[attempt("rejected")] * 3, attempt("recovered")],
        [*[attempt("rejected", life=0)] * 2, attempt("rejected")],
    ],
)
def test_run_that_may_still_start_is_not_stuck(story: list[AttemptRecord]) -> None:
    assert whys(view(Status.DELAYED, due=at(-100), story=tuple(story)), WELL) == []


@pytest.mark.parametrize(
    ("ended", "due", "stuck"),
    [(1, -60, False), (2, 1, False), (2, 60, True), (2, None, True)],
    ids=["a child is open", "just ended", "ended long ago", "no coordinator would look at it"],
)
def test_parent_whose_children_have_ended_is_stuck_if_it_is_not_woken(ended: int, due: int | None, stuck: bool) -> None:
    children = WaitingChildren(2, ended, 2, None if due is None else at(due), ())
    found = whys(view(Status.WAITING, waiting=Waiting((), at(100), None, children)), WELL)
    assert found == (["2 of its 2 children have ended, but it has not been woken"] if stuck else [])
