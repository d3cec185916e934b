"""Measure groups: what places and lines cost the drain, and whether the starts of a group use its whole rate.

Rounds are interleaved, so that noise affects all alike. pydocket has a concurrency limit for each value of an argument, and BullMQ
has a rate for a queue (its groups are not in its free version), so each is measured for what it has. The benchmark reports figures
and never fails because of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from contenders import OURS, Contender, named
from draining import drained, excess, read_marks
from server import BenchServer, server, where

from coordinator import Client

Figures = dict[str, list[float]]


def measure_drain(
    host: BenchServer, contender: Contender, marks: Path, count: int, groups: int, at_once: int, *, beside: bool = False
) -> dict[str, float]:
    """Measure the drain of runs that wait, and what a run costs the server.

    Args:
        host: The server.
        contender: The queue.
        marks: The file of marks.
        count: The number of runs.
        groups: The number of groups; 0 for runs without groups.
        at_once: The limit of each group.
        beside: Let runs of another kind wait in 1,000 full groups.
    """
    os.environ |= {"BENCH_GROUPS": str(groups), "BENCH_AT_ONCE": str(at_once)}
    host.empty()
    if beside:
        with Client(host.url) as client:
            client.set_limit("other", at_once=0)
            client.enqueue_many([("other", {"n": n}) for n in range(1000)], group=lambda given: f"g{given['n']}")
    if groups and contender.name == OURS:
        with Client(host.url) as client:
            client.set_limit("limited", at_once=at_once)
    before = host.usage()
    contender.ask("many", host.url, marks, count)
    filled = (host.usage() - before).cpu / count * 1e6
    found = drained(host, contender, marks, count, 1)
    return {"drain_per_s": found["rate"], "server_us": found["redis_us"], "enqueue_server_us": filled}


def measure_starts(host: BenchServer, marks: Path, rate: int, burst: int | None, seconds: float) -> dict[str, float]:
    """Measure the starts of the runs of one group under a rate, with one worker process of 100 slots."""
    os.environ |= {"BENCH_GROUPS": "1", "BENCH_AT_ONCE": "1000"}
    host.empty()
    (ours,) = named(OURS)
    with Client(host.url) as client:
        client.set_limit("limited", at_once=1000, rate=f"{rate}/s", burst=burst)
        ours.ask("many", host.url, marks, round(rate * seconds * 2))
        return _watch_starts(host, ours, marks, rate, burst or rate, seconds)


def measure_peer_rate(host: BenchServer, peer: Contender, marks: Path, rate: int, seconds: float) -> dict[str, float]:
    """Measure the starts of a queue with a limiter of `rate` jobs in a second."""
    host.empty()
    os.environ |= {"BENCH_GROUPS": "0", "BENCH_RATE": str(rate)}
    try:
        peer.ask("many", host.url, marks, round(rate * seconds * 2))
        return _watch_starts(host, peer, marks, rate, rate, seconds)
    finally:
        del os.environ["BENCH_RATE"]


def _watch_starts(
    host: BenchServer, contender: Contender, marks: Path, rate: int, burst: int, seconds: float
) -> dict[str, float]:
    marks.write_bytes(b"")
    with contender.working(host.url, marks):
        while marks.stat().st_size == 0:
            time.sleep(0.01)
        before, began = host.usage(), time.monotonic()
        time.sleep(seconds)
        starts, elapsed = [at / 1e9 for at in read_marks(marks)], time.monotonic() - began
        spent = host.usage() - before
    return {
        "share_of_allowed": len(starts) / (burst + rate * elapsed),
        "above_rate_times_window": max(excess(starts, rate)),
        "server_us": spent.cpu / len(starts) * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench groups")
    parser.add_argument("--count", type=int, default=20_000, help="runs of a drain")
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement of starts")
    parser.add_argument("--only", choices=("drain", "starts", "peers"), help="one part of the benchmark")
    parser.add_argument("--server", default="valkey")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    found: dict[str, Figures] = {}
    with server(chosen.server) as host, tempfile.TemporaryDirectory() as folder:
        facts = where(host) | {"count": chosen.count, "groups": chosen.groups, "at_once": chosen.at_once}
        for _ in range(chosen.rounds):
            for name, figures in _one_round(host, Path(folder) / "marks", chosen):
                for figure, value in figures.items():
                    found.setdefault(name, {}).setdefault(figure, []).append(value)
    if chosen.json:
        print(json.dumps({"where": facts, "figures": found}))
        return
    for fact, value in facts.items():
        print(f"{fact:>24}  {value}")
    for name, columns in found.items():
        middle = "  ".join(
            f"{figure} {statistics.median(values):,.3f} ({min(values):,.3f} to {max(values):,.3f})"
            for figure, values in columns.items()
        )
        print(f"{name:>24}  {middle}")


def _one_round(host: BenchServer, marks: Path, chosen: argparse.Namespace) -> list[tuple[str, dict[str, float]]]:
    ours, docket, bullmq = (next(one for one in named("pydocket,bullmq") if one.name == name) for name in PEERS)
    count, groups, at_once, seconds = chosen.count, chosen.groups, chosen.at_once, chosen.seconds
    found: list[tuple[str, dict[str, float]]] = []
    if chosen.only in (None, "drain"):
        found += [
            ("no groups", measure_drain(host, ours, marks, count, 0, 0)),
            ("no groups, beside full", measure_drain(host, ours, marks, count, 0, 0, beside=True)),
            ("groups", measure_drain(host, ours, marks, count, groups, at_once)),
            ("groups, 100 at once", measure_drain(host, ours, marks, count, groups, 100)),
        ]
    if chosen.only in (None, "starts"):
        found += [
            (f"starts {rate}/s, burst {burst or rate}", measure_starts(host, marks, rate, burst, seconds))
            for rate, burst in ((20, 1), (200, 1), (200, None))
        ]
    if chosen.only in (None, "peers"):
        part = min(count, 2000)
        fewer = max(1, part // PEER_GROUP_SIZE)  # so many runs in each group that the limit binds
        size = f"{fewer:,} groups of {PEER_GROUP_SIZE}, {at_once} at once"
        found += [
            (f"ours, {size}", measure_drain(host, ours, marks, part, fewer, at_once)),
            (f"pydocket, {size}", measure_drain(host, docket, marks, part, fewer, at_once)),
            ("ours, 100/s", measure_starts(host, marks, 100, None, seconds)),
        ]
        if bullmq.start is not None:
            found.append(("BullMQ, 100/s", measure_peer_rate(host, bullmq, marks, 100, seconds)))
    return found


PEERS = (OURS, "pydocket", "BullMQ")
PEER_GROUP_SIZE = 20  # runs in each group beside pydocket


if __name__ == "__main__":
    main()
