"""The limits: our own scripts with the same arguments, sent without any of our Python code.

`bare`: redis-py pipelines of 100 commands, one call of each script per run. `merged`: one call for 100 runs. `tool`: the enqueue
script sent by redis-benchmark, if it is installed (claims and endings need the tokens of earlier answers, which it can't pass on).
A worker adds an executor, a context, leases and a loop.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack
from server import BenchServer

from coordinator.model.run_id import id_from, ids_from
from coordinator.store import scripts
from coordinator.store.keys import Keys
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.script import Call
from coordinator.store.transport.packets import Packet

ROUTE = "default:nothing@0"
PIPELINE = 100
_tails = itertools.count()
SPEC = msgpack.packb([{"began": 0, "text": "x" * 100}, {}, {}])


class Bare:
    """A namespace of its own, with workers that never send a heartbeat."""

    def __init__(self, server: BenchServer, name: str) -> None:
        self.server, self.keys = server, Keys(name, 0)
        for script in (scripts.ENQUEUE, scripts.CLAIM, scripts.COMPLETE):
            server.admin.script_load(script.text)
        self._do(namespace_plans.create(name, birth="bench"))
        self.number = 0

    def join(self, worker: str, lease_ms: int = 600_000) -> None:
        member = worker_plans.WorkerRecord(worker, lease_ms, "host", 1, "", "default", "", 100, (ROUTE,))
        self._do(worker_plans.join(self.keys, "bench", member))

    def _do(self, plan: Any) -> None:
        """Execute all steps of a short plan."""
        try:
            request = next(plan)
            while True:
                packet = Packet(request, [0], list(request.items) if isinstance(request, Call) else [])
                request = plan.send(self.server.admin.execute_command(*packet.command(bare=False, whole=True)))
        except StopIteration:
            return

    def send(self, calls: Sequence[Call]) -> list[Any]:
        pipeline = self.server.admin.pipeline(transaction=False)
        for call in calls:
            pipeline.execute_command(*Packet(call, [0], list(call.items)).command(bare=False, whole=False))
        return list(pipeline.execute())

    def enqueues(self, count: int) -> list[tuple[Any, ...]]:
        return [
            tuple(client_plans.NewRun(id_from(time.time_ns() // 1_000_000, next(_tails), 0), ROUTE, SPEC))
            for _ in range(count)
        ]

    def enqueue(self, items: Sequence[tuple[Any, ...]], *, merged: bool) -> None:
        fixed = ("", "bench")
        parts = [tuple(items)] if merged else [(item,) for item in items]
        self.send([Call(scripts.ENQUEUE, self.keys.at, fixed, part) for part in parts])

    def claim(self, want: int, *, merged: bool, worker: str = "w") -> list[tuple[str, str]]:
        calls = []
        for part in [want] if merged else [1] * want:
            self.number += 1
            calls.append(
                worker_plans.claim(self.keys, worker, number=self.number, want=part, routes=[ROUTE], alone=False)
            )
        replies = self.send([next(call) for call in calls])
        return [(row[0], row[1]) for reply in replies for row in reply[1]]

    def complete(self, held: Sequence[tuple[str, str]], *, merged: bool) -> None:
        items = [(id, token, b"", b"") for id, token in held]
        parts = [tuple(items)] if merged else [(item,) for item in items]
        self.send([Call(scripts.COMPLETE, self.keys.at, ("",), part) for part in parts])

    def fill(self, count: int) -> None:
        """Enqueue many runs as fast as possible, for measurements that begin with many waiting runs."""
        for part in parts(count, 500):
            self.enqueue(self.enqueues(part), merged=True)


def parts(count: int, size: int = PIPELINE) -> Iterator[int]:
    for start in range(0, count, size):
        yield min(size, count - start)


def rates(server: BenchServer, count: int, *, merged: bool) -> dict[str, float]:
    """Enqueue and drain `count` runs. Return the runs per second of both, and the server's time per run in microseconds.

    Args:
        server: The server.
        count: The number of runs.
        merged: True to send one call for 100 runs, False to send one call for each run.
    """
    kind = "merged" if merged else "bare"
    bare = Bare(server, kind)
    bare.join("w")
    waiting = [bare.enqueues(part) for part in parts(count)]
    before, began = server.usage(), time.perf_counter()
    for items in waiting:
        bare.enqueue(items, merged=merged)
    enqueued = time.perf_counter()
    for part in parts(count):
        bare.complete(bare.claim(part, merged=merged), merged=merged)
    drained = time.perf_counter()
    ended = int(server.admin.zcard(bare.keys.ended("completed")))
    if ended != count:
        raise RuntimeError(f"the bare drain ended {ended} of {count} runs")
    return {
        f"{kind}_enqueue_rate": count / (enqueued - began),
        f"{kind}_drain_rate": count / (drained - enqueued),
        f"{kind}_redis_us": (server.usage() - before).cpu / count * 1e6,
    }


def by_tool(server: BenchServer, count: int) -> dict[str, float]:
    """Return the enqueues per second of redis-benchmark, with pipelines of 1 and 32; an empty dict if it is not installed."""
    program = shutil.which("redis-benchmark") or shutil.which("valkey-benchmark")
    if not program:
        return {}
    bare = Bare(server, "tool")
    new = client_plans.NewRun(f"{ids_from(time.time())}__rand_int__", ROUTE, b"x" * 120)
    call = Call(scripts.ENQUEUE, bare.keys.at, ("", "bench"), (tuple(new),))
    command = [str(part, "ascii") if isinstance(part, bytes) else str(part)
               for part in Packet(call, [0], list(call.items)).command(bare=False, whole=False)]  # fmt: skip
    found = {}
    for depth in (1, 32):
        done = subprocess.run(
            [program, "-p", str(server.port), "-c", "1", "-n", str(count), "-P", str(depth), "-r", "1000000000000", "-q", *command],
            check=True, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        found[f"tool_enqueue_{depth}_rate"] = float(re.findall(r"([\d.]+) requests per second", done.stdout)[-1])
    return found


def limits(server: BenchServer, count: int) -> dict[str, float]:
    """Return all limits, each measured on an empty server."""
    found: dict[str, float] = {}
    for merged in (False, True):
        found |= rates(server, count, merged=merged)
        server.empty()
    found |= by_tool(server, count)
    server.empty()
    return found
