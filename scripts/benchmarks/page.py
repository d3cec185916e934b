"""Measure how long the page's server takes for the overview and for lists of runs in a large namespace, and its longest command.

It uses an embedded server of its own. The benchmark reports figures and never fails because of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
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
from coordinator.store.transport.connections.embedded_server import attach
from coordinator.web import app
from coordinator.web.page.live import LiveBoard

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


async def timed(admin: redis.Redis, ask: Question, rounds: int) -> dict[str, Any]:
    """Return how long a question takes, and the commands that it sends."""
    await ask()
    admin.config_resetstat()
    admin.slowlog_reset()
    times = []
    for _ in range(rounds):
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


def measure(queued: int, ended: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory, attach(Path(directory)) as server:
        admin = redis.Redis.from_url(server.url)
        admin.config_set("slowlog-log-slower-than", 200)
        admin.config_set("slowlog-max-len", 1000)
        fill(server.url, queued, ended)
        facts = {"queued": queued, "ended": ended, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
        return facts | {"questions": asyncio.run(measure_page(admin, server.url, rounds))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queued", type=int, default=1_000_000)
    parser.add_argument("--ended", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.queued, options.ended, options.rounds)
    if options.json:
        print(json.dumps(found))
        return
    questions = found.pop("questions")
    print(", ".join(f"{name} {value:,}" for name, value in found.items()))
    print(f"{'question':40} {'p50 ms':>8} {'max ms':>8} {'commands':>9} {'server ms':>10}  longest command")
    for name, row in questions.items():
        print(
            f"{name:40} {row['p50_ms']:8.1f} {row['max_ms']:8.1f} {row['commands']:9} {row['server_ms']:10.1f}  "
            f"{row['longest_command']} {row['longest_command_ms']} ms"
        )


if __name__ == "__main__":
    main()
