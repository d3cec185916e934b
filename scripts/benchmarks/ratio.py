"""Detect a slowdown: compare our rates, as ratios to the bare limit measured in the same minute, with the recorded ones.

    scripts/bench ratio [--count N] [--rounds N] [--record]

Two ratios are of rates: enqueueing and draining. The third, `server`, is of processor time of the server: a claim and a completion
relative to their commands alone (see floor.py).

It fails (1) only if the median ratio of interleaved rounds is twice as bad as the recorded one, twice in a row: a machine that is
slow or busy slows both sides. --record writes the present ratios to docs/benchmarks/ratio.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

import floor
from bare import ROUTE, Bare, rates
from contenders import CONTENDERS, MARK_BYTES
from server import BenchServer, server

from coordinator import Client

RECORD = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "ratio.json"
TWICE = 2
TIMES = frozenset({"server"})  # a higher ratio of these is worse; of the others, a lower one
PATIENCE = 120.0
TEXT = "x" * 100


def enqueued(url: str, count: int) -> float:
    """Return the runs per second of the client. The namespace already exists."""
    with Client(url) as client:
        client.enqueue("nothing", {"text": TEXT})
        began = time.perf_counter()
        client.enqueue_many([("nothing", {"text": TEXT})] * (count - 1))
        return (count - 1) / (time.perf_counter() - began)


def drained(url: str, count: int, marks: Path) -> float:
    """Return the runs per second of one worker process, from the first mark to the last."""
    marks.write_bytes(b"")
    until = time.monotonic() + PATIENCE
    with CONTENDERS[0].working(url, marks):
        while marks.stat().st_size < count * MARK_BYTES:
            if time.monotonic() > until:
                raise SystemExit(f"ratio: {count} runs were not drained within {PATIENCE:.0f} s")
            time.sleep(0.005)
    times = sorted(at for at, _ in struct.iter_unpack("<qq", marks.read_bytes()))
    return (count - 1) / ((times[-1] - times[0]) / 1e9)


def measured(server: BenchServer, count: int, rounds: int, marks: Path) -> dict[str, float]:
    """Return the median ratios."""
    found: dict[str, list[float]] = {"enqueue": [], "drain": [], "server": []}
    for _ in range(rounds):
        server.empty()
        bare = rates(server, count, merged=False)
        server.empty()
        found["enqueue"].append(enqueued(server.url, count) / bare["bare_enqueue_rate"])
        assert server.admin.zcard(Bare(server, "runs").keys.ready(ROUTE)) == count
        found["drain"].append(drained(server.url, count, marks) / bare["bare_drain_rate"])
        found["server"].append(floor.measured(server, count).ratio)
    return {name: round(statistics.median(values), 3) for name, values in found.items()}


def fallen(recorded: dict[str, float], found: dict[str, float]) -> list[str]:
    """Return a sentence for each ratio that is twice as bad as the recorded one."""
    return [
        f"{name}: {found[name]:.2f} of the bare limit; the recorded ratio is {before:.2f}"
        for name, before in recorded.items()
        if (found[name] > before * TWICE if name in TIMES else found[name] * TWICE < before)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    with server() as host, tempfile.TemporaryDirectory() as directory:
        marks = Path(directory) / "marks"
        found = measured(host, options.count, options.rounds, marks)
        print("ratios to the bare limit:", ", ".join(f"{name} {ratio:.2f}" for name, ratio in found.items()))
        if options.record:
            RECORD.write_text(json.dumps(found, indent=1) + "\n")
            return 0
        recorded = json.loads(RECORD.read_text())
        if fallen(recorded, found):
            print("measuring again to confirm the slowdown")
            found = measured(host, options.count, options.rounds, marks)
        for sentence in fallen(recorded, found):
            print(f"twice as slow as recorded: {sentence}", file=sys.stderr)
    return 1 if fallen(recorded, found) else 0


if __name__ == "__main__":
    sys.exit(main())
