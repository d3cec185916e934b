"""Who is measured, with what is unfair about the comparison, and how their programs are started (see peers/probe.py)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from venvs import node_modules, python_of

PROGRAMS = Path(__file__).with_name("peers")
MARK_BYTES = 16
OURS = "run-coordinator"


@dataclass(frozen=True)
class Contender:
    """`survives`: what a killed worker held is run again, with the settings measured here. `facts`: a waiting job's record
    holds what ours does (status, tries, times, as fields of its id), so that memory may be compared."""

    name: str
    program: str
    survives: bool
    facts: bool
    unfair: str
    python: bool = True

    @cached_property
    def start(self) -> list[str] | None:
        """The command of its program; None where it can't run here."""
        if self.program.endswith(".mjs"):
            return ["node", str(PROGRAMS / self.program)] if node_modules("bullmq") else None
        python = sys.executable if self.name == OURS else str(python_of(self.program.removesuffix("_app.py")))
        return [python, str(PROGRAMS / self.program)]

    def environment(self, url: str, marks: Path) -> dict[str, str]:
        modules = node_modules("bullmq") if self.program.endswith(".mjs") else None
        return {
            **os.environ, "BENCH_URL": url, "BENCH_MARKS": str(marks), "BENCH_MODULES": str(modules or ""),
            "PYTHONPATH": str(PROGRAMS),
        }  # fmt: skip

    def ask(self, verb: str, url: str, marks: Path, count: int) -> dict[str, Any] | None:
        """What a producer measured; None where the peer has no such thing."""
        assert self.start
        done = subprocess.run(
            [*self.start, verb, url, str(count)],
            check=False, capture_output=True, text=True, timeout=900, env=self.environment(url, marks),
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{self.name}: {verb} ended with {done.returncode}: {done.stderr[-1500:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return None if found.get("missing") else found

    @contextlib.contextmanager
    def working(self, url: str, marks: Path, processes: int = 1) -> Iterator[list[subprocess.Popen[bytes]]]:
        """That many workers, ended by TERM and then by force."""
        assert self.start
        log = marks.with_suffix(".log").open("ab")
        started = [
            subprocess.Popen(
                [*self.start, "work", url],
                env=self.environment(url, marks), stdout=log, stderr=log, start_new_session=True,
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
                    os.killpg(process.pid, signal.SIGKILL)  # the whole session that we started for it
                process.wait()
            log.close()
            time.sleep(0.2)  # what it sent last is carried out before the server is emptied


CONTENDERS = (
    Contender(OURS, "ours_app.py", True, True, "a supervisor and a coordinator run beside the worker and are counted"),
    Contender("huey", "huey_app.py", False, False, "keeps only the message, loses what a killed worker held"),
    Contender("Dramatiq", "dramatiq_app.py", True, False, "keeps only the message; no batch: a group sends one by one"),
    Contender("taskiq (stream)", "taskiq_app.py", True, False,
              "keeps only the message; taken over after 10 min, and only when a new one arrives; acknowledged entries stay"),
    Contender("pydocket", "pydocket_app.py", True, True, "taken over after 5 min; 50 at once, with 100 its connections run out"),
    Contender("SAQ", "saq_app.py", False, True, "what a killed worker held is aborted by default; no batch call: 100 at once"),
    Contender("arq", "arq_app.py", True, False,
              "keeps only message and time; taken over after 310 s; polls each 10 ms, not 500; no batch call: 100 at once"),
    Contender("streaQ", "streaq_app.py", True, False, "keeps the message and its time; taken over after 60 to 120 s"),
    Contender("Celery", "celery_app.py", True, False, "taken over after 1 h; a main process and a child; batch: one connection"),
    Contender("RQ", "rq_app.py", False, True, "SimpleWorker, without the fork; what a killed worker held is marked failed"),
    Contender("BullMQ", "bullmq_app.mjs", True, True, "Node; taken over after 30 to 60 s", python=False),
)  # fmt: skip


def named(names: str) -> list[Contender]:
    """All, or those that are named (ours always among them)."""
    if not names:
        return list(CONTENDERS)
    wanted = {name.strip().lower() for name in names.split(",")} | {OURS}
    chosen = [one for one in CONTENDERS if one.name.lower() in wanted or one.name.lower().split()[0] in wanted]
    if unknown := wanted - {part for one in chosen for part in (one.name.lower(), one.name.lower().split()[0])}:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are: {', '.join(one.name for one in CONTENDERS)}")
    return chosen
