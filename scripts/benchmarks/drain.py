"""Measure the drain of empty runs with one, two and more worker processes, and what limits it.

    scripts/bench drain [--count N] [--processes 1,2] [--rounds N] [--beside FOLDER] [--server valkey|redis] [--json]

For each number of processes: the rate, the share of a core that the server uses, and the share that each worker process uses. The
server executes commands in one thread. If its share is near 100 %, it limits the drain; if the shares of all processes together are
near 100 % for each core, the machine does. The rounds are in turns.

`--beside FOLDER` also measures another checkout of this project, in which `scripts/setup` was run, and prints the ratio of our
figures to its figures in the same round. So two versions can be compared on a machine whose speed changes from minute to minute.
The ratio of the fastest rounds is disturbed least, because other programs only make a round slower.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from contenders import OURS, Contender, named, version_in
from draining import drained
from server import BenchServer, server, where


def measure(host: BenchServer, contender: Contender, marks: Path, count: int, processes: int) -> dict[str, float]:
    """Drain that many waiting runs with that many fleets of one worker process."""
    host.empty()
    contender.ask("many", host.url, marks, count)
    found = drained(host, contender, marks, count, processes)
    # The rate counts from the first mark to the last, the processor time from the first look to the last: shares are estimates.
    return {
        "runs_per_s": round(found["rate"]),
        "server_core_percent": round(100 * found["redis_us"] * found["rate"] / 1e6),
        "worker_core_percent": round(100 * found["client_us"] * found["rate"] / 1e6 / processes),
        "server_us": round(found["redis_us"], 1),
        "worker_us": round(found["client_us"], 1),
        "commands": round(found["commands"], 1),
    }


def what_limits(row: dict[str, float], processes: int, cores: int, load: float) -> str:
    """Return what limits a drain, from the shares of the cores and from the load before the benchmark."""
    if load > cores / 2:
        return f"something unknown, because other programs use this machine (load {load})"
    if row["server_core_percent"] >= 90:
        return "the server's thread"
    if row["server_core_percent"] + processes * row["worker_core_percent"] >= 85 * cores:
        return f"the {cores} cores of the machine"
    if row["worker_core_percent"] >= 90:
        return "the event loop of the worker process"
    return "waiting: trips between worker and server"


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure over the rounds."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def compare(ours: list[dict[str, float]], others: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Compare our figures with those of another version in the same rounds.

    Returns:
        For each figure the quartiles of the ratios of all rounds, and the ratio of the best rounds of both versions.
    """
    found = {}
    for name in ours[0]:
        ratios = [row[name] / other[name] for row, other in zip(ours, others, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        best = max if name == "runs_per_s" else min
        fastest = best(row[name] for row in ours) / best(row[name] for row in others)
        figures = {"median": middle, "quartile_1": low, "quartile_3": high, "fastest": fastest}
        found[name] = {key: round(value, 3) for key, value in figures.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path, metavar="FOLDER", help="another checkout of this project")
    parser.add_argument("--server", choices=("valkey", "redis"), default="valkey")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    (ours,) = named(OURS)
    versions = [ours] if options.beside is None else [ours, version_in(options.beside)]
    rounds: dict[tuple[Contender, int], list[dict[str, float]]] = defaultdict(list)
    with server(options.server) as host, tempfile.TemporaryDirectory() as directory:
        facts: dict[str, Any] = where(host)
        for number in range(options.rounds):
            for processes in map(int, options.processes.split(",")):
                for version in versions if number % 2 == 0 else reversed(versions):
                    rounds[version, processes].append(
                        measure(host, version, Path(directory) / "marks", options.count, processes)
                    )
    found = {processes: medians(rows) for (version, processes), rows in rounds.items() if version is ours}
    limits = {
        processes: what_limits(row, processes, os.cpu_count() or 1, facts["load"]) for processes, row in found.items()
    }
    beside = {
        processes: compare(rounds[ours, processes], rows)
        for (version, processes), rows in rounds.items()
        if version is not ours
    }
    if options.json:
        print(json.dumps(facts | {"processes": found, "limits": limits} | ({"beside": beside} if beside else {})))
        return
    for processes, row in found.items():
        print(f"{processes} worker {'process' if processes == 1 else 'processes'}; limited by {limits[processes]}")
        for name, value in row.items():
            print(f"  {name:22} {value:>10}")
        if processes in beside:
            print(f"  ratios to the version in {options.beside}")
        for name, ratios in beside.get(processes, {}).items():
            print(f"  {name:22}", "  ".join(f"{key} {ratio}" for key, ratio in ratios.items()))


if __name__ == "__main__":
    main()
