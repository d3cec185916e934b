"""The board: queues, processes, rates and its frame for a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from coordinator.feed.board import Board, Rates
from coordinator.feed.depths import POINTS, Depths
from coordinator.feed.display import board_frame, sparkline
from coordinator.feed.events import RunEvent, RunLook
from coordinator.model.run import Status
from coordinator.views.namespace_view import CoordinatorView, Overview, WorkerView
from coordinator.web.page.board_json import board_data


def event(at: float, kind: str = "greet", status: Status = Status.COMPLETED) -> RunEvent:
    return RunEvent(at, "01m7n0hgy71n442j4yxy-00", kind, "default", status, 1, "w1")


def make_board(kind: str = "greet") -> Board:
    route = f"default:{kind}@0"
    worker = WorkerView("w1", "host", 7, "default", "v1", 4, 1, 10.0, 1.0, False, False, (route,), 2**27)
    counts = dict.fromkeys(Status, 0) | {Status.QUEUED: 3, Status.RUNNING: 1}
    overview = Overview("runs", 1, "local", counts, {route: 3}, (), 0, (worker,), (CoordinatorView("c", 0.5),))
    look = RunLook("a", Status.RUNNING, kind, "default", 1, 1, "w1", 900.0, 950.0, 0.0, "", "", False)
    return Board(overview, 1000.0, {route: 990.0}, {"w1": ["a", "b"]}, {"a": look})


def frame(board: Board, width: int = 80, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, markup=False, highlight=False, record=True, force_terminal=False)
    with console.capture() as captured:
        console.print(board_frame(board, "redis://localhost", width, height))
    return captured.get().splitlines()


def test_queue_row_has_depth_age_and_workers() -> None:
    (row,) = make_board().queues()
    assert (row.queued, row.running, row.age, row.workers, row.paused) == (3, 1, 10.0, 1, False)


def test_queue_row_has_the_highest_depth_and_age_of_each_step() -> None:
    board = make_board()
    route = "default:greet@0"
    assert board.overview is not None
    for now, queued in ((999.0, 5), (1000.0, 2), (1003.0, 7), (1010.0, 0)):
        board.now, board.overview = now, replace(board.overview, queues={route: queued})
        board.measure_queues()
    (row,) = board.queues()
    assert (row.depths, row.ages) == ((5, 7, 0, 0), (10, 13, 0, 0))


def test_plots_have_at_most_two_minutes() -> None:
    depths = Depths()
    for second in range(0, 600, 3):
        depths.add(float(second), {("default", "greet"): second}, {})
    row, ages = depths.history(600.0, ("default", "greet"))
    assert (len(row), row[0], row[-2], row[-1], set(ages)) == (POINTS, 483, 597, 0, {0})
    assert depths.history(600.0, ("default", "other"))[0] == [0] * POINTS


def test_process_row_has_its_runs_and_those_that_the_feed_does_not_know() -> None:
    (row,) = make_board().processes()
    assert [run if isinstance(run, str) else run.id for run in row.runs] == ["a", "b"]
    assert (row.state, row.pid, row.slots) == ("working", 7, 4)


def test_runs_beyond_the_slots_of_a_process_are_finishing() -> None:
    board = make_board()
    board.owned = {"w1": list("abcdef")}
    (process,) = board_data(board)["processes"]
    assert (process["slots"], process["busy"], process["finishing"], len(process["runs"])) == (4, 4, 2, 6)
    line = next(line for line in frame(board) if ":7" in line)
    assert " 4/4 " in line
    assert "working, 2 finishing" in line


def test_run_moves_to_its_new_worker_with_its_event() -> None:
    board = make_board()
    assert board.overview is not None
    first = board.overview.workers[0]
    board.overview = replace(board.overview, workers=(first, replace(first, id="w2", pid=8)))
    board.owned = {"w1": ["a", "b"], "w2": []}
    board.looks = {"a": replace(board.looks["a"], worker="w2", attempt=2)}
    board.add([replace(event(1001.0, status=Status.RUNNING), run="a")], 1001.0)
    assert board.owned == {"w1": ["b"], "w2": ["a"]}
    board.looks = {"a": replace(board.looks["a"], status=Status.COMPLETED)}
    board.add([replace(event(1002.0), run="a")], 1002.0)
    assert board.owned == {"w1": ["b"], "w2": []}


def test_rate_is_the_mean_over_the_whole_seconds_that_were_watched() -> None:
    rates = Rates()
    rates.add([], 100.5)
    assert rates.rate(101.0) == 0.0
    rates.add([event(101.1), event(101.2), event(101.3, status=Status.RUNNING)], 101.4)
    rates.add([event(102.1)], 102.2)
    assert rates.history(103.0) == [2, 1]
    assert rates.rate(103.0) == 1.5
    assert rates.rate(103.0, kind="other") == 0.0


def test_old_seconds_are_forgotten() -> None:
    rates = Rates()
    for second in range(1000):
        rates.add([event(second)], float(second))
    assert len(rates.history(1000.0, seconds=1000)) <= 301 + 700
    assert sum(rates.history(1000.0, seconds=1000)) <= 302


def test_sparkline_has_at_most_the_width() -> None:
    assert sparkline([0, 1, 2, 4], 10) == " ▃▅█"
    assert len(sparkline([1] * 120, 10)) == 10
    assert sparkline([], 10) == ""


def test_frame_fits_into_80_columns_and_24_lines() -> None:
    board = make_board()
    board.add([event(1000.0 + i / 10) for i in range(100)], 1010.0)
    lines = frame(board)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert any("greet" in line and "3" in line for line in lines)


LONG_KIND = "reconcile-customer-invoices-with-the-ledger-v2"


def long_names(host: str) -> Board:
    """Return a board of six workers, seven kinds and some problems, whose names are long."""
    kinds = [f"{LONG_KIND}-{number}" for number in range(7)]
    board = make_board(kinds[0])
    assert board.overview is not None
    routes = {f"invoices-of-the-whole-world:{kind}@0": 1_234_567 for kind in kinds}
    workers = tuple(
        replace(board.overview.workers[0], id=f"w{number}", host=host, pid=41001 + number, code="a7f93c1b" * 5)
        for number in range(6)
    )
    board.overview = replace(board.overview, queues=routes, workers=workers, coordinators=())
    board.owned = {worker.id: ["a", *"bcdef"] for worker in workers}
    board.oldest = dict.fromkeys(routes, 100.0)
    board.add([event(1000.0 + number / 10, kind=kinds[0]) for number in range(100)], 1010.0)
    return board


@pytest.mark.parametrize("height", [20, 24, 40])
def test_frame_with_long_names_fits_and_shows_each_process_and_the_problems(height: int) -> None:
    board = long_names("ip-10-0-12-34.eu-central-1")
    assert len(board.attention()) > 5
    lines = frame(board, 80, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    shown = [line.split()[0] for line in lines if line.startswith("ip-10-0-12-34:")]
    assert shown == [f"ip-10-0-12-34:{41001 + number}" for number in range(len(shown))]
    assert len(shown) == 6 if height >= 24 else len(shown) >= 3
    assert " queue " in text
    assert " a7f93c1b " in text
    assert "no coordinator is running" in text
    assert lines[-3].split()[1] == "completed", "the changes are at the end"


def test_ends_of_long_host_names_are_shown() -> None:
    lines = frame(long_names("reconciliation-workers-7d4b9c6f5-x2kqv"))
    assert any("x2kqv:41001" in line for line in lines)


def test_names_with_control_characters_are_made_safe() -> None:
    board = make_board()
    board.add([event(1000.0, kind="\x1b[31mred")], 1000.0)
    assert not any("\x1b[31m" in line for line in frame(board))


def test_queue_without_a_worker_needs_attention() -> None:
    board = make_board()
    assert board.overview is not None
    assert board.attention() == []
    board.overview = Overview("runs", 1, "local", {}, {"default:greet@0": 3}, (), 0, (), ())
    sentences = board.attention()
    assert any("no live worker takes kind greet" in sentence for sentence in sentences)
    assert any("no coordinator is running" in sentence for sentence in sentences)
