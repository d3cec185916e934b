"""The output of the demo: a live board on a terminal, plain lines elsewhere, and a table at the end."""

from __future__ import annotations

import os
import sys
import time

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scripts.demonstration.app import STEPS, TURNS
from scripts.demonstration.board import Board, RunState
from scripts.demonstration.fault_schedule import RUNS, ObservedFault, span
from scripts.demonstration.processes import LEASE
from scripts.demonstration.tally import Tally

COLOURS = ("bright_blue", "bright_magenta", "bright_yellow", "bright_cyan", "bright_green", "orange1", "pink1", "tan")
INTRODUCTION = (
    f"{RUNS} agent runs of {TURNS} turns, on three workers, a coordinator and a server.\n"
    f"The demo kills each of them. The lease is {LEASE} s here; the default is 15 s."
)
SMALLEST_TERMINAL = (80, 24)
PROGRESS_SECONDS = 2.5  # between two lines of progress


def colour(worker: int) -> str:
    return COLOURS[(worker - 1) % len(COLOURS)]


def make_view(board: Board) -> PlainView:
    """Return a live view if the terminal can show it, and a plain one otherwise."""
    console = Console(highlight=False)
    live = sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal
    width, height = console.size
    if live and width >= SMALLEST_TERMINAL[0] and height >= SMALLEST_TERMINAL[1]:
        return LiveView(board, console)
    return PlainView(
        board, Console(highlight=False, force_terminal=False, color_system=None, width=SMALLEST_TERMINAL[0])
    )


class PlainView:
    """A view of plain lines, without control characters."""

    def __init__(self, board: Board, console: Console) -> None:
        self.board, self.console = board, console
        self.began = time.monotonic()
        self._said = -PROGRESS_SECONDS
        self._told: dict[int, str] = {}
        self.address = ""  # of the dashboard

    def open(self) -> None:
        self.console.print(INTRODUCTION, style="dim")
        self.console.print()

    def status(self, text: str) -> None:
        self.line(text)

    def begin(self) -> None:
        """Start the clock: the runs are enqueued from now on."""
        self.began = time.monotonic()

    def show(self, observed: list[ObservedFault]) -> None:
        for number, one in enumerate(observed):
            if number not in self._told:
                self._told[number] = ""
                self.line(one.fault.what, one.fault.at - self.began)
            if one.effect and one.effect != self._told[number]:
                self._told[number] = one.effect
                self.line(f"{one.fault.what} → {one.effect}")
        if time.monotonic() - self.began - self._said > PROGRESS_SECONDS:
            self._said = time.monotonic() - self.began
            self.line(f"{progress(self.board)}; {self._workers()}")

    def _workers(self) -> str:
        count = self.board.at_work()
        return ", ".join(f"worker {self.board.workers[pid].number}: {runs(held)}" for pid, held in count.items())

    def line(self, text: str, at: float | None = None) -> None:
        self.console.print(f"{clock(time.monotonic() - self.began if at is None else at)}  {text}", soft_wrap=True)

    def close(self) -> None:
        pass


class LiveView(PlainView):
    """A live board: each run is a row of blocks, one per turn, in the colour of the worker that executed it."""

    def __init__(self, board: Board, console: Console) -> None:
        super().__init__(board, console)
        self._live = Live(console=console, auto_refresh=False)
        self._observed: list[ObservedFault] = []
        self._blocks = "■" if console.color_system and not os.environ.get("NO_COLOR") else ""

    def open(self) -> None:
        self.console.print(Text(INTRODUCTION, "dim"))
        self._live.start()

    def status(self, text: str) -> None:
        self._live.update(Text(f"\n {text}", "dim"), refresh=True)

    def show(self, observed: list[ObservedFault]) -> None:
        self._observed = observed
        self._live.update(self._board(), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def _board(self) -> RenderableType:
        where = [Text(f" dashboard {self.address}", "dim")] if self.address else []
        return Group(self._grid(), Text(), self._legend(), *where, Text(), *map(self._event, self._observed))

    def _grid(self) -> Table:
        across = 4 if self.console.width < 108 else 5
        down = -(-RUNS // across)
        grid = Table.grid(padding=(0, 3, 0, 0))
        cells = [self._run(run) for run in self.board.runs.values()]
        cells += [Text(" " * (TURNS + 5))] * (RUNS - len(cells))
        for row in range(down):
            grid.add_row(*cells[row::down])
        return grid

    def _run(self, run: RunState) -> Text:
        text = Text(f" {run.number:02d} ", "bold" if run.owner else "dim")
        for turn in range(TURNS):
            worker = run.steps.get(2 * turn + 1, run.steps.get(2 * turn))
            if worker is None:
                text.append("·", "bright_black")
            else:
                text.append(self._blocks or str(worker), colour(worker))
        return text.append("✓" if run.finished else " ", "bold green")

    def _legend(self) -> Text:
        text = Text(f" {progress(self.board)}, {clock(time.monotonic() - self.began).strip()}\n", "bold")
        count = self.board.at_work()
        text.append(" workers ", "dim")
        for pid, worker in self.board.workers.items():
            text.append(
                f" {self._blocks} {worker.number} " if self._blocks else f"  {worker.number} ", colour(worker.number)
            )
            text.append(worker.fate or runs(count[pid]), "dim" if worker.fate else "")
            text.append(" ")
        return text

    def _event(self, one: ObservedFault) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(clock(one.fault.at - self.began), "dim")
        text.append(f"  {one.fault.what:<21}", "bold red")
        return text.append(f" → {one.effect or '…'}")


def runs(count: int) -> str:
    return f"{count} run" if count == 1 else f"{count} runs"


def clock(seconds: float) -> str:
    return f"{max(seconds, 0):5.1f} s"


def progress(board: Board) -> str:
    return f"{board.finished()} of {RUNS} finished, {board.steps_begun() * 100 // (RUNS * STEPS)} % of the steps done"


# ---- the end -----------------------------------------------------------------------------------------------------------


def table(observed: list[ObservedFault], counted: Tally) -> Table:
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", padding=(0, 1))
    found.add_column("what happened", no_wrap=True, vertical="bottom")
    for name in ("runs\nhit", "runs\nresumed", "steps\nrepeated", "time to resume\nmedian", "\nmax"):
        found.add_column(name, justify="right", no_wrap=True)
    rows = [(one.fault.what, cost) for one, cost in zip(observed, counted.costs, strict=True)]
    if counted.other.redone:
        rows.append(("something else", counted.other))
    for what, cost in rows:
        numbers = (len(cost.hit), len(cost.resumed), cost.redone)
        found.add_row(what, *map(str, numbers), span(cost.median), span(cost.longest))
    return found


def summary(counted: Tally) -> Text:
    text = Text()
    text.append(f"{counted.finished} finished, {len(counted.lost)} lost", "bold green" if counted.good else "bold red")
    text.append(f" of {counted.runs} runs; runs were resumed {counted.resumed} times\n")
    text.append(f"{counted.steps} steps: {counted.missing} missing, {counted.redone} repeated, ")
    return text.append(
        f"{counted.forgotten} of them although saved" if counted.forgotten else "none of them had been saved"
    )


EXPLANATION = """\
The numbers are counted from a file that the handlers and the producer append
to, not from Redis. Time to resume: from the kill until the handler is called
elsewhere; for a drain, from the release until then; for the coordinator and
the server, until the next step of a run is saved (a step takes 0.3 to 0.9 s,
and the server was down for a second)."""
