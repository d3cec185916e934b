"""The short form of the simulation: some hundred seeds, and a check that a seed repeats exactly."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from coordinator.store.scripts import SCRIPTS
from tests.faults.records.archive import ROOT
from tests.faults.simulation.bug import Bug
from tests.faults.simulation.bugs import BUGS
from tests.faults.simulation.loop import Stuck, VirtualClock, VirtualLoop
from tests.faults.simulation.scenario import FAULTS
from tests.faults.simulation.simulate import several, some

QUICK = (
    "a recovered run keeps its epoch",
    "a completed run keeps its key for ever",
    "judge ignores the pause of recovery",
    "a suspend does not check its condition again",
    "a key does not name one signal",
    "the ending of a child is not counted",
    "events count as settled before their checkpoint",
    "a repeated report counts twice",
)
DIGESTS = """
import sys
from tests.faults.simulation.simulate import a_server, one
with a_server() as server:
    for seed in map(int, sys.argv[1:]):
        print(one(seed, server).digest)
"""


@pytest.mark.matrix("simulation")
@pytest.mark.parametrize("first", [0, 25, 50, 75])
def test_every_promise_holds_with_lost_and_late_messages_and_killed_processes(first: int) -> None:
    outcome = some(first, 25)
    assert not outcome.breaches, "\n".join([*outcome.breaches[0].tail, *map(str, outcome.breaches)])
    assert outcome.runs > 25
    assert all(outcome.faults[fault] > 5 for fault in FAULTS), outcome.faults


@pytest.mark.matrix("simulation")
def test_a_seed_repeats_exactly_in_any_process_and_after_any_other_seeds() -> None:
    """Two processes run the same seeds in opposite orders, so the first seed of one is the last of the other."""
    found = []
    for hash_seed, seeds in (("1", range(20)), ("2", reversed(range(20)))):
        ran = subprocess.run(
            [sys.executable, "-c", DIGESTS, *map(str, seeds)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        found.append(ran.stdout.split())
    assert len(set(found[0])) == 20
    assert found[0] == found[1][::-1]


@pytest.mark.matrix("simulation")
def test_seeds_after_a_breach_still_run() -> None:
    bug = next(bug for bug in BUGS if bug.name == "a completed run keeps its key for ever")
    assert bug.seed is not None
    seeds = [bug.seed, bug.seed]
    assert [breach.seed for breach in several(seeds, bug.plant).breaches] == seeds
    assert [breach.seed for breach in several(seeds, bug.plant, until_breach=True).breaches] == seeds[:1]


def test_a_wait_of_zero_lets_time_pass() -> None:
    """As with any clock, a wait that was rounded to 0 ends some time later, and whatever is due by then is due."""
    loop = VirtualLoop()
    loop.run_until_complete(VirtualClock(loop).asleep(0.0))
    assert loop.time() > 0.0
    loop.close()


def test_a_seed_in_which_time_stops_fails() -> None:
    async def for_ever() -> None:
        while True:  # noqa: ASYNC110  # There is no event to wait for.
            await asyncio.sleep(0)  # The subject of the test: a task that lets no virtual time pass.

    loop = VirtualLoop()
    with pytest.raises(Stuck, match="no time passes"):
        loop.run_until_complete(for_ever())
    loop.abandon_all()
    loop.close()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_still_applies(bug: Bug) -> None:
    assert (ROOT / bug.path).read_text().count(bug.old) == 1
    assert any(bug.plant(script) != script.text for script in SCRIPTS)


@pytest.mark.matrix("simulation")
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.name in QUICK], ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    assert bug.seed is not None
    (breach,) = several([bug.seed], bug.plant).breaches
    assert breach.why.startswith("Broken: "), breach.why
