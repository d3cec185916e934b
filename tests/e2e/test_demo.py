"""The demo as a user runs it, the demo's counts, and the first program of the README."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from scripts.demonstration.demo import report
from scripts.demonstration.fault_schedule import ObservedFault
from scripts.demonstration.journal import Line
from scripts.demonstration.tally import Fault, tally
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
FIRST = ROOT / "examples" / "first"


def processes_that_name(folder: Path) -> list[int]:
    """Return the processes whose arguments, environment or working directory name the folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            told = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
            told += os.fsencode(os.readlink(place / "cwd"))
        except OSError:
            continue
        if os.fsencode(folder) in told and place.name != str(os.getpid()):
            found.append(int(place.name))
    return found


# ---- the demo --------------------------------------------------------------------------------------------------------


@pytest.fixture
def temp(tmp_path: Path) -> Iterator[Path]:
    """Return a temporary folder with a short path.

    Check at the end that it is empty and that no process refers to it.
    """
    yield tmp_path
    wait_until(lambda: not processes_that_name(tmp_path), "no process is left behind")
    assert list(tmp_path.iterdir()) == []


def start_demo(temp: Path, *options: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "RUNS_URL")}
    environment |= {"TMPDIR": str(temp), "TERM": "dumb"}
    command = [sys.executable, "-m", "scripts.demonstration", *options]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.timeout(240)
def test_demo_loses_nothing_and_reports_it(temp: Path) -> None:
    demo = start_demo(temp)
    said, _ = demo.communicate(timeout=200)
    assert demo.returncode == 0, said
    assert "40 finished, 0 lost of 40 runs" in said
    assert "920 steps: 0 missing" in said
    for event in ("SIGKILL worker", "drain worker", "host of worker", "kill -9 coordinator", "kill -9 server"):
        assert re.search(rf"{event}.* → ", said), f"the effect of {event} is not reported"
    assert re.search(r"drain worker \d +\d+ +\d+ +0 ", said), "a graceful stop cost a step"
    assert [c for c in said if not c.isprintable() and c != "\n"] == []


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.timeout(120)
def test_demo_with_web_prints_the_address_of_a_page_that_answers(temp: Path) -> None:
    demo = start_demo(temp, "--web")
    assert demo.stdout is not None
    found = next(match for line in demo.stdout if (match := re.search(r"open (http://\S+/) in a browser", line)))
    with urllib.request.urlopen(found.group(1), timeout=30) as answer:
        assert "<title>Runs</title>" in answer.read().decode()
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=60)
    assert demo.returncode == 130


def test_demo_refuses_an_unknown_option(temp: Path) -> None:
    demo = start_demo(temp, "--fast")
    said, _ = demo.communicate(timeout=60)
    assert (demo.returncode, "unknown option --fast" in said) == (2, True)


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("moment", ["starting Valkey", "SIGKILL worker", "kill -9 server"])
def test_ctrl_c_leaves_no_files_and_no_processes(temp: Path, moment: str) -> None:
    demo = start_demo(temp)
    assert demo.stdout is not None
    for line in demo.stdout:
        if moment in line:
            break
    demo.send_signal(signal.SIGINT)
    said, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert said.endswith("stopped; no process and no file is left behind\n")
    assert "Traceback" not in said


# ---- counts of the demo ----------------------------------------------------------------------------------------------

STEPS = 4
KILLED, OTHER, PRODUCER = 1, 2, 9
FAULT = Fault(at=2.5, what="SIGKILL worker 1", victims=frozenset({KILLED}))


