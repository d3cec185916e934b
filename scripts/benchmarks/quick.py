"""The quick benchmark: one worker process with empty runs, which use the same executor, endings and retention as any run.

Rounds with and without uvloop are interleaved; the figures are medians. The benchmark reports figures and never fails because of
them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import redis

from coordinator import Client
from coordinator.store.transport.connections.embedded_server import attach

APP = Path(__file__).with_name("app.py")
INPUT = "x" * 100


@contextlib.contextmanager
def worker(url: str, namespace: str, loop: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, str(APP), url, namespace, loop])
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def rate_of_enqueueing(client: Client, count: int) -> float:
    began = time.perf_counter()
    client.enqueue_many([("nothing", {"text": INPUT})] * count)
    return count / (time.perf_counter() - began)


def drained(admin: redis.Redis, url: str, namespace: str, count: int, loop: str) -> dict[str, float]:
    """Measure from the first claim to the last ending, by the server's clock, and the cost on both sides."""
    tag = f"{{{namespace}:0}}"
    first = admin.zrange(f"{tag}:ready:default:nothing@0", 0, 0)[0].decode()
    before = cpu_of_server(admin)
    with worker(url, namespace, loop) as process:
        while admin.zcard(f"{tag}:ended:completed") < count:
            if process.poll() is not None:
                raise SystemExit("the worker process ended too early")
            time.sleep(0.02)
        spent, own = cpu_of_server(admin) - before, cpu_of(process.pid)
    started = int(admin.hget(f"{tag}:run:{first}", "started"))
    last = admin.zrange(f"{tag}:ended:completed", -1, -1)[0].decode()
    seconds = (int(admin.hget(f"{tag}:run:{last}", "ended")) - started) / 1000
    return {"drain": count / seconds, "server_us": spent / count * 1e6, "worker_us": own / count * 1e6}


def cpu_of_server(admin: redis.Redis) -> float:
    info = admin.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pick_up(client: Client, url: str, namespace: str, count: int) -> tuple[float, float]:
    """Return the milliseconds from the start of an enqueue to the handler's first line, on an idle system: p50 and p99."""
    with worker(url, namespace, "uvloop"):
        client.enqueue("first_line", {}).result(30)
        waits = []
        for _ in range(count):
            began = time.monotonic_ns()
            reached = client.enqueue("first_line", {}).result(30)
            waits.append((reached - began) / 1e6)
            time.sleep(0.005)  # The system is idle again.
    return statistics.median(waits), statistics.quantiles(waits, n=100)[98]


def measure(count: int, rounds: int) -> dict[str, object]:
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory, attach(Path(directory)) as server:
        admin = redis.Redis.from_url(server.url)
        for number in range(rounds):
            for loop in ("asyncio", "uvloop"):
                namespace = f"bench{number}{loop}"
                with Client(server.url, namespace) as client:
                    client.status()
                    empty = int(admin.info("memory")["used_memory"])
                    figures = {"enqueue_many": rate_of_enqueueing(client, count)}
                    figures["bytes_per_waiting_run"] = (int(admin.info("memory")["used_memory"]) - empty) / count
                    for name, value in drained(admin, server.url, namespace, count, loop).items():
                        figures[f"{name}_{loop}"] = value
                for name, value in figures.items():
                    found.setdefault(name, []).append(value)
                admin.execute_command("FLUSHALL", "SYNC")
        with Client(server.url, "pickup") as client:
            p50, p99 = pick_up(client, server.url, "pickup", 300)
        version = admin.info("server").get("valkey_version", "?")
    medians = {name: round(statistics.median(values), 1) for name, values in sorted(found.items())}
    where = {
        "count": count,
        "rounds": rounds,
        "valkey": version,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }
    return where | medians | {"pick_up_p50_ms": round(p50, 2), "pick_up_p99_ms": round(p99, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.count, options.rounds)
    if options.json:
        print(json.dumps(found))
        return
    width = max(len(name) for name in found)
    for name, value in found.items():
        print(f"{name:{width}}  {value}")


if __name__ == "__main__":
    main()
