"""Measure what one step of a handler costs: a phase, an effect of `run.once`, a block of `run.limit`, and a save for comparison.

    scripts/bench steps [--count N] [--rounds N] [--json]

One run makes many steps, one after the other, in one worker process. The steps of all kinds are in turns. The figures are the time
of a step, and the processor time of the worker and the server for it, as medians of rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from typing import Any

from due import PATIENCE, process, tool
from server import BenchServer, cpu_of_tree, server, where

from coordinator import Client

KINDS = ("nothing", "phase", "once", "limit", "save")


def measure(found: BenchServer, client: Client, pid: int, what: str, count: int) -> dict[str, float]:
    """Let one run make that many steps."""
    usage, spent = found.usage(), cpu_of_tree(pid)
    taken: list[float] = client.enqueue("steps", {"what": what, "count": count}).result(PATIENCE)
    used, own = found.usage() - usage, cpu_of_tree(pid) - spent
    return {
        "p50_us": statistics.median(taken) * 1e6,
        "worker_us": own / count * 1e6,
        "server_us": used.cpu / count * 1e6,
        "commands": used.commands / count,
        "bytes": used.received / count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="steps of one run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = defaultdict(list)
    with server() as found, process(tool("workers"), "start", "steps_app:runs", RUNS_URL=found.url) as worker:
        facts: dict[str, Any] = where(found) | {"count": options.count, "rounds": options.rounds}
        with Client(found.url) as client:
            client.set_rate("free", "100000000/s", burst=100_000_000)
            for what in KINDS:
                client.enqueue("steps", {"what": what, "count": 20}).result(PATIENCE)  # warm
            for _ in range(options.rounds):
                for what in KINDS:
                    rows[what].append(measure(found, client, worker.pid, what, options.count))
    figures = {
        what: {name: round(statistics.median(row[name] for row in each), 1) for name in each[0]}
        for what, each in rows.items()
    }
    if options.json:
        print(json.dumps(facts | {"steps": figures}))
        return
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(f"{'':8}", *(f"{name:>10}" for name in figures["nothing"]))
    for what, row in figures.items():
        print(f"{what:8}", *(f"{value:>10}" for value in row.values()))


if __name__ == "__main__":
    main()
