"""Measure how late delayed, retried and cancelled runs are, and the longest command while very many runs are due together.

It uses one coordinator process, one worker process and an embedded server; all share the host's clock. The benchmark reports
figures and never fails because of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import redis

from coordinator import Client
from coordinator.store.transport.connections.embedded_server import attach

BESIDE = Path(__file__).parent
PATIENCE = 600.0
APART = 0.02  # This is the average time in seconds between two runs that are due.


@contextlib.contextmanager
def process(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    found = subprocess.Popen([*command], cwd=BESIDE, env=os.environ | environment, stderr=subprocess.DEVNULL)
    try:
        yield found
    finally:
        found.terminate()
        found.wait(30)


def tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def spread(name: str, seconds: Sequence[float]) -> dict[str, float]:
    # With the exclusive method, the p99 of a few values would be larger than the largest value.
    p99 = statistics.quantiles(seconds, n=100, method="inclusive")[98] if len(seconds) > 1 else seconds[0]
    figures = {"p50": statistics.median(seconds), "p99": p99, "max": max(seconds)}
    return {f"{name}_{what}_ms": round(value * 1000, 1) for what, value in figures.items()}


def delayed(client: Client, count: int) -> list[float]:
    """Return how many seconds late each of `count` runs is. They become due one after the other, and are enqueued in any order."""
    begin = time.time() + 1.0
    due = [begin + random.random() * count * APART for _ in range(count)]
    handles = [client.enqueue("reached", at=at) for at in due]
    return [handle.result(PATIENCE) - at for handle, at in zip(handles, due, strict=True)]


def sooner(client: Client, count: int) -> list[float]:
    """Return how many seconds late a run is that becomes due sooner than the run for which the coordinator waits."""
    late = []
    client.enqueue("reached", delay=3600.0)
    for _ in range(count):
        client.enqueue("reached", delay=0.9)
        time.sleep(0.1)
        at = time.time() + 0.2
        late.append(client.enqueue("reached", at=at).result(PATIENCE) - at)
    return late


def retried(client: Client, count: int) -> list[float]:
    """Return how many seconds late each retry is. The retries are APART seconds apart: together they would measure a burst."""
    begin = time.time() + 1.0
    handles = [client.enqueue("second_time", at=begin + number * APART) for number in range(count)]
    return [handle.result(PATIENCE) for handle in handles]


def cancelled(client: Client, admin: redis.Redis, count: int) -> list[float]:
    """Return the seconds from each call of `cancel` to the moment when the handler can see the cancel."""
    told = []
    for _ in range(count):
        handle = client.enqueue("until_told")
        while handle.view().note is None:
            time.sleep(0.005)
        asked = time.time()
        handle.cancel()
        found = admin.blpop([f"told:{handle.id}"], timeout=30)
        if found is None:
            raise SystemExit(f"run {handle.id} did not see its cancel within 30 s")
        told.append(float(found[1]) - asked)
        handle.wait(PATIENCE)
    return told


def many(client: Client, admin: redis.Redis, namespace: str, url: str, count: int) -> dict[str, float]:
    """Measure N runs that are due in the same second: the time until all are in their ready queues, and the longest command."""
    tag = f"{{{namespace}:0}}"
    client.enqueue_many([("nobody", {})] * count, delay=86_400.0)
    with process(tool("coordinator"), "start", RUNS_URL=url, RUNS_NAMESPACE=namespace):
        while not admin.exists(f"{tag}:coordinators"):
            time.sleep(0.05)
        # All runs are due now.
        admin.execute_command("ZUNIONSTORE", f"{tag}:delayed", 1, f"{tag}:delayed", "WEIGHTS", 0)
        admin.config_set("slowlog-log-slower-than", 1000)
        admin.config_set("slowlog-max-len", 10_000)
        admin.slowlog_reset()
        began = time.monotonic()
        admin.rpush(f"{tag}:bell:coordinator", 1)
        while admin.zcard(f"{tag}:delayed"):
            if time.monotonic() - began > PATIENCE:
                raise SystemExit("the due runs were not enqueued in time")
            time.sleep(0.02)
        took = time.monotonic() - began
    slow = [entry["duration"] / 1000 for entry in admin.slowlog_get(10_000)]
    return {
        "due_at_once": count,
        "moved_in_s": round(took, 2),
        "longest_command_ms": round(max(slow, default=0.0), 1),
    }


def measure(count: int, at_once: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as directory, attach(Path(directory)) as server:
        admin = redis.Redis.from_url(server.url)
        found: dict[str, object] = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
        where = {"RUNS_URL": server.url, "RUNS_NAMESPACE": "due"}
        start = (tool("workers"), "start", "due_app:runs", "--concurrency", "200")
        with (
            process(tool("coordinator"), "start", **where),
            process(*start, **where),
            Client(server.url, "due") as client,
        ):
            client.enqueue("reached").result(PATIENCE)
            found |= spread("delayed", delayed(client, count))
            found |= spread("sooner", sooner(client, max(10, count // 10)))
            found |= spread("retried", retried(client, count))
            found |= spread("cancel_told", cancelled(client, admin, max(10, count // 5)))
        with Client(server.url, "many") as client:
            client.status()
            found |= many(client, admin, "many", server.url, at_once)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.count, options.many)
    if options.json:
        print(json.dumps(found))
        return
    width = max(len(name) for name in found)
    for name, value in found.items():
        print(f"{name:{width}}  {value}")


if __name__ == "__main__":
    main()
