"""Compare run-coordinator with Hayhooks 2.x, the closest rival: durable executions of Haystack pipelines and agents on Redis.

    scripts/bench hayhooks [--runs N] [--steps N] [--resumes N] [--lease S] [--json]

Both have two processes and the same lease. Hayhooks uses its defaults otherwise: a process looks for work every 5 s unless it was
submitted to the same process, and leases are judged every 5 s. Measured: the bytes that a saved step sends, how long a run pauses
after SIGKILL and after SIGTERM and how many saved steps are repeated, and how fast a waiting run continues after it is resumed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import venvs
from handover.stages import Ours, Stage
from server import BenchServer, server, where

from coordinator import Client

PATIENCE = 90.0
PACE = 0.1  # seconds between two steps
TEXT = "x" * 1000
APP = Path(__file__).parent / "peers" / "hayhooks_app.py"


class OurStage(Ours):
    """A supervisor with two worker processes, and a coordinator."""

    app = "durable_app:runs"

    def begin(self) -> None:
        super().begin()
        self.coordinator()

    def submit(self, kind: str, steps: int, seconds: float, count: int = 1) -> list[str]:
        with Client(self.url, self.namespace) as client:
            runs = client.enqueue_many([(kind, {"steps": steps, "seconds": seconds, "text": TEXT})] * count)
            return [run.id for run in runs]

    def resume(self, run: str) -> None:
        with Client(self.url, self.namespace) as client:
            handle = client.handle(run)
            handle.view()  # The client is connected, as a server of Hayhooks is.
            self.resumed_at = time.monotonic_ns()
            handle.send("go")


class Hayhooks(Stage):
    """Two servers of Hayhooks with their workers."""

    name = "hayhooks"
    lease = 15.0

    def begin(self) -> None:
        self._ports = [_free_port(), _free_port()]
        python = venvs.python_of("hayhooks")
        for port in self._ports:
            self.start(python, APP, self.url, str(port), str(self.lease))
        for port in self._ports:
            self.wait(lambda: _answers(port), "a server of Hayhooks")  # noqa: B023

    def submit(self, kind: str, steps: int, seconds: float, count: int = 1) -> list[str]:
        work = {"steps": steps, "seconds": seconds, "text": TEXT}
        return [self._post(f"{kind}/run-durable", work)["execution_id"] for _ in range(count)]

    def resume(self, run: str) -> None:
        self.resumed_at = time.monotonic_ns()
        self._post(f"approval/executions/{run}/resume", {"approved": True})

    def _post(self, path: str, body: object) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._ports[0]}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            found: dict[str, Any] = json.load(reply)
        return found


def bytes_of_steps(host: BenchServer, stage: OurStage | Hayhooks, steps: int) -> dict[str, float]:
    """Measure what one run sends while it saves a growing transcript."""
    (warm,) = stage.submit("chat", 3, 0.0)  # The scripts are loaded.
    stage.wait(lambda: _has_step(stage, warm, 2), "the first run")
    before = host.usage()
    (run,) = stage.submit("chat", steps, 0.0)
    stage.wait(lambda: _has_step(stage, run, steps - 1), "the last step", PATIENCE)
    sent = (host.usage() - before).received
    return {"kib_per_step": sent / steps / 1024, "times_the_transcript": sent / (steps * len(TEXT))}


def _has_step(stage: Stage, run: str, step: int) -> bool:
    return any(mark.job == run and mark.step == step for mark in stage.marks("step"))


def interrupted(stage: OurStage | Hayhooks, runs: int, *, kill: bool) -> dict[str, float]:
    """End a process that holds runs. Measure each run until it starts in another process, and how many steps are repeated."""
    ids = set(stage.submit("chat", 100_000, PACE, runs))
    stage.wait(lambda: ids <= {mark.job for mark in stage.marks("step") if mark.step >= 3}, "the runs to work")
    victim = next(mark.pid for mark in stage.holders().values() if mark.job in ids)
    held = {job for job, mark in stage.holders().items() if mark.pid == victim and job in ids}
    at = time.monotonic_ns()
    if kill:
        os.kill(victim, signal.SIGKILL)
    else:
        stage.ask_to_stop(victim)

    def resumed() -> bool:
        return all(stage.holders()[job].pid != victim for job in held)

    stage.wait(resumed, "the runs to continue elsewhere", PATIENCE)
    holders, repeated, pauses = stage.holders(), 0, []
    for job in held:
        steps = [mark for mark in stage.marks("step") if mark.job == job and mark.pid == victim]
        pauses.append((holders[job].at - max(at, steps[-1].at)) / 1e9)
        repeated += max(0, steps[-1].step + 1 - holders[job].step)
    word = "kill" if kill else "sigterm"
    return {
        f"{word}_pause_p50_s": statistics.median(pauses), f"{word}_pause_max_s": max(pauses),
        f"{word}_runs": len(held), f"{word}_steps_repeated": repeated,
    }  # fmt: skip


def resumes(stage: OurStage | Hayhooks, count: int) -> dict[str, float]:
    """Measure from the start of the client's call to the first line of the handler after its wait."""
    took = []
    for _ in range(count):
        (run,) = stage.submit("approval", 0, 0.0)
        stage.wait(lambda: any(mark.job == run for mark in stage.marks("waits")), "the run to wait")  # noqa: B023
        time.sleep(0.3)  # The wait is stored.
        stage.resume(run)
        stage.wait(lambda: any(mark.job == run for mark in stage.marks("resumed")), "the run to continue")  # noqa: B023
        took.append(next(mark.at for mark in stage.marks("resumed") if mark.job == run) - stage.resumed_at)
    return {"resume_p50_ms": statistics.median(took) / 1e6, "resume_max_ms": max(took) / 1e6}


def measure(
    host: BenchServer, kind: type[OurStage | Hayhooks], options: argparse.Namespace, folder: Path
) -> dict[str, float]:
    figures: dict[str, float] = {}
    for number, part in enumerate(("bytes", "kill", "sigterm", "resume")):
        host.empty()
        stage = kind(host.url, folder, number)
        stage.lease = options.lease
        try:
            stage.begin()
            if part == "bytes":
                figures |= bytes_of_steps(host, stage, options.steps)
            elif part == "resume":
                figures |= resumes(stage, options.resumes)
            else:
                figures |= interrupted(stage, options.runs, kill=part == "kill")
        finally:
            stage.end()
    return {name: round(value, 2) for name, value in figures.items()}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json", timeout=5).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200, help="steps of the run whose bytes are counted")
    parser.add_argument("--resumes", type=int, default=50)
    parser.add_argument("--lease", type=float, default=5.0, help="the lease of both in seconds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    with server() as host, tempfile.TemporaryDirectory() as folder:
        facts = where(host) | {"lease": options.lease}
        for kind in (OurStage, Hayhooks):
            found[kind.name] = measure(host, kind, options, Path(folder))
    if options.json:
        print(json.dumps(facts | {"found": found}))
        return
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(f"{'':24}", *(f"{name:>16}" for name in found))
    for name in found[OurStage.name]:
        print(f"{name:24}", *(f"{row[name]:>16}" for row in found.values()))


if __name__ == "__main__":
    main()
