"""Measure waits: signals, sleeps, the memory of waiting runs, many timeouts at once, and a join of children.

It uses one coordinator process and one worker process; all share the host's clock. For the memory and the timeouts, a worker
suspends one run, and the benchmark copies its keys. The benchmark reports figures and never fails because of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from due import PATIENCE, process, spread, tool
from server import BenchServer, server, where

from coordinator import Client, Handle
from coordinator.services.due import BATCH as DUE_BATCH
from coordinator.store.keys import Keys
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.script import Call
from coordinator.store.transport.packets import Packet

WAITING = "{many:0}:waiting"
TEXT = "x" * 100
BATCH = 1000
SLEEP = 2.0  # seconds of the shortest sleep
APART = 0.02  # seconds between the ends of two sleeps

# Copy the keys of a waiting run for each of the ids that follow.
COPY = """
local tag, source = ARGV[1], ARGV[2]
local due = redis.call('ZSCORE', tag .. ':waiting', source)
for i = 3, #ARGV do
  for _, kind in ipairs({ 'run', 'ckpt' }) do
    redis.call('COPY', tag .. ':' .. kind .. ':' .. source, tag .. ':' .. kind .. ':' .. ARGV[i])
  end
  redis.call('COPY', tag .. ':messages:' .. source .. ':1', tag .. ':messages:' .. ARGV[i] .. ':1')
  redis.call('SADD', tag .. ':live', ARGV[i])
  redis.call('ZADD', tag .. ':waiting', due, ARGV[i])
end
"""


def signalled(client: Client, found: BenchServer, kind: str, count: int) -> Iterator[float]:
    """Measure from the start of `send` to the handler's line after `receive`, for one run after the other."""
    for _ in range(count):
        handle: Handle[float] = client.enqueue(kind)
        wait_for(partial(waits, handle, found, kind), f"the {kind} run to wait")
        time.sleep(0.02)  # The handler lingers just after its save; an idle worker sends its next claim.
        sent = time.time()
        handle.send("go")
        yield handle.result(PATIENCE) - sent


def waits(handle: Handle[float], found: BenchServer, kind: str) -> bool:
    status = "waiting" if kind == "suspended" else "running"
    return handle.view().status == status and bool(found.admin.exists(f"{{{kind}:0}}:ckpt:{handle.id}"))


