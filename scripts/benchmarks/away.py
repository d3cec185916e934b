"""Measure calls to other partitions while one master of three is stopped (SIGSTOP) or killed.

The calls are heartbeats, claims and endings. The Cluster has no replicas, so no node replaces the missing one. Each partition has a
worker that beats, enqueues, claims and completes, one call after the other, all on one wire, as in a worker process. The benchmark
reports figures and never fails because of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # The servers are those of the tests.

from coordinator.errors import CoordinatorError
from coordinator.model.address import address
from coordinator.model.run_id import RunIds
from coordinator.store.keys import Keys, Namespace
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from tests.clusters import Cluster

PARTITIONS = 12
ROUTE = "default:k@0"
Times = dict[str, list[float]]


class Worker:
    """The repeated work of one partition."""

    def __init__(self, wire: AsyncWire, space: Namespace, keys: Keys) -> None:
        self._wire, self._space, self.keys = wire, space, keys
        self.worker, self._number, self._ids = uuid.uuid4().hex, 0, RunIds()
        self.times: Times = defaultdict(list)

    async def join(self) -> None:
        member = worker_plans.WorkerRecord(self.worker, 60_000, "h", 1, "s", "f", "c", 1, (ROUTE,))
        await drive_async(self._wire, worker_plans.join(self.keys, self._space.birth, member))

    async def work(self, seconds: float) -> None:
        self.times.clear()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                await self._round()
            except CoordinatorError:
                self.times["failed"].append(0.0)

    async def _round(self) -> None:
        keys, self._number = self.keys, self._number + 1
        await self._timed("heartbeat", worker_plans.heartbeat(keys, self.worker, lease_ms=60_000, floor=0))
        run = client_plans.NewRun(self._ids.make(time.time(), keys.partition), ROUTE, b"")
        await self._timed("enqueue", client_plans.enqueue(self._space, [run]))
        claim = worker_plans.claim(keys, self.worker, number=self._number, want=1, routes=[ROUTE], alone=False)
        _, claimed = await self._timed("claim", claim)
        for one in claimed:
            await self._timed("ending", attempt_plans.complete(keys, one.id, one.token, b""))
        await asyncio.sleep(0.02)

    async def _timed(self, what: str, plan: Any) -> Any:
        begun = time.monotonic()
        answer = await drive_async(self._wire, plan, timeout=5.0)
        self.times[what].append(1000 * (time.monotonic() - begun))
        return answer


def figures(workers: list[Worker]) -> dict[str, object]:
    found: dict[str, object] = {}
    for what in ("heartbeat", "enqueue", "claim", "ending"):
        times = [ms for worker in workers for ms in worker.times[what]]
        found[what] = {
            "calls": len(times), "p50_ms": round(median(times), 2), "p99_ms": round(quantiles(times, n=100)[98], 2),
            "max_ms": round(max(times), 1),
        }  # fmt: skip
    found["failed"] = sum(len(worker.times["failed"]) for worker in workers)
    return found


async def measure(seconds: float) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster("valkey", Path(directory), replicas=0)
        wire = AsyncWire(address(cluster.url))
        try:
            space = await drive_async(wire, namespace_plans.create("away", birth="b", partitions=PARTITIONS))
            workers = [Worker(wire, space, keys) for keys in space.everywhere()]
            for worker in workers:
                await worker.join()
            victim = cluster.master_of(space.keys(1).at)
            others = [worker for worker in workers if cluster.master_of(worker.keys.at) is not victim]
            result: dict[str, object] = {"partitions": PARTITIONS, "of_others": len(others)}
            for state in ("all there", "one stopped", "one killed"):
                {"all there": lambda: None, "one stopped": victim.pause, "one killed": victim.kill}[state]()
                tasks = [asyncio.create_task(worker.work(seconds)) for worker in workers]
                await asyncio.wait(tasks)
                result[state] = figures(others)
            return result
        finally:
            await wire.close()
            cluster.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench away")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of the measurement in each state")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    result = asyncio.run(measure(chosen.seconds))
    if chosen.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{result['of_others']} of {PARTITIONS} partitions are on the two masters that keep running")
    for state in ("all there", "one stopped", "one killed"):
        print(state)
        for what, its in result[state].items():  # type: ignore[attr-defined]  # The parser above defines it.
            print(f"    {what:<10} {its}")


if __name__ == "__main__":
    main()
