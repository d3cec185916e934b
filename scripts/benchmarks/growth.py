"""Measure how costs grow with size: the drain of many waiting runs, idle fleets, start-up recovery, partitions on a Cluster.

scripts/bench growth [--waiting 10000,100000,1000000] [--fleets 10,100,1000] [--interrupted 1000,10000,100000]
                     [--partitions 1,4,8] [--rounds N] [--only drain,idle,recovery,partitions]
                     [--out docs/benchmarks/growth.json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import report
from bare import ROUTE, Bare
from contenders import CONTENDERS, MARK_BYTES, OURS
from figures import collected
from server import BenchServer, server, where

sys.path.insert(0, str(Path(__file__).parents[2]))  # The Cluster is that of the tests.

from coordinator import Client, Status
from coordinator.model.address import address
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.transport.wire import Wire, drive
from tests.clusters import Cluster

IDLERS = Path(__file__).with_name("idlers.py")
IN_ONE_PROCESS = 50
DRAINED = 10_000  # Only the first runs are drained, however many wait.
ON_CLUSTER = 10_000
TEXT = "x" * 100
PATIENCE = 900.0
HELD = 100
LEASE_MS = 2000
LONG_MS = 50


def until(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > end:
            raise SystemExit(f"growth: timed out after {PATIENCE:.0f} s: {what}")
        time.sleep(0.005)


@contextlib.contextmanager
def started(*commands: Sequence[str | Path]) -> Iterator[None]:
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)


def coordinator_command(url: str, namespace: str) -> list[str | Path]:
    program = Path(sys.executable).parent / "coordinator"
    return [program, "start", "--url", url, "--namespace", namespace, "--log-level", "WARNING"]


def drain(server: BenchServer, waiting: int, directory: Path) -> dict[str, float]:
    """Let `waiting` runs wait. Return the runs per second of one worker for the first of them, and the bytes of a waiting run."""
    server.empty()
    before = server.memory()
    Bare(server, "runs").fill(waiting)
    settle(server)
    memory = (server.memory() - before) / waiting
    return {"rate": drained(server.url, min(waiting, DRAINED), directory), "waiting_bytes": memory}


def settle(server: BenchServer) -> None:
    """Rewrite the append-only file of the server, and wait until it is on the disk, before the drain is measured.

    The server would otherwise rewrite the file during the measurement, because the file has grown. It forks for that, and has to
    copy each page of memory that it changes meanwhile.
    """
    rewriting = lambda: server.admin.info("persistence")["aof_rewrite_in_progress"]  # noqa: E731
    until(lambda: not rewriting(), "the end of the rewriting of the file")
    server.admin.execute_command("BGREWRITEAOF")
    until(lambda: not rewriting(), "the end of the rewriting of the file")
    os.sync()


def drained(url: str, wanted: int, directory: Path) -> float:
    """Return the runs per second of one worker process, from the first mark to the last."""
    marks = directory / "marks"
    marks.write_bytes(b"")
    with CONTENDERS[0].working(url, marks):
        until(lambda: marks.stat().st_size >= wanted * MARK_BYTES, f"{wanted} runs")
    content = marks.read_bytes()[: wanted * MARK_BYTES]
    times = sorted(at for at, _ in struct.iter_unpack("<qq", content))
    return (wanted - 1) / ((times[-1] - times[0]) / 1e9)


def idle(server: BenchServer, fleet: int, seconds: float) -> dict[str, float]:
    """Measure the server's cost per second for an idle fleet of `fleet` workers and its coordinator.

    The workers are real, but up to 50 of them share a process.
    """
    server.empty()
    namespace = f"idle{fleet}"
    sizes = [min(IN_ONE_PROCESS, fleet - start) for start in range(0, fleet, IN_ONE_PROCESS)]
    commands = [[sys.executable, IDLERS, server.url, namespace, str(size)] for size in sizes]
    with started(*commands, coordinator_command(server.url, namespace)):
        workers = f"{{{namespace}:0}}:workers"
        until(lambda: int(server.admin.zcard(workers)) == fleet, f"{fleet} workers")
        time.sleep(6)  # One round of waiting for the bell passes. From here on every second is like any other.
        before = server.usage()
        time.sleep(seconds)
        spent = server.usage() - before
        there = int(server.admin.zcount(workers, "(0", "+inf"))
        connections = int(server.admin.info("clients")["connected_clients"]) - 1
    return {
        "cpu_ms_per_s": spent.cpu / spent.at * 1000,
        "commands_per_s": spent.commands / spent.at,
        "reads_per_s": spent.reads / spent.at,
        "workers_at_the_end": there,
        "connections": connections,
    }


def recovery(server: BenchServer, interrupted: int) -> dict[str, float]:
    """Measure recovery when workers with 100 runs each are gone before a coordinator starts.

    The coordinator pauses recovery for one lease, as it must after a time without any coordinator. The rate counts from the first
    requeued run.
    """
    server.empty()
    bare = Bare(server, "runs")
    bare.fill(interrupted)
    for number in range(interrupted // HELD):
        bare.join(f"gone{number}", LEASE_MS)
        bare.claim(HELD, merged=True, worker=f"gone{number}")
    ready = bare.keys.ready(ROUTE)
    assert int(server.admin.zcard(ready)) == 0
    time.sleep(LEASE_MS / 1000)
    server.admin.config_set("slowlog-log-slower-than", 1000)
    server.admin.config_set("slowlog-max-len", 10_000)
    server.admin.execute_command("SLOWLOG", "RESET")
    before = server.usage()
    with started(coordinator_command(server.url, "runs")):
        until(lambda: int(server.admin.zcard(ready)) > 0, "the first recovered run")
        first, had = time.monotonic(), int(server.admin.zcard(ready))
        until(lambda: int(server.admin.zcard(ready)) == interrupted, "the last recovered run")
        seconds = time.monotonic() - first
        spent = server.usage() - before
    slow = [int(entry["duration"]) for entry in server.admin.slowlog_get(10_000)]
    server.admin.config_set("slowlog-log-slower-than", 10_000)
    return {
        "seconds": seconds,
        "rate": (interrupted - had) / max(seconds, 1e-3),
        "redis_us": spent.cpu / interrupted * 1e6,
        "longest_ms": max(slow, default=0) / 1000,
        "commands_above_50_ms": sum(duration > LONG_MS * 1000 for duration in slow),
    }


def partitions(cluster: Cluster, count: int, directory: Path) -> dict[str, float]:
    """Measure 10,000 runs with `count` partitions on three masters. All runs must end."""
    nodes = [BenchServer(node.port, node.pid) for node in cluster.nodes]
    for node in nodes:
        node.empty()
    wire = Wire(address(cluster.url))
    drive(wire, namespace_plans.create("runs", birth="b", partitions=count))
    wire.close()
    before = [node.usage() for node in nodes]
    with Client(cluster.url) as client:
        began = time.perf_counter()
        client.enqueue_many([("nothing", {"began": 0, "text": TEXT})] * ON_CLUSTER)
        seconds = time.perf_counter() - began
        rate = drained(cluster.url, ON_CLUSTER, directory)
        counts = client.status().counts
    if counts[Status.COMPLETED] != ON_CLUSTER:
        raise SystemExit(f"growth: of {ON_CLUSTER} runs over {count} partitions, {dict(counts)}")
    spent = sum((node.usage() - earlier).cpu for node, earlier in zip(nodes, before, strict=True))
    for node in nodes:
        node.admin.close()
    return {"enqueue_rate": ON_CLUSTER / seconds, "rate": rate, "redis_us": spent / ON_CLUSTER * 1e6}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all sizes, interleaved within each round."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    parts = options.only.split(",")
    with contextlib.ExitStack() as stack:
        host, directory = stack.enter_context(server(options.server)), stack.enter_context(_directory())
        cluster = _cluster(stack, options.server) if "partitions" in parts else None
        plan: list[tuple[str, int, Callable[[int], dict[str, float]]]] = [
            *(("drain", size, lambda size: drain(host, size, directory)) for size in options.waiting),
            *(("idle", size, lambda size: idle(host, size, options.seconds)) for size in options.fleets),
            *(("recovery", size, lambda size: recovery(host, size)) for size in options.interrupted),
            *(("partitions", size, lambda size: partitions(cluster, size, directory)) for size in options.partitions),
        ]
        place = where(host)
        for number in range(options.rounds):
            for part, size, work in plan:
                if part not in parts:
                    continue
                figures = work(size)
                found.setdefault(part, {}).setdefault(str(size), []).append(figures)
                said = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
                print(f"round {number + 1}: {part} {size:,}: {said}", file=sys.stderr)
    return {"where": place | {"rounds": options.rounds}} | {
        part: {size: collected(rows) for size, rows in sizes.items()} for part, sizes in found.items()
    }


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def _cluster(stack: contextlib.ExitStack, kind: str) -> Cluster:
    cluster = Cluster(kind, stack.enter_context(_directory()), replicas=0)
    stack.callback(cluster.close)
    return cluster


def sizes(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    assert CONTENDERS[0].name == OURS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=sizes, default="10000,100000,1000000")
    parser.add_argument("--fleets", type=sizes, default="10,100,1000")
    parser.add_argument("--interrupted", type=sizes, default="1000,10000,100000")
    parser.add_argument("--partitions", type=sizes, default="1,4,8")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="drain,idle,recovery,partitions")
    parser.add_argument("--server", choices=("valkey", "redis"), default="valkey")
    parser.add_argument("--out", type=Path, default=report.FOLDER / "growth.json")
    options = parser.parse_args()
    found = measure(options)
    kept = json.loads(options.out.read_text()) if options.out.exists() else {}
    options.out.write_text(json.dumps(kept | found, indent=1) + "\n")
    report.write(options.out.parent)


if __name__ == "__main__":
    main()
