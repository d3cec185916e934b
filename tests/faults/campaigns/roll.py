"""Fleets are replaced under load, the new one started first: no recovery, no strike, no step twice."""

from __future__ import annotations

from collections.abc import Sequence
from subprocess import Popen

from tests.e2e.processes import children
from tests.faults.campaigns.runner import Campaign, run
from tests.faults.judge.checker import costs_nothing
from tests.faults.lab.lab import Lab, Plan
from tests.waiting import wait_until


def break_one(lab: Lab) -> str:
    lab.work_on(lab.choose.randint(1, 20))
    old = lab.choose.choice(wait_until(lambda: _at_work(lab), "a fleet is at work", timeout=60))
    lab.fleets.remove(old)
    lab.tend()
    old.terminate()
    assert old.wait(60) == 0, f"a fleet that was replaced ended badly:\n{lab.logs()[-3000:]}"
    return "roll"


def _at_work(lab: Lab) -> list[Popen[bytes]]:
    """One that has just been started has nothing to hand over, and does not listen to signals yet."""
    working = set(lab.workers(at_work=True))
    return [fleet for fleet in lab.fleets if working.intersection(children(fleet.pid))]


# a lease that no busy machine outlasts: whatever is recovered here was not handed over
CAMPAIGN = Campaign("roll", break_one, Plan(lease=30.0, grace=10.0), also=costs_nothing)


def main(arguments: Sequence[str]) -> int:
    return run(CAMPAIGN, arguments, count=20)
