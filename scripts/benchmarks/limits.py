"""Measure limits of calls to the outside: an uncontended block, the share of an allowed rate that is used, and handed-over places.

One coordinator, and worker processes on the same host. The benchmark reports figures and never fails because of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import pairwise

from due import PATIENCE, process, spread, tool
from server import server, where

from coordinator import Client


def measure_uncontended(client: Client, count: int) -> dict[str, float]:
    """Measure blocks that need not wait, one after the other in one handler."""
    client.set_rate("free", "100000000/s", burst=100_000_000, at_once=1000)
    client.enqueue("uncontended", {"count": 50}).result(PATIENCE)
    taken: list[float] = client.enqueue("uncontended", {"count": count}).result(PATIENCE)
    return spread("block", taken) | {"block_p50_ms": round(statistics.median(taken) * 1000, 3)}


def measure_rate(client: Client, tasks: int, rate: int, burst: int) -> dict[str, float]:
    """Measure the starts of many calls that wait for a rate."""
    client.set_rate("busy", f"{rate}/s", burst=burst)
    handles = client.enqueue_many([("contended", {})] * tasks)
    starts = sorted(handle.result(PATIENCE + tasks / rate) for handle in handles)
    steady = starts[burst:]  # the burst is over
    used = (len(steady) - 1) / (steady[-1] - steady[0])
    most = max(_excess(starts, rate), default=0.0)
    return {
        "rate_allowed": float(rate),
        "rate_used": round(used, 1),
        "rate_share": round(used / rate, 4),
        "most_above_rate_times_window": round(most, 1),
        "burst": float(burst),
    }


def _excess(starts: list[float], rate: int) -> list[float]:
    """Return, for each start, how many calls began in the worst window that ends with it, above rate times window."""
    # The excess over all windows that end at a start: a running maximum, as in the bucket itself.
    found, level = list[float](), 0.0
    for before, at in zip([starts[0], *starts], starts, strict=False):
        level = max(0.0, level - rate * (at - before)) + 1
        found.append(level)
    return found


def measure_places(client: Client, tasks: int) -> dict[str, float]:
    """Measure how long a place is empty between two calls that need it."""
    client.set_rate("places", at_once=1)
    handles = client.enqueue_many([("holding", {})] * tasks)
    held = sorted(handle.result(PATIENCE) for handle in handles)
    gaps = [after[0] - before[1] for before, after in pairwise(held)]
    return spread("place_handed_over", gaps)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench limits")
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--rate", type=int, default=50)
    parser.add_argument("--burst", type=int, default=10)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--count", type=int, default=2000, help="uncontended blocks")
    parser.add_argument("--server", default="valkey")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    figures: dict[str, float] = {}
    with server(chosen.server) as found:
        facts = where(found) | {"processes": chosen.processes, "tasks": chosen.tasks}
        url = f"redis://127.0.0.1:{found.port}"
        with process(tool("coordinator"), "start", RUNS_URL=url), Client(url) as client:
            with process(tool("workers"), "start", "limits_app:runs", RUNS_URL=url):
                figures |= measure_uncontended(client, chosen.count)
            options = ["--processes", str(chosen.processes), "--concurrency", "100"]
            with process(tool("workers"), "start", "limits_app:runs", *options, RUNS_URL=url):
                client.enqueue("uncontended", {"count": 1}).result(PATIENCE)
                time.sleep(3)  # all processes have started
                figures |= measure_rate(client, chosen.tasks, chosen.rate, chosen.burst)
                figures |= measure_places(client, min(chosen.tasks, 200))
    if chosen.json:
        print(json.dumps(facts | figures))
        return
    for name, value in (facts | figures).items():
        print(f"{name:>32}  {value}")


if __name__ == "__main__":
    main()
