"""Measure what metrics and traces cost: the drain of empty runs with them, as a ratio to the drain without.

    scripts/bench observed [--count N] [--rounds N] [--only metrics,traces] [--json]

Rounds with and without are interleaved, and each round gives one ratio. The figures are medians: of the rate of the drain, and of
the processor time of the worker per run, which a busy machine disturbs less. Traces
are sampled at 1 %.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from quick import rate_of_enqueueing
from server import BenchServer, server

from coordinator import Client

APP = Path(__file__).with_name("observed_app.py")
MODES = ("metrics", "traces")


def drained(host: BenchServer, count: int, mode: str) -> tuple[float, float]:
    """Return the runs per second, by the server's clock, and the worker's processor time per run in microseconds."""
    host.empty()
    with Client(host.url) as client:
        rate_of_enqueueing(client, count)
    first = host.admin.zrange("{runs:0}:ready:default:nothing@0", 0, 0)[0].decode()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([sys.executable, str(APP), host.url, mode], stdout=output)
        while host.admin.zcard("{runs:0}:ended:completed") < count:
            if process.poll() is not None:
                raise SystemExit("the worker process ended too early")
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        output.seek(0)
        own = float(output.read())
    started = int(host.admin.hget(f"{{runs:0}}:run:{first}", "started"))
    last = host.admin.zrange("{runs:0}:ended:completed", -1, -1)[0].decode()
    seconds = (int(host.admin.hget(f"{{runs:0}}:run:{last}", "ended")) - started) / 1000
    return count / seconds, own / count * 1e6


def measure(count: int, rounds: int, modes: list[str]) -> dict[str, object]:
    found: dict[str, list[float]] = {}
    with server() as host:
        drained(host, min(count, 5000), "nothing")  # a first drain, which is slower, is not counted
        for number in range(rounds):
            order = ["nothing", *modes]
            results = {mode: drained(host, count, mode) for mode in (order if number % 2 else order[::-1])}
            rate, own = results["nothing"]
            found.setdefault("rate", []).append(rate)
            found.setdefault("worker_us", []).append(own)
            for mode in modes:
                found.setdefault(f"{mode}_rate_ratio", []).append(results[mode][0] / rate)
                found.setdefault(f"{mode}_worker_ratio", []).append(results[mode][1] / own)
    where = {"count": count, "rounds": rounds, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    return where | {name: round(statistics.median(values), 3) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default=",".join(MODES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.count, options.rounds, options.only.split(","))
    if options.json:
        print(json.dumps(found))
        return
    width = max(len(name) for name in found)
    for name, value in found.items():
        print(f"{name:{width}}  {value}")


if __name__ == "__main__":
    main()
