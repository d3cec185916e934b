"""Puts the demo together: a stage, a play, a view; and clears away whatever happens."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from coordinator import Client, CoordinatorError
from scripts.demo_.app import STEPS, answer
from scripts.demo_.board import Board
from scripts.demo_.journal import Tail, write
from scripts.demo_.play import RUNS, Act, Play
from scripts.demo_.stage import Stage
from scripts.demo_.tally import Tally, tally
from scripts.demo_.view import NOTES, PlainView, make_view, summary, table

TICK = 0.1
LONGEST = 90.0  # what has not ended by then is lost
TOPICS = ("tides", "moss", "glaciers", "bread", "comets", "ink", "bees", "salt", "kites", "amber")


class Stopped(Exception):
    """Somebody wants the demo to end."""


class Demo:
    """One performance."""

    def __init__(self) -> None:
        self.stage, self.board = Stage(), Board()
        self.view: PlainView = make_view(self.board)
        self.asked_to_stop = False
        self.broken: CoordinatorError | None = None
        self._tail = Tail(self.stage.journal)

    def stop(self, *_: object) -> None:
        self.asked_to_stop = True

    def run(self) -> int:
        self.view.open()
        try:
            play = self._build_up()
            threading.Thread(target=self._produce, daemon=True).start()
            self._watch(lambda: self.board.finished() >= RUNS or self.broken is not None, LONGEST, play)
        finally:
            self.view.close()
        self.stage.finish()
        self._look()
        counted = tally(self.board.lines, play.blows, STEPS)
        return report(self.view.console, play.acts, play.skipped, counted, RUNS, self.broken)

    def _build_up(self) -> Play:
        self.view.status("starting Valkey (append-only file on), a coordinator and three workers ...")
        self.stage.start_server()
        play = Play(self.stage, self.board)
        self._watch(lambda: len(self.board.workers) >= 3, 60.0)
        if len(self.board.workers) < 3:
            raise CoordinatorError("the workers did not start")
        self.view.begin()
        return play

    def _watch(self, done: Callable[[], bool], patience: float, play: Play | None = None) -> None:
        until = time.monotonic() + patience
        while not done() and time.monotonic() < until:
            if self.asked_to_stop:
                raise Stopped
            time.sleep(TICK)
            self._look()
            if play is not None:
                play.tick()
                self.view.show(play.acts)

    def _look(self) -> None:
        for line in self._tail.new():
            self.board.take(line)

    def _produce(self) -> None:
        try:
            self._enqueue_and_wait()
        except CoordinatorError as error:
            self.broken = error

    def _enqueue_and_wait(self) -> None:
        """As a producer does: hands over, and waits for the results. A trickle, so that all workers get some."""
        journal = self.stage.journal
        with Client(self.stage.url) as client:
            expected = {}
            for number in range(RUNS):
                topic = f"{TOPICS[number % len(TOPICS)]} {number + 1}"
                handle = client.enqueue("research", {"topic": topic})
                write(journal, "asked", number, handle.id)
                expected[handle] = answer(topic)
                time.sleep(0.03)
            for handle in client.wait(expected):
                write(journal, "result", int(handle.result() == expected[handle]), handle.id)

    def close(self) -> list[int]:
        """Ends what still runs; the ids of processes that did not end."""
        left = self.stage.clear()
        self._tail.close()
        return left


def report(
    out: Console, acts: list[Act], skipped: list[str], counted: Tally, wanted: int, broken: Exception | None = None
) -> int:
    """Says how it went. The exit code: 1 if a run was lost or not even handed over, or a step is missing."""
    out.print(table(acts, counted))
    out.print(summary(counted))
    for what in skipped:
        out.print(f"{what} was left out: the runs had ended before.")
    out.print()
    out.print(Text(NOTES, "dim"))
    if broken is not None:
        out.print(f"the producer gave up: {broken}")
    for run in counted.lost:
        out.print(f"lost: run {run}")
    return 0 if counted.good and counted.runs == wanted and broken is None else 1


def main() -> int:
    demo = Demo()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, demo.stop)
    keep = False
    try:
        code = demo.run()
        keep = code != 0
    except Stopped:
        code = 130
    except CoordinatorError as error:
        code, keep = 1, True
        print(f"scripts/demo: {error}\n{demo.stage.logs()}", file=sys.stderr)
    finally:
        left = demo.close()
        if not keep:
            demo.stage.remove_folder()
    if keep:
        print(f"scripts/demo: the journal and the logs are in {demo.stage.folder}", file=sys.stderr)
    if left:
        print(f"scripts/demo: these processes did not end: {left}", file=sys.stderr)
        return 1
    if code == 130:
        print("stopped; no process and no file is left behind")
    return code
