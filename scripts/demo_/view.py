"""What people see: a live board on a terminal, plain lines elsewhere, and the table at the end."""

from __future__ import annotations

import os
import sys
import time

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scripts.demo_.app import STEPS, TURNS
from scripts.demo_.board import Board, RunState
from scripts.demo_.play import RUNS, Act, span
from scripts.demo_.stage import LEASE
from scripts.demo_.tally import Tally

COLOURS = ("bright_blue", "bright_magenta", "bright_yellow", "bright_cyan", "bright_green", "orange1", "pink1", "tan")
INTRODUCTION = (
    f"{RUNS} agent runs of {TURNS} turns; three worker processes, a coordinator, a Valkey.\n"
    f"All of these are killed on the way. The lease is {LEASE} s here, by default 15 s."
)
SMALLEST = (80, 24)
EVERY = 2.5  # seconds between plain lines of progress


def colour(worker: int) -> str:
    return COLOURS[(worker - 1) % len(COLOURS)]


def make_view(board: Board) -> PlainView:
    """A live one, where there is a terminal that can show it."""
    console = Console(highlight=False)
    live = sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal
    width, height = console.size
    if live and width >= SMALLEST[0] and height >= SMALLEST[1]:
        return LiveView(board, console)
    return PlainView(board, Console(highlight=False, force_terminal=False, color_system=None, width=SMALLEST[0]))


class PlainView:
    """Lines without control characters."""

    def __init__(self, board: Board, console: Console) -> None:
        self.board, self.console = board, console
        self.began = time.monotonic()
        self._said = -EVERY
        self._told: dict[int, str] = {}

    def open(self) -> None:
        self.console.print(INTRODUCTION, style="dim")
        self.console.print()

    def status(self, text: str) -> None:
        self.line(text)

    def begin(self) -> None:
        """The runs are being handed over from now on."""
        self.began = time.monotonic()

    def show(self, acts: list[Act]) -> None:
        for number, act in enumerate(acts):
            if number not in self._told:
                self._told[number] = ""
                self.line(act.blow.what, act.blow.at - self.began)
            if act.effect and act.effect != self._told[number]:
                self._told[number] = act.effect
                self.line(f"{act.blow.what} → {act.effect}")
        if time.monotonic() - self.began - self._said > EVERY:
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
    """A board: each run a row of blocks, one per turn, in the colour of the worker that did it."""

    def __init__(self, board: Board, console: Console) -> None:
        super().__init__(board, console)
        self._live = Live(console=console, auto_refresh=False)
        self._acts: list[Act] = []
        self._blocks = "■" if console.color_system and not os.environ.get("NO_COLOR") else ""

    def open(self) -> None:
        self.console.print(Text(INTRODUCTION, "dim"))
        self._live.start()

    def status(self, text: str) -> None:
        self._live.update(Text(f"\n {text}", "dim"), refresh=True)

    def show(self, acts: list[Act]) -> None:
        self._acts = acts
        self._live.update(self._board(), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def _board(self) -> RenderableType:
        return Group(self._grid(), Text(), self._legend(), Text(), *map(self._event, self._acts))

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

    def _event(self, act: Act) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(clock(act.blow.at - self.began), "dim")
        text.append(f"  {act.blow.what:<21}", "bold red")
        return text.append(f" → {act.effect or '…'}")


def runs(count: int) -> str:
    return f"{count} run" if count == 1 else f"{count} runs"


def clock(seconds: float) -> str:
    return f"{max(seconds, 0):5.1f} s"


def progress(board: Board) -> str:
    return f"{board.finished()} of {RUNS} finished, {board.steps_begun() * 100 // (RUNS * STEPS)} % of the steps done"


# ---- the end -----------------------------------------------------------------------------------------------------------


def table(acts: list[Act], counted: Tally) -> Table:
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", padding=(0, 1))
    found.add_column("what happened", no_wrap=True, vertical="bottom")
    for name in ("runs\nhit", "runs\nresumed", "steps\nredone", "time to resume\nmedian", "\nmax"):
        found.add_column(name, justify="right", no_wrap=True)
    rows = [(act.blow.what, cost) for act, cost in zip(acts, counted.costs, strict=True)]
    if counted.other.redone:
        rows.append(("something else", counted.other))
    for what, cost in rows:
        numbers = (len(cost.hit), len(cost.resumed), cost.redone)
        found.add_row(what, *map(str, numbers), span(cost.median), span(cost.longest))
    return found


def summary(counted: Tally) -> Text:
    text = Text()
    text.append(f"{counted.finished} finished, {len(counted.lost)} lost", "bold green" if counted.good else "bold red")
    text.append(f" of {counted.runs} runs; {counted.resumed} times a run was resumed\n")
    text.append(f"{counted.steps} steps: {counted.missing} missing, {counted.redone} begun again, ")
    return text.append(
        f"{counted.forgotten} of these although saved" if counted.forgotten else "none of these had been saved"
    )


NOTES = """\
Counted from a file that handlers and producer append to, and not from Redis.
Time to resume: from the kill until the handler is called elsewhere; SIGTERM:
from letting go until then; coordinator and server: until a run's next step is
saved (a step takes 0.3 to 0.9 s anyway; the server was away for a second)."""