def journal() -> list[Line]:
    """Return the journal of a run that is killed in its third step and continues from there in another process."""
    first = [("start", 0), ("step", 0), ("saved", 0), ("step", 1), ("saved", 1), ("step", 2)]
    then = [("start", 2), ("step", 2), ("saved", 2), ("step", 3), ("saved", 3), ("end", 0)]
    lines = [Line(0.5, PRODUCER, "r", "-", "asked", 0)]
    lines += [Line(1 + index / 10, KILLED, "r", "t1", what, number) for index, (what, number) in enumerate(first)]
    lines += [Line(3 + index / 10, OTHER, "r", "t2", what, number) for index, (what, number) in enumerate(then)]
    return [*lines, Line(4, PRODUCER, "r", "-", "result", 1)]


def test_repeated_steps_are_counted_by_cause() -> None:
    counted = tally(journal(), [FAULT], STEPS)
    assert counted.good
    assert (counted.finished, counted.lost, counted.resumed, counted.redone) == (1, (), 1, 1)
    (cost,) = counted.costs
    assert (cost.hit, cost.redone, cost.over) == ({"r"}, 1, True)
    assert cost.median == pytest.approx(0.5)


def exit_code(lines: list[Line], wanted: int = 1) -> tuple[int, str]:
    counted = tally(lines, [FAULT], STEPS)
    out = io.StringIO()
    code = report(Console(file=out, width=80), [ObservedFault(FAULT, lambda cost: "")], [], counted, wanted)
    return code, out.getvalue()


def test_complete_journal_exits_with_0() -> None:
    code, said = exit_code(journal())
    assert code == 0
    assert "1 finished, 0 lost of 1 runs" in said


@pytest.mark.parametrize(("what", "number"), [("step", 1), ("step", 3), ("end", 0), ("result", 1)], ids=str)
def test_missing_line_is_a_loss_and_fails_the_demo(what: str, number: int) -> None:
    code, said = exit_code([line for line in journal() if (line.what, line.number) != (what, number)])
    assert code == 1
    assert "0 finished, 1 lost" in said
    assert "lost: run r" in said


def test_wrong_result_counts_as_a_loss() -> None:
    assert exit_code([*journal()[:-1], Line(4, PRODUCER, "r", "-", "result", 0)])[0] == 1


def test_repeated_saved_step_fails_the_demo() -> None:
    lines = journal()
    again = Line(3.05, OTHER, "r", "t2", "step", 1)
    code, said = exit_code(sorted([*lines, again], key=lambda line: line.at))
    assert code == 1
    assert "1 of them although saved" in said


def test_run_that_never_moved_fails_the_demo() -> None:
    assert exit_code(journal(), wanted=2)[0] == 1


# ---- the README's first program --------------------------------------------------------------------------------------


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.timeout(180)
def test_first_program_of_the_readme_works_unchanged(tmp_path: Path) -> None:
    programs = Path(sys.executable).parent
    environment = os.environ | {"RUNS_URL": f"embedded://{tmp_path}/.runs", "PYTHONDONTWRITEBYTECODE": "1"}
    started = []

    def start(*words: str) -> subprocess.Popen[str]:
        command = [str(programs / words[0]), *words[1:]]
        with (tmp_path / "log").open("a") as log:
            started.append(
                subprocess.Popen(command, cwd=FIRST, env=environment, text=True, stdout=subprocess.PIPE, stderr=log)
            )
        return started[-1]

    try:
        coordinator, workers = start("coordinator", "start"), start("workers", "start", "app:runs", "--processes", "2")
        asked = start("coordinator", "enqueue", "research", "topic=tides", "--wait")
        produced, _ = start("python", "produce.py").communicate(timeout=120)
        assert "what is bread - why bread - after bread\n" in produced
        assert produced.endswith("moss: read 5 pages, all is well\n")
        answered, _ = asked.communicate(timeout=120)
        assert answered == "tides: read 5 pages, all is well\n"
        for process in (workers, coordinator):
            process.terminate()
            assert process.wait(30) == 0, (tmp_path / "log").read_text()
    finally:
        for process in started:
            process.kill()
            process.communicate()
    wait_until(lambda: not processes_that_name(tmp_path), "workers and server have ended")
