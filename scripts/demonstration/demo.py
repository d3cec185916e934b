"""Start the processes, inject the faults, show the progress, count the results, and clean up."""

from __future__ import annotations

import logging
import select
import signal
import sys
import threading
import time
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from coordinator import Client, CoordinatorError
from scripts.demonstration.app import STEPS, answer
from scripts.demonstration.board import Board
from scripts.demonstration.fault_schedule import RUNS, FaultSchedule, ObservedFault
from scripts.demonstration.journal import Tail, write
from scripts.demonstration.processes import DemoProcesses
from scripts.demonstration.tally import Tally, tally
from scripts.demonstration.view import EXPLANATION, PlainView, make_view, summary, table

TICK_SECONDS = 0.1
WEB_SECONDS = 8.0  # for opening the dashboard before the demo starts
RUN_TIMEOUT = 90.0  # a run that has not finished by then counts as lost
TOPICS = ("tides", "moss", "glaciers", "bread", "comets", "ink", "bees", "salt", "kites", "amber")


class StopRequested(Exception):
    """A signal asked the demo to end."""


class Demo:
    """One execution of the demo."""

    def __init__(self, web: bool = False) -> None:
        self.web = web
        self.processes, self.board = DemoProcesses(), Board()
        self.view: PlainView = make_view(self.board)
        self.asked_to_stop = False
        self.broken: CoordinatorError | None = None
        self._tail = Tail(self.processes.journal)

    def stop(self, *_: object) -> None:
        self.asked_to_stop = True

    def run(self) -> int:
        self.view.open()
        try:
            schedule = self._start()
            threading.Thread(target=self._produce, daemon=True).start()
            self._watch(lambda: self.board.finished() >= RUNS or self.broken is not None, RUN_TIMEOUT, schedule)
        finally:
            self.view.close()
        if self.web and sys.stdin.isatty() and not self.asked_to_stop:
            self._wait_for_enter()
        self.processes.finish()
        self._look()
        counted = tally(self.board.lines, schedule.faults, STEPS)
        return report(self.view.console, schedule.observed, schedule.skipped, counted, RUNS, self.broken)

    def _start(self) -> FaultSchedule:
        self.view.status("starting Valkey (append-only file on), a coordinator and three workers ...")
        self.processes.start_server()
        schedule = FaultSchedule(self.processes, self.board)
        self._watch(lambda: len(self.board.workers) >= 3, 60.0)
        if len(self.board.workers) < 3:
            raise CoordinatorError("the workers did not start within a minute")
        if self.web:
            self._show_address(self.processes.start_web())
        self.view.begin()
        return schedule

    def _show_address(self, address: str) -> None:
        """Tell where the dashboard is, and give a person the time to open it."""
        self.view.address = address
        self.view.status(f"open {address} in a browser: the demo starts in {WEB_SECONDS:.0f} s ...")
        self._watch(lambda: False, WEB_SECONDS)

    def _wait_for_enter(self) -> None:
        self.view.console.print(f"The dashboard is still at {self.view.address}. Press Enter to end it.")
        while not self.asked_to_stop and not select.select([sys.stdin], [], [], TICK_SECONDS)[0]:
            pass

    def _watch(self, done: Callable[[], bool], patience: float, schedule: FaultSchedule | None = None) -> None:
        until = time.monotonic() + patience
        while not done() and time.monotonic() < until:
            if self.asked_to_stop:
                raise StopRequested
            time.sleep(TICK_SECONDS)
            self._look()
            if schedule is not None:
                schedule.tick()
                self.view.show(schedule.observed)

    def _look(self) -> None:
        for line in self._tail.new():
            self.board.take(line)

    def _produce(self) -> None:
        try:
            self._enqueue_and_wait()
        except CoordinatorError as error:
            self.broken = error

    def _enqueue_and_wait(self) -> None:
        """Enqueue all runs and wait for their results. The runs are enqueued slowly, so that every worker gets some."""
        journal = self.processes.journal
        with Client(self.processes.url) as client:
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
        """End all processes that still run. Return the ids of those that did not end."""
        left = self.processes.clear()
        self._tail.close()
        return left


def report(
    out: Console,
    observed: list[ObservedFault],
    skipped: list[str],
    counted: Tally,
    wanted: int,
    broken: Exception | None = None,
) -> int:
    """Print the results. Return the exit code: 1 if a run was lost or never enqueued, or if a step is missing."""
    out.print(table(observed, counted))
    out.print(summary(counted))
    for what in skipped:
        out.print(f"{what} was skipped: all runs had finished before.")
    out.print()
    out.print(Text(EXPLANATION, "dim"))
    if broken is not None:
        out.print(f"the producer failed: {broken}")
    for run in counted.lost:
        out.print(f"lost: run {run}")
    return 0 if counted.good and counted.runs == wanted and broken is None else 1


def main() -> int:
    logging.getLogger().addHandler(logging.NullHandler())  # the view shows what the library would log
    if wrong := [word for word in sys.argv[1:] if word != "--web"]:
        print(f"scripts/demo: unknown option {wrong[0]}: scripts/demo --help", file=sys.stderr)
        return 2
    demo = Demo(web="--web" in sys.argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, demo.stop)
    keep = False
    try:
        code = demo.run()
        keep = code != 0
    except StopRequested:
        code = 130
    except CoordinatorError as error:
        code, keep = 1, True
        print(f"scripts/demo: {error}\n{demo.processes.logs()}", file=sys.stderr)
    finally:
        left = demo.close()
        if not keep:
            demo.processes.remove_folder()
    if keep:
        print(f"scripts/demo: the journal and the logs are in {demo.processes.folder}", file=sys.stderr)
    if left:
        print(f"scripts/demo: these processes did not end: {left}", file=sys.stderr)
        return 1
    if code == 130:
        print("stopped; no process and no file is left behind")
    return code
