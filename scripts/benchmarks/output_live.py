"""Measure whether the events of thousands of live runs delay the heartbeats, saves and claims of their processes.

The runs are quiet in the first phase, and emit at another pace in each later phase. In all phases some runs save, other runs are
enqueued one after the other, and the deadlines of the workers' leases are observed on the server. One process has all runs, or two
processes if the runs need more slots than one process may have.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from itertools import pairwise
from typing import Any

from due import process, spread, tool
from server import BenchServer, cpu_of_tree

from coordinator import AsyncClient

NAMESPACE = "live"
LEASE = 5.0  # seconds: a heartbeat is due every second
SPARE = 100  # slots of a process that are left for runs that save, and for runs that are claimed
MOST_SLOTS = 10_000  # of one process
SAVERS = 20
APART = 0.1  # seconds between two runs that are enqueued
LOOK = 0.01  # seconds between two looks at the lease
REST = 6.0  # seconds between two phases, in which the process sends what is left
PATIENCE = 120.0


async def watch_heartbeats(found: BenchServer, beats: defaultdict[bytes, list[float]]) -> None:
    """Note the time of each heartbeat of each worker: the deadline of the lease without the length of the lease."""
    (key,) = found.admin.scan_iter("*}:workers")
    while True:
        for worker, deadline in found.admin.zrange(key, 0, -1, withscores=True):
            beat = deadline / 1000 - LEASE
            if not beats[worker] or beat > beats[worker][-1]:
                beats[worker].append(beat)
        await asyncio.sleep(LOOK)


async def probe_claims(client: AsyncClient, until: float) -> list[tuple[float, float]]:
    """Enqueue runs one after the other, and return when each was enqueued, and how long it took until its handler began."""
    begun, handles = [], []
    while (now := time.time()) < until:
        begun.append(now)
        handles.append(await client.enqueue("begun_at", queue="probes"))
        await asyncio.sleep(APART)
    return [(at, await handle.result(PATIENCE) - at) for at, handle in zip(begun, handles, strict=True)]


def stored_events(found: BenchServer) -> int:
    """Return the number of commands that have stored an event."""
    return int(found.admin.info("commandstats").get("cmdstat_xadd", {"calls": 0})["calls"])


async def measure(found: BenchServer, pid: int, live: int, paces: list[float], seconds: float) -> dict[str, Any]:
    beats: defaultdict[bytes, list[float]] = defaultdict(list)
    rows: list[dict[str, float]] = []
    async with AsyncClient(found.url, NAMESPACE) as client:
        await (await client.enqueue("begun_at", queue="probes")).result(PATIENCE)  # a worker has started
        begin = time.time() + 10 + live / 500  # by then all runs are claimed
        phases = [(begin + number * (seconds + REST), pace) for number, pace in enumerate([0.0, *paces])]
        end = phases[-1][0] + seconds
        inputs: dict[str, Any] = {"phases": phases, "seconds": seconds}
        await client.enqueue_many([("talking", inputs)] * live)
        savers = [await client.enqueue("saving", {"until": end}, queue="probes") for _ in range(SAVERS)]
        await asyncio.sleep(begin - time.time())
        running = sum(int(found.admin.scard(key)) for key in found.admin.scan_iter("*}:owned:*"))
        assert running == live + SAVERS, f"{running} of {live + SAVERS} runs were claimed in time"
        watching = asyncio.create_task(watch_heartbeats(found, beats))
        claiming = asyncio.create_task(probe_claims(client, end))
        for start, pace in phases:
            await asyncio.sleep(start - time.time())
            events, usage, spent = stored_events(found), found.usage(), cpu_of_tree(pid)
            await asyncio.sleep(start + seconds - time.time())
            used = found.usage() - usage
            rows.append({
                "pace": pace,
                "wanted_per_s": round(pace * live),
                "stored_per_s": round((stored_events(found) - events) / used.at),
                "worker_cpu_percent": round(100 * (cpu_of_tree(pid) - spent) / used.at),
                "server_cpu_percent": round(100 * used.cpu / used.at),
            })  # fmt: skip
        saves = [pair for saver in savers for pair in await saver.result(PATIENCE)]
        claims = await claiming
        watching.cancel()
    for row, (start, _) in zip(rows, phases, strict=True):
        end = start + seconds
        row |= spread(
            "heartbeat",
            [after - before for times in beats.values() for before, after in pairwise(times) if start <= after < end],
        )
        row |= spread("save", [took for at, took in saves if start <= at < end])
        row |= spread("claim", [took for at, took in claims if start <= at < end])
    return {"live_runs": live, "processes": len(beats), "lease_s": LEASE, "phases": rows}


def show_phases(phases: list[dict[str, float]]) -> None:
    """Print a line for each figure, with a column for each phase."""
    for name in phases[0]:
        print(f"{name:20}", *(f"{row[name]:>10}" for row in phases))


def beside_events(found: BenchServer, live: int, paces: list[float], seconds: float) -> dict[str, Any]:
    """Return the figures of each phase. All slots of the processes but a few are taken by runs that emit."""
    place = {"RUNS_URL": found.url, "RUNS_NAMESPACE": NAMESPACE}
    processes = 1 if live + SPARE <= MOST_SLOTS else 2
    slots = math.ceil(live / processes) + SPARE
    command = [tool("workers"), "start", "output_app:runs", "--concurrency", str(slots), "--lease", str(LEASE)]
    command += ["--processes", str(processes), "--queues", "default,probes"]
    with process(tool("coordinator"), "start", **place), process(*command, **place) as worker:
        return asyncio.run(measure(found, worker.pid, live, paces, seconds))
