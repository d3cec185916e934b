"""Measure outputs: the time from `run.emit` to a reader, the events that one worker process can send, and idle readers. With
`--live`, measure instead whether the events of that many live runs delay the heartbeats, saves and claims of their process.

One worker process emits, and one process with one AsyncClient reads; both share the host's clock. The benchmark reports figures and
never fails because of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from typing import Any

from due import process, spread, tool
from output_live import beside_events, show_phases
from server import BenchServer, server, where

from coordinator import AsyncClient, Event

PATIENCE = 120.0
READY = 5.0  # seconds after which all runs are claimed and all readers wait


async def read(client: AsyncClient, id: str, delays: list[float]) -> int:
    """Read a run's output to its end, and return the number of events."""
    count = 0
    async for item in client.handle(id).stream(timeout=PATIENCE):
        if isinstance(item, Event):
            count += 1
            if "at" in item.value:
                delays.append(time.time() - item.value["at"])
    return count


async def typed(found: BenchServer, runs: int, tokens: int, per_second: float) -> dict[str, float]:
    """Measure runs that emit at the speed of a model, each with its own reader. The runs begin when all readers wait."""
    delays: list[float] = []
    async with AsyncClient(found.url, "output") as client:
        begin, dice = time.time() + READY, random.Random(1)
        inputs = {"tokens": tokens, "per_second": per_second}
        handles = [
            await client.enqueue("typing", inputs | {"begin": begin + dice.random() / per_second}) for _ in range(runs)
        ]
        before = found.usage()
        counts = await asyncio.gather(*(read(client, handle.id, delays) for handle in handles))
        used = found.usage() - before
    assert counts == [tokens] * runs
    return {
        "typed_events": sum(counts),
        **spread("token_to_reader", delays),
        "server_cpu_percent": round(100 * used.cpu / used.at, 1),
    }


async def poured(found: BenchServer, runs: int, tokens: int) -> dict[str, float]:
    """Let one worker process emit as fast as it can, without readers, and read everything afterwards."""
    async with AsyncClient(found.url, "output") as client:
        began, before = time.monotonic(), found.usage()
        handles = [await client.enqueue("pouring", {"tokens": tokens}) for _ in range(runs)]
        for handle in handles:
            await handle.wait(PATIENCE)
        took, used = time.monotonic() - began, found.usage() - before
        counts = [await read(client, handle.id, []) for handle in handles]
    return {
        "poured_events": sum(counts),
        "poured_events_lost": runs * tokens - sum(counts),
        "events_per_s": round(sum(counts) / took),
        "server_us_per_event": round(1e6 * used.cpu / sum(counts), 1),
    }


async def idle(found: BenchServer, readers: int, seconds: float) -> dict[str, float]:
    """Let readers wait for runs that emit nothing. Count the commands of the server and its connections."""
    async with AsyncClient(found.url, "output") as client:
        handles = [await client.enqueue("silent", {"seconds": 60.0}, queue="nobody") for _ in range(readers)]
        tasks = [asyncio.create_task(read(client, handle.id, [])) for handle in handles]
        await asyncio.sleep(2)
        connections, before = int(found.admin.info("clients")["connected_clients"]), found.usage()
        await asyncio.sleep(seconds)
        used = found.usage() - before
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "idle_readers": readers,
        "connections_with_worker_and_coordinator": connections,
        "commands_per_s": round(used.commands / used.at, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="runs that emit at the same time, with a reader each")
    parser.add_argument("--tokens", type=int, default=200, help="events of each run")
    parser.add_argument("--rate", type=float, default=20.0, help="events of a run in a second")
    parser.add_argument("--pour", type=int, default=2_000, help="events of each run that emits as fast as it can")
    parser.add_argument("--idle", type=int, default=1_000, help="readers that wait")
    parser.add_argument("--live", type=int, default=0, help="live runs that emit beside heartbeats, saves and claims")
    parser.add_argument("--pace", default="0.2,0.5,1", help="with --live: events of a run in a second, for each phase")
    parser.add_argument("--seconds", type=float, default=20.0, help="with --live: length of a phase")
    parser.add_argument("--server", choices=["valkey", "redis"], default="valkey")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with server(options.server) as found:
        figures: dict[str, Any] = where(found)
        if options.live:
            paces = [float(pace) for pace in options.pace.split(",")]
            figures |= beside_events(found, options.live, paces, options.seconds)
            show(figures, options.json)
            return
        place = {"RUNS_URL": found.url, "RUNS_NAMESPACE": "output"}
        with (
            process(tool("coordinator"), "start", **place),
            process(tool("workers"), "start", "output_app:runs", "--concurrency", "100", **place),
        ):
            figures |= asyncio.run(typed(found, options.runs, options.tokens, options.rate))
            figures |= asyncio.run(poured(found, options.runs, options.pour))
            figures |= asyncio.run(idle(found, options.idle, 10.0))
        figures["load_after"] = round(where(found)["load"], 1)
    show(figures, options.json)


def show(figures: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(figures))
        return
    phases = figures.pop("phases", [])
    width = max(len(name) for name in figures)
    for name, value in figures.items():
        print(f"{name:{width}}  {value}")
    if phases:
        show_phases(phases)


if __name__ == "__main__":
    main()
