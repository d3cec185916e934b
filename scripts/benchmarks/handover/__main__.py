"""Measure how long a run pauses when its process ends: by a stop, a kill of a process, or a kill of a whole process tree.

    scripts/bench handover [--rounds N] [--runs N] [--lease S] [--json] [--write]

arq and SAQ are measured too, in interleaved rounds. Each run writes a mark at its first line and at its last, however it ends. The
figure is the time between two marks of different processes. --write puts the figures into docs/benchmarks.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from coordinator.store.transport.connections.embedded_server import attach
from handover.report import write
from handover.stages import Arq, Ours, Saq, Stage, descendants

PATIENCE = 60.0  # This is the limit for our own processes.
# This is the limit for another queue that has not restarted a job after a kill: its defaults are minutes.
GIVEN_UP = 5.0
Samples = dict[str, list[float]]


def moved(stage: Stage, hit: set[str], before: int, patience: float) -> dict[str, int]:
    """Wait until all affected runs have started again, for at most `patience` seconds. Return the time in ns of each new start.

    Args:
        stage: The contender.
        hit: The affected runs.
        before: The time in ns of the fault.
        patience: The longest wait in seconds.
    """

    def again() -> dict[str, int]:
        return {mark.job: mark.at for mark in reversed(stage.marks("start")) if mark.at > before and mark.job in hit}

    until = time.monotonic() + patience
    while set(again()) != hit and time.monotonic() < until:
        time.sleep(0.005)
    return again()


def hit_one(stage: Stage, runs: int) -> tuple[int, set[str]]:
    """Start the runs. Return the process that has most of them, and its runs."""
    stage.begin()
    stage.enqueue(runs)
    stage.wait(lambda: len(stage.holders()) >= runs, f"{runs} runs to start")
    time.sleep(1.2)  # A save of each run is acknowledged, and nothing else is in progress.
    by: dict[int, set[str]] = defaultdict(set)
    for job, mark in stage.holders().items():
        by[mark.pid].add(job)
    pid = max(by, key=lambda one: len(by[one]))
    return pid, by[pid]


def milliseconds(ns: int) -> float:
    return round(ns / 1e6, 2)


def stopped(stage: Stage, runs: int) -> dict[str, Any]:
    """Drain one worker process. Measure how long its runs pause until their handlers start in another process.

    The pause is measured twice: from the request, and from the moment at which the handler was stopped.
    """
    pid, hit = hit_one(stage, runs)
    sent = time.monotonic_ns()
    stage.ask_to_stop(pid)
    began = moved(stage, hit, sent, PATIENCE)
    ends = {mark.job: mark.at for mark in stage.marks("stop") if mark.pid == pid}
    newest = stage.holders()
    return {
        "from_signal": [milliseconds(at - sent) for at in began.values()],
        "from_release": [milliseconds(at - ends[job]) for job, at in began.items() if job in ends],
        "missing": len(hit) - len(began),
        "went_on": sum(newest[job].step > 0 for job in began),
        "tries": stage.used_up() if isinstance(stage, Ours) else sum(newest[job].tries for job in began),
    }


def killed(stage: Stage, runs: int, patience: float) -> dict[str, Any]:
    """Kill one worker process with SIGKILL. Measure how long its runs pause until their handlers start in another process."""
    pid, hit = hit_one(stage, runs)
    sent = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    began = moved(stage, hit, sent, patience)
    return {"from_kill": [milliseconds(at - sent) for at in began.values()], "missing": len(hit) - len(began)}


def uprooted(stage: Ours, runs: int, *, again: bool) -> dict[str, Any]:
    """Kill a supervisor with all its processes by SIGKILL.

    Either a coordinator gives their runs to another fleet when the lease has expired, or the fleet is restarted on the same host
    and frees the runs that it left behind.
    """
    stage.begin()
    stage.coordinator()
    stage.enqueue(runs)
    stage.wait(lambda: len(stage.holders()) >= runs, f"{runs} runs to start")
    time.sleep(1.2)
    hit = set(stage.holders())
    if not again:
        stage.fleet_of(1)
    tree = [stage.fleet.pid, *descendants(stage.fleet.pid)]
    sent = time.monotonic_ns()
    for pid in tree:
        os.kill(pid, signal.SIGKILL)
    if again:
        stage.begin()
    began = moved(stage, hit, sent, PATIENCE + stage.lease)
    return {"from_kill": [milliseconds(at - sent) for at in began.values()], "missing": len(hit) - len(began)}


def measure(rounds: int, runs: int, lease: float) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    Ours.lease = lease
    with tempfile.TemporaryDirectory() as directory, attach(Path(directory) / "server") as server:
        admin = redis.Redis.from_url(server.url)
        numbers = iter(range(1_000_000))

        def play(name: str, make: type[Stage], part: Callable[[Any], dict[str, Any]]) -> None:
            stage = make(server.url, Path(directory), next(numbers))
            try:
                found[name].append(part(stage))
            finally:
                stage.end()
                admin.flushall()

        for _ in range(rounds):
            for peer in (Ours, Arq, Saq):
                play(f"stop {peer.name}", peer, lambda stage: stopped(stage, runs))
            for peer in (Ours, Arq, Saq):
                patience = PATIENCE if peer is Ours else GIVEN_UP
                play(f"kill {peer.name}", peer, lambda stage, patience=patience: killed(stage, runs, patience))  # type: ignore[misc]
            play("tree lost", Ours, lambda stage: uprooted(stage, runs, again=False))
            play("tree started again", Ours, lambda stage: uprooted(stage, runs, again=True))
        version = admin.info("server").get("valkey_version", "?")
    where = {"rounds": rounds, "runs": runs, "lease": lease, "valkey": version, "cores": os.cpu_count()}
    return (
        where | {"load": round(os.getloadavg()[0], 1)} | {"parts": {name: summed(all_) for name, all_ in found.items()}}
    )


def summed(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the samples of all rounds together, with their quantiles, and the sums of the counts."""
    whole: dict[str, Any] = {}
    for key in rounds[0]:
        values = [one[key] for one in rounds]
        if not isinstance(values[0], list):
            whole[key] = sum(values)
            continue
        samples = sorted(sample for value in values for sample in value)
        whole[key] = {"count": len(samples)}
        if len(samples) > 1:
            cuts = statistics.quantiles(samples, n=100, method="inclusive")
            whole[key] |= {"p50": round(cuts[49], 2), "p99": round(cuts[98], 2), "max": samples[-1], "samples": samples}
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--lease", type=float, default=5.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    found = measure(options.rounds, options.runs, options.lease)
    if options.write:
        write(found)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, part in found["parts"].items():
        shown = (f"{key} {_short(value)}" for key, value in part.items())
        print(f"{name:24} {'  '.join(shown)}")


def _short(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return f"p50 {value['p50']:.1f} p99 {value['p99']:.1f} ms ({value['count']})" if "p50" in value else "none"


if __name__ == "__main__":
    main()
