"""Measure a round trip: a client enqueues a run and waits for its result, one run after the other, beside another queue.

    scripts/bench trip [--count N] [--rounds N] [--only huey,taskiq] [--profile] [--json]

The rounds of the queues are in turns. Each queue has one worker, and an idle system otherwise. The client's processor time and the
server's commands for each trip depend less on the load of the machine than the milliseconds. `--profile` prints what the client of
run-coordinator does in that time.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import tempfile
import time
from pathlib import Path

from contenders import OURS, Contender, named
from server import BenchServer, server, where

from coordinator import Client

GOAL = 1.0  # times the round trip of huey


def measure(host: BenchServer, contender: Contender, marks: Path, count: int) -> dict[str, float]:
    """Measure the round trips of one queue."""
    host.empty()
    marks.write_bytes(b"")
    with contender.working(host.url, marks):
        contender.ask("trip", host.url, marks, 20)  # The worker is ready and has executed jobs.
        before = host.usage()
        found = contender.ask("trip", host.url, marks, count)
        assert found, f"{contender.name} has no results"
        spent = host.usage() - before
    ordered = sorted(found["ms"])
    return {
        "least_ms": ordered[0],
        "p10_ms": ordered[len(ordered) // 10],
        "p50_ms": ordered[len(ordered) // 2],
        "p99_ms": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
        "client_us": found["cpu"] / count * 1e6,
        "server_us": spent.cpu / count * 1e6,
        "commands": spent.commands / count,
    }


def profile(host: BenchServer, marks: Path, count: int) -> None:
    """Print the functions in which the thread that calls the client spends its time."""
    host.empty()
    (ours,) = named(OURS)
    with ours.working(host.url, marks), Client(host.url) as client:
        client.enqueue("nothing", {"began": -1, "text": "x"}).result(60)
        profiler = cProfile.Profile()
        for _ in range(count):
            profiler.enable()
            client.enqueue("nothing", {"began": -1, "text": "x"}).result(60)
            profiler.disable()
            time.sleep(0.005)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="huey")
    parser.add_argument("--profile", action="store_true", help="profile our client instead")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {}
    with server() as host, tempfile.TemporaryDirectory() as directory:
        facts, marks = where(host), Path(directory) / "marks"
        if options.profile:
            profile(host, marks, options.count)
            return
        for _ in range(options.rounds):
            for contender in named(options.only):
                rounds.setdefault(contender.name, []).append(measure(host, contender, marks, options.count))
    found = {
        name: {key: round(statistics.median(row[key] for row in rows), 3) for key in rows[0]}
        for name, rows in rounds.items()
    }
    if options.json:
        print(json.dumps(facts | {"queues": found}))
        return
    print(f"{'':18}", *(f"{key:>10}" for key in found[OURS]))
    for name, row in found.items():
        print(f"{name:18}", *(f"{value:>10}" for value in row.values()))
    for name, row in found.items():
        if name != OURS:
            ratios = (f"{key.removesuffix('_ms')} {found[OURS][key] / row[key]:.2f}" for key in ("p10_ms", "p50_ms"))
            print(f"ours relative to {name}: {', '.join(ratios)} (goal for huey: at most {GOAL:.0f})")


if __name__ == "__main__":
    main()
