"""The measured queues, the unfair points of each comparison, and how their programs are started (see peers/probe.py)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from venvs import node_modules, python_of

PROGRAMS = Path(__file__).with_name("peers")
MARK_BYTES = 16
OURS = "run-coordinator"


@dataclass(frozen=True)
class Contender:
    """A queue that is measured.

    `survives`: jobs of a killed worker are executed again, with the settings measured here.
    `facts`: the record of a waiting job holds as much as ours (status, attempts, times, as fields of its id), so that memory may be
    compared.
    """

    name: str
    program: str
    survives: bool
    facts: bool
    unfair: str
    python: bool = True
    folder: Path | None = None  # another checkout of this project

    @cached_property
    def start(self) -> list[str] | None:
        """Return the command that starts its program, or None if it can't run here."""
        if self.program.endswith(".mjs"):
            return ["node", str(PROGRAMS / self.program)] if node_modules("bullmq") else None
        if self.folder is not None:
            return [str(self.folder / ".venv/bin/python"), str(self._programs / self.program)]
        python = sys.executable if self.name == OURS else str(python_of(self.program.removesuffix("_app.py")))
        return [python, str(PROGRAMS / self.program)]

    @property
    def _programs(self) -> Path:
        return PROGRAMS if self.folder is None else self.folder / "scripts/benchmarks/peers"

    def environment(self, url: str, marks: Path) -> dict[str, str]:
        modules = node_modules("bullmq") if self.program.endswith(".mjs") else None
        return {
            **os.environ, "BENCH_URL": url, "BENCH_MARKS": str(marks), "BENCH_MODULES": str(modules or ""),
            "PYTHONPATH": str(self._programs),
        }  # fmt: skip

    def ask(self, verb: str, url: str, marks: Path, count: int) -> dict[str, Any] | None:
        """Run the producer program of the queue, and return its figures; None if the queue lacks the feature.

        Args:
            verb: The command of the program: one, many, pick_up or trip (see peers/probe.py).
            url: The server.
            marks: The file to which handlers write.
            count: The number of jobs.
        """
        assert self.start
        done = subprocess.run(
            [*self.start, verb, url, str(count)],
            check=False, capture_output=True, text=True, timeout=900, env=self.environment(url, marks), cwd=self.folder,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{self.name}: {verb} ended with {done.returncode}: {done.stderr[-1500:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return None if found.get("missing") else found

    @contextlib.contextmanager
    def working(self, url: str, marks: Path, processes: int = 1) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Run `processes` workers while the context is open, and yield them. Stop them with SIGTERM and then with SIGKILL."""
        assert self.start
        log = marks.with_suffix(".log").open("ab")
        started = [
            subprocess.Popen(
                [*self.start, "work", url],
                env=self.environment(url, marks), cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
            )
            for _ in range(processes)
        ]  # fmt: skip
        try:
            yield started
        finally:
            for process in started:
                process.send_signal(signal.SIGTERM)
            for process in started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                with contextlib.suppress(ProcessLookupError):
                    # This kills the whole session that was started for the worker.
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            log.close()
            time.sleep(0.2)  # The worker's last commands are executed before the server is emptied.


CONTENDERS = (
    Contender(OURS, "ours_app.py", True, True, "a supervisor and a coordinator run with the worker, and their cost is counted"),
    Contender("huey", "huey_app.py", False, False, "stores only the message; the job of a killed worker is lost"),
    Contender("Dramatiq", "dramatiq_app.py", True, False,
              "stores only the message; no batch call: a group sends messages one by one"),
    Contender("taskiq (stream)", "taskiq_app.py", True, False,
              "stores only the message; redelivers after 10 min, and only when a new one arrives; acknowledged entries are kept"),
    Contender("pydocket", "pydocket_app.py", True, True,
              "redelivers after 5 min; 50 jobs at once, because with 100 its connections run out"),
    Contender("SAQ", "saq_app.py", False, True,
              "aborts the jobs of a killed worker by default; no batch call: 100 single calls at once"),
    Contender("arq", "arq_app.py", True, False,
              "stores only message and time; redelivers after 310 s; polls every 10 ms, not 500; no batch call: 100 calls at once"),
    Contender("streaQ", "streaq_app.py", True, False, "stores the message and its time; redelivers after 60 to 120 s"),
    Contender("Celery", "celery_app.py", True, False,
              "redelivers after 1 h; a main process and a child process; batch: one connection"),
    Contender("RQ", "rq_app.py", False, True, "SimpleWorker, which does not fork; marks the job of a killed worker as failed"),
    Contender("BullMQ", "bullmq_app.mjs", True, True, "Node; redelivers after 30 to 60 s", python=False),
)  # fmt: skip


def named(names: str) -> list[Contender]:
    """Return the contenders with the given names, separated by commas, and ours. Return all if `names` is empty."""
    if not names:
        return list(CONTENDERS)
    wanted = {name.strip().lower() for name in names.split(",")} | {OURS}
    chosen = [one for one in CONTENDERS if one.name.lower() in wanted or one.name.lower().split()[0] in wanted]
    if unknown := wanted - {part for one in chosen for part in (one.name.lower(), one.name.lower().split()[0])}:
        raise SystemExit(
            f"unknown queue: {', '.join(unknown)}; the known ones are: {', '.join(one.name for one in CONTENDERS)}"
        )
    return chosen


def version_in(folder: Path) -> Contender:
    """Return the version of this project in another checkout, which is measured with its own program and environment."""
    folder = folder.resolve()
    if not (folder / ".venv/bin/python").exists():
        raise SystemExit(f"{folder} has no .venv: run scripts/setup there first")
    (ours,) = named(OURS)
    return replace(ours, folder=folder)
