"""Plant each known bug in the scripts of the simulation's server, and print which seed caught it, and how soon.

    scripts/faults plant [NAME …] [--count N] [--processes N]

Only the server's scripts are changed. The watcher, the final checks and the handlers' own memory must notice the bug
from outside.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import NamedTuple

from tests.faults.simulation.bug import Bug
from tests.faults.simulation.bugs import BUGS
from tests.faults.simulation.scenario import seeds_of
from tests.faults.simulation.simulate import several


class Hunt(NamedTuple):
    """The result for one bug."""

    bug: Bug
    seeds: int
    caught: int | None
    why: str
    seconds: float


def hunted(bug: Bug, first: int, count: int) -> Hunt:
    """Run seeds from `first` on until one of them fails. Seeds that cannot notice the bug are left out."""
    begun = time.monotonic()
    outcome = several(seeds_of(bug.family, first, count), bug.plant, until_breach=True)
    seconds = time.monotonic() - begun
    if not outcome.breaches:
        return Hunt(bug, outcome.seeds, None, "", seconds)
    (breach,) = outcome.breaches
    return Hunt(bug, outcome.seeds, breach.seed, breach.why, seconds)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults plant", description=__doc__)
    parser.add_argument("names", nargs="*", help="only bugs whose name contains one of these words")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=300, help="number of seeds for each bug")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    bugs = [bug for bug in BUGS if not given.names or any(name in bug.name for name in given.names)]
    survived = 0
    print(
        "| planted bug | seed that caught it | seeds tried | seconds | what was noticed |\n| --- | --- | --- | --- | --- |"
    )
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        hunts = [pool.submit(hunted, bug, given.seed, given.count) for bug in bugs]
        for hunt in (done.result() for done in as_completed(hunts)):
            survived += hunt.caught is None
            caught = "SURVIVED" if hunt.caught is None else hunt.caught
            noticed = " ".join(hunt.why.split())[:110].replace("|", "/")
            print(f"| {hunt.bug.name} | {caught} | {hunt.seeds} | {hunt.seconds:.1f} | {noticed} |", flush=True)
    print(f"\n{len(bugs) - survived} of {len(bugs)} planted bugs caught within {given.count} seeds")
    return 1 if survived else 0
