"""Measure what metrics and traces cost: empty runs with them, as a ratio to the same runs without.

    scripts/bench observed [--rounds N] [--only control,metrics,spans,traces] [--json]

One worker process executes windows of 4,000 runs, and switches metrics and middleware between them. So the windows that are
compared are less than a second apart, and the changes of the machine concern all of them alike. The modes are in turns:

    control  nothing, once more. Its ratios should be 1, and show the error of the figures.
    metrics  metrics of the worker process.
    spans    two bare spans of OpenTelemetry's SDK, without attributes, for 1 % of the runs.
    traces   `Tracing` with 1 % of the runs sampled.

A round has a window of each mode and one with nothing. Each figure is the median of the ratios of all rounds, with the first and
the third quartile. `rate` is the rate of the drain, `worker` the processor time of the worker for each run.
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
WINDOW = 4000  # runs, as in the app


def windows(host: BenchServer, rounds: int, modes: list[str]) -> list[tuple[str, float, float]]:
    """Return for each window its mode, its runs per second, and the worker's processor time for a run in microseconds."""
    count = (rounds * len(modes) + 2) * WINDOW
    with Client(host.url) as client:
        rate_of_enqueueing(client, count)
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([sys.executable, str(APP), host.url, str(rounds), *modes], stdout=output)
        while host.admin.zcard("{runs:0}:ended:completed") < count:
            if process.poll() is not None:
                raise SystemExit("the worker process ended too early")
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        output.seek(0)
        found: list[tuple[str, float, float]] = json.loads(output.read())
    return [window for window in found if window[0] != "rest"]


def measure(rounds: int, modes: list[str]) -> dict[str, Any]:
    with server() as host:
        facts = where(host)
        found = windows(host, rounds, ["nothing", *modes])
    size = len(modes) + 1
    rows = [{mode: figures for mode, *figures in found[i : i + size]} for i in range(0, len(found), size)]
    result = facts | {"rounds": rounds}
    for i, name in enumerate(("rate", "worker")):
        result[f"{name} of nothing"] = round(statistics.median(row["nothing"][i] for row in rows), 1)
        for mode in modes:
            ratios = [row[mode][i] / row["nothing"][i] for row in rows]
            low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
            figures = {"median": middle, "quartile_1": low, "quartile_3": high}
            result[f"{name} with {mode}"] = {key: round(value, 3) for key, value in figures.items()}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", default=",".join(MODES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.rounds, options.only.split(","))
    if options.json:
        print(json.dumps(found))
        return
    width = max(len(name) for name in found)
    for name, value in found.items():
        shown = "  ".join(f"{key} {figure}" for key, figure in value.items()) if isinstance(value, dict) else value
        print(f"{name:{width}}  {shown}")


if __name__ == "__main__":
    main()
