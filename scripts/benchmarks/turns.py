"""Measure what a saved turn costs: many live runs in one worker process, each appends 500 bytes and ends a turn every 2 s.

    scripts/bench turns [--runs N] [--seconds S] [--rounds N] [--json]

The figures are processor time per turn, of the worker process and of the server, as medians of rounds. A worker that can't keep up
makes fewer turns than wanted, and says so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from server import BenchServer, cpu_of_tree, server

from coordinator import Client

NAMESPACE = "turns"
EVERY = 2.0
PATIENCE = 180.0
APP = f"""
import asyncio, os, random
from workers import AsyncRun, Registry

runs = Registry()
TEXT = "x" * 500
turns = 0


@runs.handler
async def agent(run: AsyncRun) -> None:
    global turns
    await asyncio.sleep(random.random() * {EVERY})
    async for _ in run.loop(1_000_000):
        run.messages.append({{"role": "assistant", "content": TEXT}})
        turns += 1
        if turns % 100 == 0:
            with open("turns", "ab") as file:
                file.write(b".")
        await asyncio.sleep({EVERY})
"""


def turns_of(place: Path) -> int:
    path = place / "turns"
    return path.stat().st_size * 100 if path.exists() else 0


def measure(host: BenchServer, runs: int, seconds: float) -> dict[str, float]:
    host.empty()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "turns_app.py").write_text(APP)
        with Client(host.url, NAMESPACE) as client:
            client.enqueue_many([("agent", {})] * runs)
        command = [Path(sys.executable).parent / "workers", "start", "turns_app:runs", "--concurrency", str(runs)]
        options = ["--url", host.url, "--namespace", NAMESPACE, "--log-level", "ERROR"]
        worker = subprocess.Popen([*command, *options], cwd=place)
        try:
            until = time.monotonic() + PATIENCE
            while turns_of(place) < 2 * runs:  # each run has saved its first turns
                if time.monotonic() > until:
                    raise SystemExit("turns: the runs did not start")
                time.sleep(0.1)
            turns, usage, spent = turns_of(place), host.usage(), cpu_of_tree(worker.pid)
            time.sleep(seconds)
            made, used = turns_of(place) - turns, host.usage() - usage
            cpu = cpu_of_tree(worker.pid) - spent
        finally:
            worker.terminate()
            worker.wait(60)
    return {
        "worker_us": cpu / made * 1e6, "server_us": used.cpu / made * 1e6, "commands": used.commands / made,
        "kept_up": made / used.at / (runs / EVERY),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with server() as host:
        rows = [measure(host, options.runs, options.seconds) for _ in range(options.rounds)]
    found = {name: round(statistics.median(row[name] for row in rows), 2) for name in rows[0]}
    if options.json:
        print(json.dumps(found))
        return
    print(f"{options.runs:,} live runs, a turn every {EVERY:.0f} s, for each turn with its save:")
    print(f"  worker   {found['worker_us']:7.1f} µs")
    print(f"  server   {found['server_us']:7.1f} µs, {found['commands']:.1f} commands")
    if found["kept_up"] < 0.95:
        print(f"the worker made {found['kept_up']:.0%} of the wanted turns")


if __name__ == "__main__":
    main()
