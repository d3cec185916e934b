"""Measure external calls under a limit: a block that need not wait, the share of a rate that is used, handed-over places.

One coordinator, and worker processes on the same host. The benchmark reports figures and never fails because of them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import struct
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from draining import excess
from due import PATIENCE, process, spread, tool
from server import server, where

from coordinator import Client


def measure_uncontended(client: Client, count: int) -> dict[str, float]:
    """Measure blocks that need not wait, one after the other in one handler."""
    client.set_rate("free", "100000000/s", burst=100_000_000, at_once=1000)
    client.enqueue("uncontended", {"count": 50}).result(PATIENCE)
    taken: list[float] = client.enqueue("uncontended", {"count": count}).result(PATIENCE)
    return spread("block", taken) | {"block_p50_ms": round(statistics.median(taken) * 1000, 3)}


def measure_rate(
    client: Client, starts_file: Path, pool: int, tasks: int, rate: int, burst: int, kills: int
) -> dict[str, float]:
    """Measure the starts of many calls that wait for a rate, while worker processes are killed one after the other.

    A process that is killed has used the tokens of its calls, and its runs call again, so there may be more starts than tasks. The
    share is the number of starts, divided by the burst and what the rate allows between the first and the last start.

    Args:
        client: The client.
        starts_file: The file to which handlers write when their calls started.
        pool: The process id of the supervisor.
        tasks: The number of runs, with one call each.
        rate: The calls that are allowed in a second.
        burst: The burst.
        kills: The number of processes that are killed.
    """
    client.set_rate("busy", f"{rate}/s", burst=burst)
    handles = client.enqueue_many([("contended", {})] * tasks)
    for number in range(kills):
        _until(starts_file, tasks * (number + 1) // (kills + 2))
        os.kill(random.choice(_children(pool)), signal.SIGKILL)
    for handle in handles:
        handle.result(PATIENCE + tasks / rate)
    starts = sorted(struct.unpack("<d", part)[0] for part in _parts(starts_file))
    elapsed = starts[-1] - starts[0]
    return {
        "kills": float(kills),
        "starts": float(len(starts)),
        "rate_allowed": float(rate),
        "rate_used": round((len(starts) - burst) / elapsed, 1),
        "rate_share": round(len(starts) / (burst + rate * elapsed), 4),
        "most_above_rate_times_window": round(max(excess(starts, rate)), 1),
        "burst": float(burst),
    }


def _parts(file: Path) -> list[bytes]:
    content = file.read_bytes()
    return [content[at : at + 8] for at in range(0, len(content), 8)]


def _until(file: Path, starts: int) -> None:
    while file.stat().st_size < 8 * starts:
        time.sleep(0.01)


def _children(pool: int) -> list[int]:
    found = Path(f"/proc/{pool}/task/{pool}/children").read_text()
    return [int(child) for child in found.split()]


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
    parser.add_argument(
        "--kills", type=int, default=2, help="killed worker processes; a run that loses three without progress is dead"
    )
    parser.add_argument("--count", type=int, default=2000, help="uncontended blocks")
    parser.add_argument("--server", default="valkey")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    figures: dict[str, float] = {}
    with server(chosen.server) as found, tempfile.NamedTemporaryFile() as starts:
        facts = where(found) | {"processes": chosen.processes, "tasks": chosen.tasks}
        url = f"redis://127.0.0.1:{found.port}"
        with process(tool("coordinator"), "start", RUNS_URL=url), Client(url) as client:
            with process(tool("workers"), "start", "limits_app:runs", RUNS_URL=url):
                figures |= measure_uncontended(client, chosen.count)
            options = ["--processes", str(chosen.processes), "--concurrency", "100"]
            with process(
                tool("workers"), "start", "limits_app:runs", *options, RUNS_URL=url, BENCH_STARTS=starts.name
            ) as pool:
                client.enqueue("uncontended", {"count": 1}).result(PATIENCE)
                time.sleep(3)  # all processes have started
                figures |= measure_rate(
                    client, Path(starts.name), pool.pid, chosen.tasks, chosen.rate, chosen.burst, chosen.kills
                )
                figures |= measure_places(client, min(chosen.tasks, 200))
    if chosen.json:
        print(json.dumps(facts | figures))
        return
    for name, value in (facts | figures).items():
        print(f"{name:>32}  {value}")


if __name__ == "__main__":
    main()
