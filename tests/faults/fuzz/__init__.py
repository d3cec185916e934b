"""Send hostile bytes to all decoders, random arguments to every script, and random words to both commands.

    scripts/faults fuzz [--count N] [--seed S]

Most inputs are for decoders. One in a hundred is a call of a script on a real server, one in a thousand a command line.
"""

from __future__ import annotations

import argparse
import faulthandler
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.faults.fuzz import commands, decoding, scripts
from tests.faults.records.archive import Record, commit, keep
from tests.servers import FORGETFUL, Server

GROWTH = 256 * 1024 * 1024  # the number of bytes by which the process may grow, whatever the input
HANGS = 60.0  # seconds for a batch
BATCH, BATCH_OF_COMMANDS = 1000, 50


@contextmanager
def a_server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        server = Server("valkey", Path(folder), {**FORGETFUL, "enable-debug-command": "yes"})
        try:
            yield server
        finally:
            server.close()


def all_bad(what: str, look: Callable[[int], str], seeds: range, batch: int = BATCH) -> Iterator[str]:
    """Return all problems, with the commands that repeat them. A batch that hangs ends the process with a traceback."""
    for start in range(seeds.start, seeds.stop, batch):
        faulthandler.dump_traceback_later(HANGS, exit=True)
        for seed in range(start, min(start + batch, seeds.stop)):
            if wrong := look(seed):
                yield f"{what}, seed {seed}: {wrong}"
    faulthandler.cancel_dump_traceback_later()


def decode_all(seed: int, count: int) -> Iterator[str]:
    """Give each decoder its share of the inputs."""
    each = max(1, count // len(decoding.TARGETS))
    for target in decoding.TARGETS:
        yield from all_bad(target, lambda one, target=target: decoding.bad(target, one), range(seed, seed + each))  # type: ignore[misc]


def call_all(url: str, seed: int, count: int) -> Iterator[str]:
    scene = scripts.Scene(url)
    with closing(scene):
        scene.begin()
        yield from all_bad("script", lambda one: scripts.bad(scene, one), range(seed, seed + count))


def command_all(url: str, seed: int, count: int) -> Iterator[str]:
    yield from all_bad("command", lambda one: commands.bad(url, one), range(seed, seed + count), BATCH_OF_COMMANDS)


def grown() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-record", action="store_true")
    given = parser.parse_args(arguments)
    counts = {"decoding": given.count, "scripts": max(1, given.count // 100), "commands": max(1, given.count // 1000)}
    begun, before, wrong = time.monotonic(), grown(), Counter[str]()
    with a_server() as server:
        for what, found in (
            ("decoding", decode_all(given.seed, counts["decoding"])),
            ("scripts", call_all(server.url, given.seed, counts["scripts"])),
            ("commands", command_all(server.url, given.seed, counts["commands"])),
        ):
            for sentence in found:
                wrong[what] += 1
                if wrong[what] <= 10:
                    print(sentence)
            print(f"{counts[what]:,} inputs for {what}: {wrong[what]:,} bad")
    growth, seconds = grown() - before, time.monotonic() - begun
    print(f"{sum(counts.values()):,} inputs in {seconds:.1f} s; the process grew by {growth / 1e6:.0f} MB")
    good = not wrong and growth <= GROWTH
    if not given.no_record:
        more = {**counts, "grown_mb": round(growth / 1e6)}
        keep(
            Record(
                "fuzz",
                given.seed,
                commit(),
                sum(counts.values()),
                round(seconds, 1),
                "passed" if good else "failed",
                more,
            )
        )
    return 0 if good else 1
