"""Measure how long the page's server takes for the overview and for lists of runs in a large namespace, and its longest command.

It measures how long a coordinator takes to answer a scrape of its metrics in the same namespace. Each scrape reads all values anew.

It also measures the cost of viewers: the commands and the processor time of the server, and the processor time of the web process,
without viewers, with one and with many, while ten runs are enqueued each second.

It uses an embedded server of its own. The benchmark reports figures and never fails because of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import redis
from doctor import name_of

from coordinator import AsyncClient, Client
from coordinator.client.operations import runs as run_operations
from coordinator.services.endpoints.metrics import FRESH_SECONDS
from coordinator.store.transport.connections.embedded_server import attach
from coordinator.web import app
from coordinator.web.page.live import LiveBoard
from tests.servers import free_port

NAMESPACE = "large"
KINDS = ("report", "summary", "crawl")
RARE_EVERY = 1000  # one of this number of ended runs has the kind `rare`
GROUPS = 200  # groups in whose lines runs wait
BATCH = 2000
OWN_COMMANDS = (b"SLOWLOG", b"INFO", b"CONFIG")  # commands that the benchmark sends itself
Question = Callable[[], Awaitable[Any]]

LISTS = {
    "newest runs of all statuses": {},
    "newest runs of a rare kind": {"kind": "rare"},
    "queued runs": {"status": "queued"},
    "queued runs of a kind": {"status": "queued", "kind": "crawl"},
    "queued runs of a group": {"status": "queued", "kind": "limited", "group": "g7"},
    "ended runs": {"status": "cancelled"},
    "ended runs of a kind": {"status": "cancelled", "kind": "report"},
    "ended runs of a rare kind": {"status": "cancelled", "kind": "rare"},
    "ended runs with a meta that no run has": {"status": "cancelled", "meta": "tenant=nobody"},
}


def fill(url: str, queued: int, ended: int) -> None:
    """Enqueue the runs, and cancel some of them."""
    with Client(url, NAMESPACE) as client:
        client.set_limit("limited", at_once=1)
        for start in range(0, ended, BATCH):
            runs = [
                (KINDS[n % 3] if n % RARE_EVERY else "rare", {"number": n}) for n in range(start, start + BATCH)
            ]  # fmt: skip
            ids = [handle.id for handle in client.enqueue_many(runs)]
            client._do(run_operations.for_each, ids, lambda space, id: run_operations.cancel(space, id, 30.0))
        client.enqueue_many((KINDS[n % 3], {"number": n}) for n in range(queued))
        for n in range(5 * GROUPS):
            client.enqueue("limited", {"number": n}, group=f"g{n % GROUPS}")


async def timed(admin: redis.Redis, ask: Question, rounds: int, pause: float = 0.0) -> dict[str, Any]:
    """Return how long a question takes, and the commands that it sends. `pause` is the time in seconds before each question."""
    await ask()
    admin.config_resetstat()
    admin.slowlog_reset()
    times = []
    for _ in range(rounds):
        await asyncio.sleep(pause)
        began = time.perf_counter()
        await ask()
        times.append(1000 * (time.perf_counter() - began))
    stats = {name.partition("_")[2]: row for name, row in admin.info("commandstats").items() if name != "cmdstat_info"}
    slow = sorted(
        (
            (entry["duration"] / 1000, name_of(entry["command"]))
            for entry in admin.slowlog_get(1000)
            if entry["command"].split()[0] not in OWN_COMMANDS
        ),
        reverse=True,
    )
    return {
        "p50_ms": round(statistics.median(times), 1), "max_ms": round(max(times), 1),
        "commands": round(sum(row["calls"] for row in stats.values()) / rounds),
        "server_ms": round(sum(row["usec"] for row in stats.values()) / rounds / 1000, 1),
        "longest_command_ms": slow[0][0] if slow else 0.0, "longest_command": slow[0][1] if slow else "",
    }  # fmt: skip


async def measure_page(admin: redis.Redis, url: str, rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with AsyncClient(url, NAMESPACE) as client:
        live = LiveBoard(client)

        async def overview() -> None:
            await live.watcher._refresh()
            live.watcher.version += 1
            live._bytes(live.watcher.board)

        found["overview"] = await timed(admin, overview, rounds)
        transport = httpx.ASGITransport(app=app(client))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as web:
            for name, query in LISTS.items():

                async def ask(query: dict[str, str] = query) -> None:
                    (await web.get("/data/runs", params=query)).raise_for_status()

                found[name] = await timed(admin, ask, rounds)
    return found


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def view(address: str, boards: list[int]) -> None:
    """Read the live board until the task is cancelled, and count the boards."""
    url = httpx.URL(address)
    reader, writer = await asyncio.open_connection(url.host, url.port, limit=2**24)
    writer.write(f"GET /data/live HTTP/1.1\r\nHost: {url.host}:{url.port}\r\n\r\n".encode())
    try:
        async for line in reader:
            boards[0] += line.startswith(b"event: board")
    finally:
        writer.close()


async def cost_of(admin: redis.Redis, url: str, web: tuple[int, str], viewers: int, seconds: float) -> dict[str, Any]:
    """Return the cost of this number of viewers per second, while ten runs are enqueued each second."""
    boards = [0]
    tasks = [asyncio.create_task(view(web[1], boards)) for _ in range(viewers)]
    async with AsyncClient(url, NAMESPACE) as client:
        await client.enqueue("report")
        await asyncio.sleep(2)  # the first boards
        boards[0] = 0
        server = int(admin.info("server")["process_id"])
        began = time.perf_counter(), processor_seconds(server), processor_seconds(web[0])
        admin.config_resetstat()
        while time.perf_counter() < began[0] + seconds:
            await client.enqueue("report")
            await asyncio.sleep(0.1)
        span = time.perf_counter() - began[0]
        stats = [row for name, row in admin.info("commandstats").items() if name != "cmdstat_info"]
        used = processor_seconds(server) - began[1], processor_seconds(web[0]) - began[2]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "boards": round(boards[0] / max(1, viewers) / span, 1),
        "commands": round(sum(row["calls"] for row in stats) / span), "server_ms": round(1000 * used[0] / span, 1),
        "web_ms": round(1000 * used[1] / span, 1),
    }  # fmt: skip


async def scraped(admin: redis.Redis, port: int, rounds: int) -> dict[str, Any]:
    transport = httpx.AsyncHTTPTransport(retries=20)  # the coordinator may still be starting
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", transport=transport) as scraper:

        async def ask() -> None:
            (await scraper.get("/metrics")).raise_for_status()

        return await timed(admin, ask, rounds, pause=1.1 * FRESH_SECONDS)


def measure_scrape(admin: redis.Redis, url: str, rounds: int) -> dict[str, Any]:
    """Return how long scrapes of a coordinator take. Its other work is part of the commands that the server counts."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("coordinator")), "start", "--metrics", str(port)]
    environment = os.environ | {"RUNS_URL": url, "RUNS_NAMESPACE": NAMESPACE}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return asyncio.run(scraped(admin, port, rounds))
    finally:
        process.terminate()
        process.wait()


