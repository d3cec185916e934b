"""Compare run-coordinator with other queues: the same server, interleaved rounds, medians with their spread.

    scripts/bench peers [--count N] [--rounds N] [--only arq,saq] [--server valkey|redis] [--out docs/benchmarks/peers.json]

Each round measures every queue once, so that noise affects all alike. The comparison uses ratios within one execution. report.py
makes the report from the JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import report
from bare import limits
from contenders import OURS, Contender, named
from draining import drained
from figures import collected
from server import BenchServer, server, where

Figures = dict[str, float]


def one_by_one(server: BenchServer, contender: Contender, marks: Path, count: int) -> Figures:
    before = server.usage()
    found = contender.ask("one", server.url, marks, count)
    assert found
    spent = server.usage() - before
    return {
        "one_rate": (count - 1) / found["seconds"],
        "one_client_us": found["cpu"] / (count - 1) * 1e6,
        "one_redis_us": spent.cpu / count * 1e6,
    }


def filled(server: BenchServer, contender: Contender, marks: Path, count: int) -> Figures:
    """Enqueue in batches, or one by one if the queue has no batch call."""
    memory, before = server.memory(), server.usage()
    found = contender.ask("many", server.url, marks, count)
    if found is None:
        contender.ask("one", server.url, marks, count)
    spent = server.usage() - before
    figures = {
        "fill_redis_us": spent.cpu / count * 1e6,
        "fill_commands": spent.commands / count,
        "waiting_bytes": (server.memory() - memory) / count,
    }
    if found is not None:
        figures |= {"many_rate": (count - 1) / found["seconds"], "many_client_us": found["cpu"] / (count - 1) * 1e6}
    return figures


def latencies(server: BenchServer, contender: Contender, marks: Path, count: int) -> Figures:
    """Measure the latencies of an idle system."""
    marks.write_bytes(b"")
    figures = {}
    with contender.working(server.url, marks):
        contender.ask("pick_up", server.url, marks, 3)  # The worker is ready and has executed a job.
        for verb in ("pick_up", "trip"):
            try:
                found = contender.ask(verb, server.url, marks, count)
            # If a queue loses a notification, it lacks this figure, and keeps the others.
            except RuntimeError as error:
                if verb == "pick_up" or contender.name == OURS:
                    raise
                print(f"no round trip: {error}", file=sys.stderr)
                continue
            if found:
                ordered = sorted(found["ms"])
                figures[f"{verb}_p50_ms"] = ordered[len(ordered) // 2]
                figures[f"{verb}_p99_ms"] = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return figures


def measured(server: BenchServer, contender: Contender, count: int, directory: Path) -> Figures:
    """Measure everything about one contender once."""
    marks = directory / "marks"
    share = 10 if contender.name == "RQ" else 1  # RQ executes only about a hundred jobs per second.
    server.empty()
    figures = one_by_one(server, contender, marks, max(200, count // 4))
    for processes in (1, 2):
        server.empty()
        before = server.memory()
        part = max(200, count // share)
        filling = filled(server, contender, marks, part)
        draining = drained(server, contender, marks, part, processes)
        if processes == 1:
            figures |= filling | {"finished_bytes": (server.memory() - before) / part}
            figures["run_redis_us"] = filling["fill_redis_us"] + draining["redis_us"]
            figures["run_commands"] = filling["fill_commands"] + draining["commands"]
        figures |= {f"drain{processes}_{name}": value for name, value in draining.items()}
    server.empty()
    return figures | latencies(server, contender, marks, 100)


def compare(contenders: list[Contender], count: int, rounds: int, which: str) -> dict[str, Any]:
    found: dict[str, list[Figures]] = {}
    failed: dict[str, str] = {}
    bare: list[Figures] = []
    with server(which) as host, tempfile.TemporaryDirectory() as directory:
        place = where(host)
        for number in range(rounds):
            host.empty()
            bare.append(limits(host, count))
            for contender in contenders:
                if contender.start is None:
                    failed[contender.name] = "Node is not there"
                    continue
                began = time.monotonic()
                try:
                    figures = measured(host, contender, count, Path(directory))
                except (RuntimeError, subprocess.TimeoutExpired, AssertionError) as error:
                    if contender.name == OURS:
                        raise
                    failed[contender.name] = str(error)[-400:]
                    print(f"round {number + 1}: {contender.name} failed: {error}", file=sys.stderr)
                    continue
                found.setdefault(contender.name, []).append(figures)
                rate, seconds = figures["drain1_rate"], time.monotonic() - began
                print(f"round {number + 1}: {contender.name}: drain {rate:,.0f}/s ({seconds:.0f} s)", file=sys.stderr)
    about = {
        one.name: {"survives": one.survives, "facts": one.facts, "unfair": one.unfair, "python": one.python}
        for one in contenders
    }
    return {
        "where": place | {"count": count, "rounds": rounds},
        "about": about,
        "failed": failed,
        "limits": collected(bare),
        "contenders": {name: collected(rows) for name, rows in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--server", choices=("valkey", "redis"), default="valkey")
    parser.add_argument("--out", type=Path, default=report.FOLDER / "peers.json")
    options = parser.parse_args()
    found = compare(named(options.only), options.count, options.rounds, options.server)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    report.write(options.out.parent)
    print(report.reach_table(found, report.read(options.out.parent, "checkpoints")))


if __name__ == "__main__":
    main()
