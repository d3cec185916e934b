"""Measure the cost of a checkpoint, through a worker, on an embedded server of its own.

It measures the bytes and the time of saves of a growing transcript, compared with saving the whole state each time; a thousand runs
that save at the same time; and the resume of a run with a large transcript.

    scripts/bench checkpoints [--plot FILE.png] [--json] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgpack
import redis
from venvs import python_of

from coordinator import AsyncClient
from coordinator.config import Settings
from coordinator.store.transport.connections.embedded_server import attach
from workers import AsyncRun, Registry
from workers.process.options import WorkerOptions
from workers.process.worker import Worker

MESSAGE = "x" * 1000
SIZES = (100, 200, 400, 1600)
STEPS = 200  # These are the steps of an agent, for the comparison with langgraph's savers.
runs = Registry()
spent: list[float] = []
loaded_at: list[float] = []
offered = [0]


def message(number: int) -> dict[str, Any]:
    return {"role": "assistant", "number": number, "content": MESSAGE}


@runs.handler(throttle=0)
async def transcript(run: AsyncRun, count: int, state_bytes: int) -> int:
    """Append `count` messages, save after each one, and record how long each save takes."""
    if state_bytes:
        run.state["kept"] = "s" * state_bytes
        await run.flush()
    spent.clear()
    for number in range(count):
        run.messages.append(message(number))
        began = time.perf_counter()
        await run.flush()
        spent.append(time.perf_counter() - began)
    return len(run.messages)


@runs.handler(throttle=0.2)
async def saver(run: AsyncRun, seconds: float) -> int:
    """Offer a save ten times a second."""
    number = 0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        number += 1
        run.state["number"] = number
        run.checkpoint()
        offered[0] += 1
        await asyncio.sleep(0.1)
    return number


@runs.handler
async def large(run: AsyncRun, count: int) -> int:
    """Build a large transcript and fail, in the first attempt. In the second attempt, return the number of messages."""
    if run.resumed is None:
        for number in range(count):
            run.messages.append(message(number))
            if number % 500 == 499:
                await run.flush()
        raise RuntimeError("built")
    loaded_at.append(time.perf_counter())
    return len(run.messages)


async def with_worker(url: str, namespace: str, work: Callable[[AsyncClient, Worker], Awaitable[Any]]) -> Any:
    worker = Worker(runs, WorkerOptions(Settings(url, namespace), concurrency=1000, lease=15))
    task = asyncio.create_task(worker.run())
    await worker.ready.wait()
    try:
        async with AsyncClient(url, namespace) as client:
            return await work(client, worker)
    finally:
        worker.stop()
        await task


def received(admin: redis.Redis) -> int:
    return int(admin.info("stats")["total_net_input_bytes"])


def cpu(admin: redis.Redis) -> float:
    info = admin.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


async def growth(url: str, admin: redis.Redis) -> list[dict[str, Any]]:
    """Measure the bytes of a save without the message itself, and the time of early and late saves."""
    rows = []
    await with_worker(url, "warm", _warm)  # The scripts themselves are sent once per server.
    for state in (0, 100_000):
        for size in SIZES:

            async def work(client: AsyncClient, worker: Worker, size: int = size, state: int = state) -> dict[str, Any]:
                own = sum(len(msgpack.packb(message(number))) for number in range(size)) + state
                before, spent_before = received(admin), cpu(admin)
                await (await client.enqueue("transcript", {"count": size, "state_bytes": state})).result(300)
                sent, redis_us = received(admin) - before, (cpu(admin) - spent_before) / size * 1e6
                early, late = statistics.median(spent[8:40]), statistics.median(spent[-32:])
                return {
                    "messages": size, "state": state, "transcript_bytes": own, "sent_bytes": sent,
                    "over_per_save": round((sent - own) / size, 1), "early_ms": round(early * 1000, 3),
                    "late_ms": round(late * 1000, 3), "late_to_early": round(late / early, 2),
                    "redis_us_per_save": round(redis_us, 1),
                }  # fmt: skip

            row = await with_worker(url, f"growth{size}s{state}", work)
            rows.append(row | {"whole_state_bytes": whole(admin, size, state)})
    return rows


async def _warm(client: AsyncClient, worker: Worker) -> None:
    await (await client.enqueue("transcript", {"count": 2, "state_bytes": 1})).result(60)


def whole(admin: redis.Redis, size: int, state: int) -> int:
    """Save the same transcript as one msgpack value in each step, and return the bytes that the server received."""
    before = received(admin)
    messages: list[Any] = []
    for number in range(size):
        messages.append(message(number))
        admin.hset("whole", "checkpoint", msgpack.packb({"messages": messages, "state": "s" * state}))
    admin.delete("whole")
    return received(admin) - before


async def many(url: str, count: int = 1000, seconds: float = 10.0) -> dict[str, Any]:
    async def work(client: AsyncClient, worker: Worker) -> dict[str, Any]:
        offered[0] = 0
        doubts = 0
        handles = await client.enqueue_many([("saver", {"seconds": seconds})] * count)
        trips = worker._wire.trips
        ended = asyncio.create_task(_all(handles))
        while not ended.done():
            await asyncio.sleep(0.2)
            doubts += any(lease.in_doubt for lease in worker._membership.leases.values())
        await ended
        return {
            "runs": count,
            "saves_offered": offered[0],
            "round_trips": worker._wire.trips - trips,
            "leases_in_doubt": doubts,
        }

    return dict(await with_worker(url, "many", work))


async def _all(handles: list[Any]) -> None:
    for handle in handles:
        await handle.result(120)


async def resume(url: str, admin: redis.Redis, count: int = 10_000) -> dict[str, Any]:
    async def work(client: AsyncClient, worker: Worker) -> dict[str, Any]:
        handle = await client.enqueue("large", {"count": count})
        await handle.wait(120)
        admin.config_set("slowlog-log-slower-than", 50_000)
        admin.slowlog_reset()
        began = time.perf_counter()
        await handle.revive()
        messages = await handle.result(120)
        size = sum(len(msgpack.packb(message(number))) for number in range(count))
        return {
            "messages": messages, "megabytes": round(size / 1e6, 1), "seconds_until_it_goes_on": round(loaded_at[-1] - began, 3),
            "commands_above_50_ms": admin.slowlog_len(),
        }  # fmt: skip

    return dict(await with_worker(url, "resume", work))


def savers(url: str) -> dict[str, Any]:
    """Measure langgraph's savers in their own environment.

    Returns:
        For each saver the bytes that it writes for the same transcript, or the reason why it does not run here.
    """
    with tempfile.TemporaryDirectory() as directory:
        program = Path(__file__).with_name("peers") / "langgraph_app.py"
        done = subprocess.run(
            [python_of("langgraph"), program, url, str(STEPS), directory], check=False, capture_output=True, text=True
        )
    if done.returncode:
        return {"failed": done.stderr[-200:]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    try:
        import matplotlib  # Only a plot needs this import.
    except ImportError:
        raise SystemExit("--plot needs matplotlib: .venv/bin/pip install -c constraints.txt -e '.[bench]'") from None

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chosen = [row for row in rows if not row["state"]]
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    sizes = [row["messages"] for row in chosen]
    lines = {
        "whole_state_bytes": "whole state, each step", "sent_bytes": "run-coordinator", "transcript_bytes": "the transcript itself"
    }  # fmt: skip
    for key, label in lines.items():
        axes.plot(sizes, [row[key] / 1e6 for row in chosen], marker="o", label=label)
    axes.set(
        xscale="log", yscale="log", xlabel="messages of 1 kB, a save after each", ylabel="megabytes sent to the server"
    )
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=120)


async def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory, attach(Path(directory)) as server:
        admin = redis.Redis.from_url(server.url)
        return {
            "growth": await growth(server.url, admin),
            "langgraph": savers(server.url),
            "many": await many(server.url),
            "resume": await resume(server.url, admin),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = asyncio.run(measure())
    if options.plot:
        plot(found["growth"], options.plot)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for row in found["growth"]:
        print("  ".join(f"{name}={value}" for name, value in row.items()))
    for part in ("langgraph", "many", "resume"):
        print(part, "  ".join(f"{name}={value}" for name, value in found[part].items()))


if __name__ == "__main__":
    main()