def latencies(found: BenchServer, count: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for kind in ("lingering", "suspended"):
        found.empty()
        place = {"RUNS_URL": found.url, "RUNS_NAMESPACE": kind}
        with (
            process(tool("coordinator"), "start", **place),
            process(tool("workers"), "start", "waits_app:runs", **place),
            Client(found.url, kind) as client,
        ):
            list(signalled(client, found, kind, 10))  # warm
            seconds = list(signalled(client, found, kind, count))
            figures |= {f"{kind}_min_ms": round(min(seconds) * 1000, 1)} | spread(kind, seconds)
    return figures


def sleeps(found: BenchServer, count: int) -> dict[str, float]:
    """Measure how late handlers continue after `run.sleep`, in the process (napping) and suspended (sleeping)."""
    figures: dict[str, float] = {}
    for kind in ("napping", "sleeping"):
        found.empty()
        place = {"RUNS_URL": found.url, "RUNS_NAMESPACE": kind}
        with (
            process(tool("coordinator"), "start", **place),
            process(tool("workers"), "start", "waits_app:runs", "--concurrency", str(count), **place),
            Client(found.url, kind) as client,
        ):
            client.enqueue(kind, {"seconds": 0.1}).result(PATIENCE)  # warm
            # The runs are due one after the other: all at once would measure the duration of a burst.
            handles: list[Handle[float]] = [
                client.enqueue(kind, {"seconds": SLEEP + number * APART}) for number in range(count)
            ]
            figures |= spread(f"{kind}_late", [handle.result(PATIENCE) for handle in handles])
    return figures


def fill(found: BenchServer, kind: str, count: int) -> float:
    """Let a run wait, copy it, and return the bytes that each copy takes."""
    found.empty()
    place = {"RUNS_URL": found.url, "RUNS_NAMESPACE": "many"}
    with Client(found.url, "many") as client, process(tool("workers"), "start", "waits_app:runs", **place):
        handle = client.enqueue(kind, {"text": TEXT})
        wait_for(lambda: handle.view().status == "waiting", "the run to wait")
    before = found.memory()
    for first in range(0, count, BATCH):
        ids = [f"{number:020d}-00" for number in range(first, min(first + BATCH, count))]
        found.admin.eval(COPY, 0, "{many:0}", handle.id, *ids)
    return (found.memory() - before) / count


def let_all_come_due(found: BenchServer) -> int:
    """Make all waiting runs due now, and return their number."""
    count = int(found.admin.zcard(WAITING))
    found.admin.execute_command("ZUNIONSTORE", WAITING, 1, WAITING, "WEIGHTS", 0)
    return count


def processor_time(found: BenchServer) -> dict[str, float]:
    """Queue all waiting runs with the calls that a coordinator makes. Measure the time that each call takes of the processor.

    On a busy machine the duration of a command says little, because the server may have to wait for the processor.
    """
    count, took = let_all_come_due(found), list[int]()
    clock = Path(f"/proc/{found.pid}/task/{found.pid}/schedstat")  # of the thread that executes commands, in ns
    while found.admin.zcard(WAITING):
        call = next(coordinator_plans.due(Keys("many", 0), batch=DUE_BATCH))
        assert isinstance(call, Call)
        before = int(clock.read_text().split()[0])
        found.admin.execute_command(*Packet(call, [0], list(call.items)).command(bare=False, whole=True))
        took.append(int(clock.read_text().split()[0]) - before)
    del took[0]  # It compiles the script, and tidies up the memory that ZUNIONSTORE has freed.
    return {
        "longest_call_processor_ms": round(max(took) / 1e6, 1),
        "median_call_processor_ms": round(statistics.median(took) / 1e6, 1),
        "processor_us_per_timeout": round(sum(took) / count / 1000, 1),
    }


def timeouts(found: BenchServer) -> dict[str, float]:
    """Let the timeouts of all waiting runs come due in the same moment. Measure until a coordinator has queued all of them."""
    admin = found.admin
    with process(tool("coordinator"), "start", RUNS_URL=found.url, RUNS_NAMESPACE="many"):
        wait_for(lambda: admin.exists("{many:0}:coordinators"), "a coordinator")
        count = let_all_come_due(found)
        admin.config_set("slowlog-log-slower-than", 1000)
        admin.config_set("slowlog-max-len", 10_000)
        admin.slowlog_reset()  # ZUNIONSTORE itself is a long command, and does not count
        began = time.monotonic()
        admin.rpush("{many:0}:bell:coordinator", 1)
        wait_for(lambda: not admin.zcard(WAITING), "the timeouts")
        took = time.monotonic() - began
    slow = sorted((entry["duration"] / 1000 for entry in admin.slowlog_get(10_000)), reverse=True)
    return {
        "timeouts_at_once": count,
        "queued_in_s": round(took, 2),
        "longest_command_ms": round(max(slow, default=0.0), 1),
        "commands_above_50_ms": sum(one > 50 for one in slow),
    }


def joins(found: BenchServer, count: int, rounds: int) -> dict[str, float]:
    """Compare a parent that waits for `count` children with `count` plain runs, in alternating rounds.

    Both are measured from the first call to the last ending.
    """
    rates: dict[str, list[float]] = {"plain": [], "joined": []}
    for number in range(rounds):
        found.empty()
        place = {"RUNS_URL": found.url, "RUNS_NAMESPACE": f"joins{number}"}
        with (
            process(tool("coordinator"), "start", **place),
            process(tool("workers"), "start", "waits_app:runs", "--concurrency", "100", **place),
            Client(found.url, f"joins{number}") as client,
        ):
            client.enqueue("fan_out", {"count": 10}).result(PATIENCE)  # warm
            ended, before = f"{{joins{number}:0}}:ended:completed", 11
            began = time.monotonic()
            client.enqueue_many([("nothing", {})] * count)
            wait_for(lambda: found.admin.zcard(ended) >= before + count, "the plain runs")  # noqa: B023
            rates["plain"].append(count / (time.monotonic() - began))
            began = time.monotonic()
            client.enqueue("fan_out", {"count": count}).result(PATIENCE)
            rates["joined"].append(count / (time.monotonic() - began))
    plain, joined = (statistics.median(rates[name]) for name in ("plain", "joined"))
    return {"plain_runs_per_s": round(plain), "joined_children_per_s": round(joined), "ratio": round(joined / plain, 2)}


def wait_for(fact: Callable[[], Any], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not fact():
        if time.monotonic() > until:
            raise SystemExit(f"waited {PATIENCE:.0f} s for {what}")
        time.sleep(0.005)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="signals of each kind")
    parser.add_argument("--many", type=int, default=100_000, help="runs that wait at the same time")
    parser.add_argument("--joins", type=int, default=10_000, help="children of one parent")
    parser.add_argument("--server", choices=["valkey", "redis"], default="valkey")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with server(options.server) as found:
        figures: dict[str, Any] = where(found)
        if options.count:
            figures |= latencies(found, options.count)
            figures |= sleeps(found, options.count)
        if options.many:
            figures["bytes_with_a_message"] = round(fill(found, "talkative", options.many))
            figures |= processor_time(found)
            figures["bytes_per_waiting_run"] = round(fill(found, "patient", options.many))
            figures |= timeouts(found)
        if options.joins:
            figures |= joins(found, options.joins, 3)
        figures["load_after"] = round(where(found)["load"], 1)
    if options.json:
        print(json.dumps(figures))
        return
    width = max(len(name) for name in figures)
    for name, value in figures.items():
        print(f"{name:{width}}  {value}")


if __name__ == "__main__":
    main()
