"""Measure what metrics and traces cost: the drain of empty runs with them, as a ratio to the drain without.

    scripts/bench observed [--count N] [--rounds N] [--only control,metrics,spans,traces] [--json]

The modes are in turns, and each round gives one ratio for each mode:

    control  the same program again. Its ratios show how much the machine changes, and should be 1.
    metrics  metrics of the worker process.
    spans    two bare spans of OpenTelemetry's SDK, without attributes, for 1 % of the runs: the least that traces can cost.
    traces   `Tracing` with 1 % of the runs sampled.

Each figure is the median of the ratios, with the first and the third quartile, and the ratio of the fastest rounds. Other
programs only make a round slower, so the fastest rounds are disturbed least. `rate` is the rate of the drain, `worker` the
processor time of the worker for each run.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from quick import rate_of_enqueueing
from server import BenchServer, server, where

from coordinator import Client

APP = Path(__file__).with_name("observed_app.py")
MODES = ("control", "metrics", "spans", "traces")


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


def measure(count: int, rounds: int, modes: list[str]) -> dict[str, Any]:
    order, rows = ["nothing", *modes], list[dict[str, tuple[float, float]]]()
    with server() as host:
        facts = where(host)
        drained(host, min(count, 5000), "nothing")  # a first drain, which is slower, is not counted
        for number in range(rounds):
            first = number % len(order)  # every mode is first, last and after every other one
            turn = [*order[first:], *order[:first]]
            rows.append({mode: drained(host, count, mode) for mode in (turn if number % 2 else turn[::-1])})
    found = facts | {"count": count, "rounds": rounds}
    for i, (name, best) in enumerate((("rate", max), ("worker", min))):
        found[f"{name} of nothing"] = round(statistics.median(row["nothing"][i] for row in rows), 1)
        for mode in modes:
            ratios = [row[mode][i] / row["nothing"][i] for row in rows]
            low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
            fastest = best(row[mode][i] for row in rows) / best(row["nothing"][i] for row in rows)
            figures = {"median": middle, "quartile_1": low, "quartile_3": high, "fastest": fastest}
            found[f"{name} with {mode}"] = {key: round(value, 3) for key, value in figures.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default=",".join(MODES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.count, options.rounds, options.only.split(","))
    if options.json:
        print(json.dumps(found))
        return
    width = max(len(name) for name in found)
    for name, value in found.items():
        shown = "  ".join(f"{key} {figure}" for key, figure in value.items()) if isinstance(value, dict) else value
        print(f"{name:{width}}  {shown}")


if __name__ == "__main__":
    main()
