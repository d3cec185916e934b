"""Simulate fleets on a virtual clock: real workers, coordinators and clients over a network that loses, cuts and delays."""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from coordinator.store.script import Script
from coordinator.store.scripts import SCRIPTS
from tests.faults.records.archive import Record, Verdict, commit, keep
from tests.faults.simulation.server import Plant, RealServer
from tests.faults.simulation.world import World
from tests.servers import FORGETFUL, Server

SEEDS_PER_PROCESS = 200  # seeds per process
MOST_SHOWN = 10  # breaches that a campaign prints


@dataclass(frozen=True, slots=True)
class Breach:
    """A seed that broke a promise: what was noticed, and the last calls at the server."""

    seed: int
    why: str
    tail: tuple[str, ...]

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.why}"


@dataclass(slots=True)
class Outcome:
    """The result of some seeds. Without breaches, every promise was kept."""

    seeds: int = 0
    events: int = 0
    runs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    digest: str = ""
    breaches: list[Breach] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.seeds += other.seeds
        self.events += other.events
        self.runs += other.runs
        self.faults += other.faults
        self.breaches += other.breaches


def _unchanged(script: Script) -> str:
    return script.text


@contextmanager
def a_server(plant: Plant = _unchanged) -> Iterator[RealServer]:
    with tempfile.TemporaryDirectory(prefix="simulate-") as folder:
        path = Path(folder, "socket")
        process = Server("valkey", Path(folder), {**FORGETFUL, "unixsocket": str(path)})
        try:
            server = RealServer(path, SCRIPTS, plant)
            yield server
            server.close()
        finally:
            process.close()


def one(seed: int, server: RealServer) -> Outcome:
    """Run one seed. Any exception means that a promise was broken, or that the simulation is wrong."""
    world = World(seed, server)
    outcome = Outcome(seeds=1)
    try:
        world.run()
    except Exception as error:  # noqa: BLE001  # Whatever it is, the seed repeats it.
        why = f"{type(error).__name__}: {error}"
        outcome.breaches.append(Breach(seed, why, tuple(world.environment.trace.tail)))
    trace = world.environment.trace
    outcome.events, outcome.runs = trace.events, len(world.users.acknowledged)
    outcome.faults, outcome.digest = world.environment.network_faults.counts, trace.digest
    return outcome


def some(first: int, count: int) -> Outcome:
    """Run consecutive seeds in this process. A breach does not stop the seeds after it."""
    return several(range(first, first + count))


def several(seeds: Iterable[int], plant: Plant = _unchanged, *, until_breach: bool = False) -> Outcome:
    """Run some seeds in this process: all of them, or with `until_breach` up to the first breach."""
    total = Outcome()
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None  # Discarded tasks cannot clean up.
    gc.collect()
    gc.freeze()  # This keeps the collection between two seeds small.
    gc.disable()
    try:
        with a_server(plant) as server:
            for seed in seeds:
                total.add(one(seed, server))
                gc.collect()
                if until_breach and total.breaches:
                    break
    finally:
        gc.enable()
        gc.unfreeze()
        sys.unraisablehook = hook
    return total


def pin(cores: SimpleQueue[int]) -> None:
    """Pin this process and its server to one core.

    They take turns, and what one has written is still in the cache when the other reads it. This saves a fifth of the
    time.
    """
    os.sched_setaffinity(0, {cores.get()})


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults simulate", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="number of seeds")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--no-record", action="store_true")
    given = parser.parse_args(arguments)
    begun = time.monotonic()
    parts = [
        (first, min(SEEDS_PER_PROCESS, given.seed + given.count - first))
        for first in range(given.seed, given.seed + given.count, SEEDS_PER_PROCESS)
    ]
    total = Outcome()
    context = get_context("spawn")
    cores = context.SimpleQueue()
    for _, core in zip(range(given.processes), itertools.cycle(sorted(os.sched_getaffinity(0)))):
        cores.put(core)
    with ProcessPoolExecutor(given.processes, context, initializer=pin, initargs=(cores,)) as pool:
        for part in pool.map(some, *zip(*parts, strict=True)):
            total.add(part)
    seconds = time.monotonic() - begun
    say(total, seconds)
    if not given.no_record:
        verdict: Verdict = "failed" if total.breaches else "passed"
        counts = {"events": total.events, "runs": total.runs, "breaches": len(total.breaches), **total.faults}
        keep(Record("simulate", given.seed, commit(), total.seeds, round(seconds, 1), verdict, counts))
    return 1 if total.breaches else 0


def say(total: Outcome, seconds: float) -> None:
    print(f"{total.seeds:,} seeds in {seconds:.1f} s: {total.seeds / seconds:.1f} per second")
    print(f"{total.events:,} calls at the server, {total.runs:,} runs acknowledged")
    print(", ".join(f"{count:,} {fault}" for fault, count in sorted(total.faults.items())) or "no faults")
    if not total.breaches:
        print("every promise was kept")
        return
    first = total.breaches[0]
    print("\n".join(first.tail))
    print(f"{len(total.breaches):,} seeds broke a promise:")
    print("\n".join(str(breach) for breach in total.breaches[:MOST_SHOWN]))
    print(f"repeat the first with: scripts/faults simulate --count 1 --seed {first.seed} --no-record")