def measure_viewers(admin: redis.Redis, url: str, viewers: int, seconds: float) -> dict[int, dict[str, Any]]:
    """Return the cost of no viewer, of one, and of many."""
    with tempfile.TemporaryFile() as log:
        command = [str(Path(sys.executable).with_name("coordinator")), "web", "--port", "0"]
        environment = os.environ | {"RUNS_URL": url, "RUNS_NAMESPACE": NAMESPACE}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            while not (found := re.search(rb"started: (\S+)", os.pread(log.fileno(), 4096, 0))):
                time.sleep(0.05)
            web = process.pid, found.group(1).decode()
            return {number: asyncio.run(cost_of(admin, url, web, number, seconds)) for number in (0, 1, viewers)}
        finally:
            process.terminate()
            process.wait()


def measure(queued: int, ended: int, rounds: int, viewers: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory, attach(Path(directory)) as server:
        admin = redis.Redis.from_url(server.url)
        admin.config_set("slowlog-log-slower-than", 200)
        admin.config_set("slowlog-max-len", 1000)
        fill(server.url, queued, ended)
        facts = {"queued": queued, "ended": ended, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
        questions = asyncio.run(measure_page(admin, server.url, rounds))
        questions["scrape of a coordinator's metrics"] = measure_scrape(admin, server.url, rounds)
        return facts | {
            "questions": questions,
            "viewers": measure_viewers(admin, server.url, viewers, seconds),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queued", type=int, default=1_000_000)
    parser.add_argument("--ended", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="seconds for which each number of viewers is measured"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.queued, options.ended, options.rounds, options.viewers, options.seconds)
    if options.json:
        print(json.dumps(found))
        return
    questions, viewers = found.pop("questions"), found.pop("viewers")
    print(", ".join(f"{name} {value:,}" for name, value in found.items()))
    print(f"{'question':40} {'p50 ms':>8} {'max ms':>8} {'commands':>9} {'server ms':>10}  longest command")
    for name, row in questions.items():
        print(
            f"{name:40} {row['p50_ms']:8.1f} {row['max_ms']:8.1f} {row['commands']:9} {row['server_ms']:10.1f}  "
            f"{row['longest_command']} {row['longest_command_ms']} ms"
        )
    print("per second, with viewers, beside ten enqueued runs:")
    for number, row in viewers.items():
        print(
            f"{number:4} viewers: {row['boards']} boards each, {row['commands']} commands, processor time: "
            f"{row['server_ms']} ms of the server, {row['web_ms']} ms of the web process"
        )


if __name__ == "__main__":
    main()
