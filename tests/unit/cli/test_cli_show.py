"""How the commands show runs and workers."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from coordinator.model.policies.rates import RateLimit
from coordinator.model.run import AttemptRecord, Counters, Failure, Note, RunView, Status, Waiting
from coordinator.views.formatting import format_duration
from coordinator.views.json_data import to_json_data
from coordinator.views.namespace_display import status_summary, workers_overview, workers_table
from coordinator.views.namespace_view import CoordinatorView, GroupView, Overview, WorkerView
from coordinator.views.run_display import run_details, runs_table, suggest_kind
from coordinator.views.run_view import phase_label

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUN = RunView(
    id="0123456789abcdefghjk-00", kind="research", queue="default", status=Status.RUNNING, inputs={"topic": "tides"},
    meta={}, cancelling=False, why="attempt 1 on worker w-1", counters=Counters(attempt=1), schema=1, iteration=3,
    phases=(), note=Note("reading", 3, 10), error=None, owner="w-1", cause=None, created=NOW, due=None, started=NOW,
    ended=None, checkpointed=NOW, parent=None, key=None,
)  # fmt: skip
WORKER = WorkerView("w-1", "host", 7, "default", "v1", 5, 2, 15.0, 1.0, False, False, ("default:research@0",))


def render(*parts: Any, width: int = 100) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False)
    for part in parts:
        console.print(part)
    return stream.getvalue()


def test_details_list_effects_and_limit_their_number() -> None:
    shown = render(run_details(replace(RUN, effects={"charge": "begun", "mail": "done"}), NOW.timestamp()))
    assert "charge (begun), mail (done)" in shown
    many = replace(RUN, effects={f"e{number}": "done" for number in range(1060)})
    assert "and 1,010 more" in render(run_details(many, NOW.timestamp()), width=1000)
    assert "effects" not in render(run_details(RUN, NOW.timestamp()))
    assert to_json_data(many)["effects"]["e7"] == "done"


@pytest.mark.parametrize("width", [80, 60, 45])
def test_ids_are_never_truncated(width: int) -> None:
    long = replace(RUN, why="x" * 300, note=None)
    assert RUN.id in render(runs_table([long, RUN], NOW.timestamp()), width=width)


def test_a_run_is_one_line_in_a_table() -> None:
    long = replace(RUN, status=Status.FAILED, why="ValueError: first\nsecond " + "x" * 300)
    assert len(render(runs_table([long], NOW.timestamp())).splitlines()) == 2


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, "reading (3 of 10)"),
        ({"status": Status.QUEUED}, "attempt 1 on worker w-1"),
        ({"status": Status.COMPLETED, "ended": NOW.replace(minute=5)}, "took 5 min"),
        ({"status": Status.DELAYED, "due": NOW.replace(second=30), "why": "delayed until x, after ValueError: y"},
         "due in 30 s, after ValueError: y"),
        ({"status": Status.WAITING, "waiting": Waiting(("a", "b"), NOW - timedelta(hours=3), NOW + timedelta(days=4))},
         "signal 'a' or 'b', waited 3 h, 4 d left"),
        ({"status": Status.WAITING, "waiting": Waiting(("a",), NOW - timedelta(seconds=30), None)},
         "signal 'a', waited 30 s"),
        ({"status": Status.WAITING, "waiting": Waiting((), NOW, NOW + timedelta(minutes=9))}, "sleeps, 9 min left"),
        ({"status": Status.WAITING, "waiting": Waiting((), NOW, NOW), "why": "sleeps until x"}, "sleeps until x"),
        ({"status": Status.WAITING, "why": "can't be read"}, "can't be read"),
        ({"status": Status.DELAYED, "due": NOW, "why": "delayed until x"}, "due now"),
        ({"status": Status.DELAYED, "due": NOW - timedelta(minutes=5), "why": "delayed until x, after ValueError: y"},
         "overdue for 5 min, after ValueError: y"),
    ],
)  # fmt: skip
def test_table_summarises_what_a_run_is_about(changed: dict[str, Any], text: str) -> None:
    assert text in render(runs_table([replace(RUN, **changed)], NOW.timestamp()), width=120)


def test_error_is_shown_with_its_traceback_and_without_control_characters() -> None:
    error = Failure("ValueError", "no \x1b[2J[red]tides[/red]", "Traceback:\n  line\x07")
    view = replace(RUN, status=Status.DEAD, error=error, why="struck out")
    text = render(run_details(view, NOW.timestamp()))
    assert "no \\x1b[2J[red]tides[/red]" in text
    assert text.endswith("Traceback:\n  line\\x07\n")


def test_used_time_of_a_run_is_shown_with_its_extensions() -> None:
    view = replace(RUN, used=30.0, extensions=1, extended=12.0)
    text = render(run_details(view, NOW.timestamp() + 20))
    assert "50 s in all attempts; deadline extended once, by 12 s" in text
    assert "time used" not in render(run_details(RUN, NOW.timestamp()))


def test_views_and_other_values_become_json() -> None:
    value = {"run": RUN, "worker": WORKER, "odd": (b"\xff", NOW, {Status.DEAD: 1}, None)}
    plain = json.loads(json.dumps(to_json_data(value)))
    assert plain["odd"] == ["/w==", "2026-01-01T00:00:00+00:00", {"dead": 1}, None]
    assert (plain["run"]["attempt"], plain["run"]["status"], plain["run"]["ended"]) == (1, "running", None)


def test_process_is_one_row_for_all_its_partitions() -> None:
    others = [replace(WORKER, id=f"w-{n}", running=1) for n in (2, 3)]
    lost = replace(WORKER, id="w-4", lease_age=20.0)
    _, first, second = render(workers_table([WORKER, *others, lost])).splitlines()
    assert "w-1 and 2 more" in first
    assert " 4/5 " in first
    assert "lease expired" in second


def test_runs_beyond_the_slots_of_a_process_are_finishing() -> None:
    # The two workers are one process with 5 slots in two partitions. It owns 7 runs.
    process = (replace(WORKER, running=4), replace(WORKER, id="w-2", running=3))
    _, line = render(workers_table(process)).splitlines()
    assert " 5/5 " in line
    assert "working, 2 finishing" in line
    other = replace(WORKER, id="w-3", pid=8, running=1)
    well = replace(OVERVIEW, workers=(*process, other), coordinators=(CoordinatorView("c-1", 0.5),))
    assert "2 workers with 10 slots (6 busy, 2 finishing), 1 coordinator" in render(status_summary(well, "redis://h"))


OVERVIEW = Overview("runs", 1, "local", {Status.QUEUED: 2}, {"default:research@0": 2}, (), 0, (WORKER,), ())


def test_status_lists_what_needs_attention() -> None:
    assert "no coordinator is running" in render(status_summary(OVERVIEW, "redis://h"))
    well = replace(OVERVIEW, coordinators=(CoordinatorView("c-1", 0.5),))
    assert render(status_summary(well, "redis://h")).endswith("1 worker with 5 slots (2 busy), 1 coordinator\n")
    badly = replace(
        well, counts={Status.DEAD: 3}, workers=(replace(WORKER, lease_age=99.0),), aside=1, paused=("kind:x",)
    )
    text = render(status_summary(badly, "redis://h"))
    for sentence in (
        "3 runs set aside as dead",
        "1 worker has an expired lease and owns 2 runs",
        "paused: kind x",
        "no worker\n",
    ):
        assert sentence in text


def test_kind_without_any_worker_may_be_a_typo() -> None:
    assert suggest_kind("reserch", [WORKER]).startswith("did you mean 'research'?")
    assert suggest_kind("research", [WORKER]) == ""
    assert suggest_kind("zzz", [WORKER]) == ""
    assert suggest_kind("reserch", [replace(WORKER, lease_age=99.0)]) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 ms"),
        (0.0123, "12 ms"),
        (0.0949, "95 ms"),
        (0.1, "0.1 s"),
        (9.94, "9.9 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7200, "2 h"),
        (172_800, "2 d"),
    ],
)
def test_duration_has_few_digits(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_time_of_a_completed_run_includes_all_its_attempts() -> None:
    ended = replace(RUN, status=Status.COMPLETED, used=20.0, ended=NOW + timedelta(seconds=5), note=None)
    assert "took 25 s" in render(runs_table([ended], NOW.timestamp()), width=150)
    assert "25 s in all attempts" in render(run_details(ended, NOW.timestamp() + 1000))


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("phase:-:outline#0", "outline"),
        ("phase:-:outline#1", "outline#1"),
        ("phase:3:search#0", "turn 3: search"),
        ("phase:-:a:b#c#0", "a:b#c"),
    ],
)
def test_phase_is_named_as_in_its_handler(field: str, name: str) -> None:
    assert phase_label(field) == name


def test_names_and_ids_are_never_read_as_markup_and_never_rewrite_the_terminal() -> None:
    worst = "[/x]\x1b[2J\x9b1m\u202etxt\r"
    overview = replace(OVERVIEW, queues={f"{worst}:{worst}@0": 1}, paused=(f"kind:{worst}",))
    worker = replace(WORKER, id=worst, host=worst, fleet=worst, code=worst)
    view = replace(RUN, id=worst, kind=worst, queue=worst, owner=worst, key=worst, parent=worst, code=worst)
    view = replace(view, inputs={worst: [worst]}, meta={worst: worst}, note=Note(worst, 1, 2), unreadable=worst)
    for shown_part in (
        status_summary(overview, f"redis://{worst}"),
        workers_table([worker]),
        runs_table([view], NOW.timestamp()),
        run_details(view, NOW.timestamp(), suggest_kind(view.kind, [worker])),
    ):
        text = render(shown_part)
        assert "[/x]\\x1b[2J\\x9b1m\\u202e" in text or "[/x]\\u001b[2J" in text
        assert not [c for c in text if not c.isprintable() and c != "\n"]


def test_rejected_attempts_are_not_shown_as_recoveries() -> None:
    def ended(how: str) -> AttemptRecord:
        return AttemptRecord(how, 1, 1, NOW, NOW, None, 0, 0, 0, "w-1", "c1", "", None)

    counters = Counters(life=1, attempt=4, recoveries=3)
    view = replace(RUN, counters=counters, story=(ended("rejected"), ended("rejected"), ended("recovered")))
    text = render(run_details(view, NOW.timestamp()))
    assert "4, 1 recovery, 2 rejections" in text
    elsewhere = replace(view, counters=replace(counters, recoveries=1))  # a server that counts only lost workers
    assert "4, 1 recovery, 2 rejections" in render(run_details(elsewhere, NOW.timestamp()))


def test_tables_are_readable_in_80_columns() -> None:
    view = replace(RUN, id="01m7m2qa992e485k3221-00", kind="research", why="x" * 200, status=Status.QUEUED)
    lines = render(runs_table([view], NOW.timestamp()), width=80).splitlines()
    assert len(lines) == 2
    assert all(len(line.rstrip()) <= 80 for line in lines)
    assert lines[1].startswith("01m7m2qa992e485k3221-00  research")


def test_status_names_the_limits_for_which_calls_wait() -> None:
    rates = (
        RateLimit("search", "10/s", 20, 3, held=3, waiting=2, wait=40.0),
        RateLimit("model", None, None, 1, held=1, waiting=1),
        RateLimit("idle", "1/s", 1, None, held=1),
    )
    text = " ".join(render(status_summary(replace(OVERVIEW, rates=rates), "redis://h")).split())
    assert (
        "2 calls wait for limit 'search' (10/s, burst 20, 3 calls at once), 3 under way; a new call waits about 40 s"
        in text
    )
    assert "1 call waits for limit 'model' (1 call at once), 1 under way" in text
    assert "idle" not in text


def test_handler_that_does_not_stop_is_named_below_the_workers() -> None:
    worker = replace(WORKER, stuck=("01aa-00", "01bb-00"))
    for part in (
        workers_overview([WORKER, worker]),
        status_summary(
            Overview("n", 1, "local", {}, {}, (), 0, (worker,), (CoordinatorView("c", 1.0),)), "redis://here"
        ),
    ):
        text = " ".join(render(part).split())
        for run in worker.stuck:
            assert f"worker process 7 on host: the handler of run {run} does not stop; it occupies a slot" in text


def test_details_of_a_waiting_run_have_its_times_and_its_signals() -> None:
    waiting = Waiting(("approval",), NOW - timedelta(hours=3), NOW + timedelta(days=4))
    view = replace(RUN, status=Status.WAITING, owner=None, waiting=waiting, signals={"chat": 1200, "other": 1})
    text = render(run_details(view, NOW.timestamp()))
    assert "\nstatus       waiting  waits for signal 'approval'" + " " * 5 in text, "the times have lines of their own"
    assert "(3 h ago)" in text
    assert "(in 4 d)" in text
    assert "signals      not received yet: 1,200 chat, 1 other" in text
    assert to_json_data(view)["waiting"]["topics"] == ["approval"]


@pytest.mark.parametrize(
    ("woken", "text"),
    [
        ("signal approval", "by signal 'approval'"),
        ("signal coordinator.grant", "by a grant"),
        ("time", "because its time had come"),
        ("children", "because its children had ended"),
        ("grant x", "by grant x"),
    ],
)
def test_details_say_what_woke_a_run(woken: str, text: str) -> None:
    assert f"\nwoken       {text}" in render(run_details(replace(RUN, cause="wake", woken=woken), NOW.timestamp()))


def test_runs_show_the_limit_that_a_call_waits_for_before_the_note() -> None:
    why = "attempt 1 on worker w1; a call waits for limit 'api' since 2026-01-01T00:00:00.000+00:00"
    view = replace(RUN, status=Status.RUNNING, why=why, note=Note("page 3"))
    text = " ".join(render(runs_table([view], NOW.timestamp()), width=300).split())
    assert "a call waits for limit 'api' since 2026-01-01T00:00:00.000+00:00; page 3" in text
    text = " ".join(
        render(runs_table([replace(view, why="attempt 1 on worker w1")], NOW.timestamp()), width=300).split()
    )
    assert text.endswith("page 3")


def test_status_says_if_only_some_groups_wait_for_their_rate() -> None:
    full, paced = GroupView("k", "full", 2, 1, 1, "1/h", 9.0), GroupView("k", "paced", 1, 0, 1, "1/h", 5.0)

    def sentence(*groups: GroupView) -> str:
        return " ".join(render(status_summary(replace(OVERVIEW, groups=groups), "redis://h"), width=300).split())

    assert "2 queued runs of kind k wait for a place in their groups" in sentence(full)
    assert "1 queued run of kind k waits for a start in its group" in sentence(paced)
    assert "3 queued runs of kind k wait for a place or a start in their groups" in sentence(full, paced)
