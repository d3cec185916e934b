"""The current state of the runs and workers, from the lines of the journal."""

from __future__ import annotations

from dataclasses import dataclass, field

from scripts.demonstration.journal import Line


@dataclass
class RunState:
    """One run.

    Attributes:
        number: The number of the run in the demo.
        owner: The number of the worker that executes it now; 0 for none.
        token: The token of its last attempt.
        steps: For each step that has begun, the number of the worker that began it last.
        returned: True if its handler has returned.
        finished: True if the producer has its result.
    """

    number: int
    owner: int = 0
    token: str = ""
    steps: dict[int, int] = field(default_factory=dict)
    returned: bool = False
    finished: bool = False


@dataclass
class WorkerState:
    """A worker process.

    Attributes:
        number: Its number, in the order in which the processes started.
        pid: Its process id.
        supervisor: The process id of its supervisor.
        fate: killed, stopped or lost; empty while it is live.
    """

    number: int
    pid: int
    supervisor: int
    fate: str = ""


class Board:
    """The state of all runs and workers."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.runs: dict[str, RunState] = {}
        self.workers: dict[int, WorkerState] = {}

    def take(self, line: Line) -> None:
        """Update the state with a line of the journal."""
        self.lines.append(line)
        if line.what == "joins":
            self.workers[line.pid] = WorkerState(len(self.workers) + 1, line.pid, line.number)
            return
        run = self.runs.setdefault(line.run, RunState(len(self.runs) + 1))
        worker = self.workers[line.pid].number if line.pid in self.workers else 0
        match line.what:
            case "start":
                run.owner, run.token = worker, line.token
            case "step":
                run.steps[line.number] = worker
            case "left" if line.token == run.token:
                run.owner = 0
            case "end":
                run.owner, run.returned = 0, True
            case "result":
                run.finished = True

    def at_work(self) -> dict[int, int]:
        """Return the number of runs of each live worker process, by pid."""
        by_number = {worker.number: pid for pid, worker in self.workers.items() if not worker.fate}
        count = dict.fromkeys(by_number.values(), 0)
        for run in self.runs.values():
            if run.owner in by_number and not run.returned:
                count[by_number[run.owner]] += 1
        return count

    def steps_begun(self) -> int:
        return sum(len(run.steps) for run in self.runs.values())

    def finished(self) -> int:
        return sum(run.finished for run in self.runs.values())
