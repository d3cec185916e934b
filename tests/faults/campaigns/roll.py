"""Replace fleets under load, with the new fleet started first: no recovery, no strike, no repeated step."""

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
    """Return a fleet that has begun to work. A new one has nothing to release and does not handle signals yet."""
    working = set(lab.workers(at_work=True))
    return [fleet for fleet in lab.fleets if working.intersection(children(fleet.pid))]


# A lease that is long enough for any busy machine: a recovery would mean that a run was not released.
CAMPAIGN = Campaign("roll", break_one, Plan(users=1, lease=30.0, grace=10.0), also=costs_nothing)


def main(arguments: Sequence[str]) -> int:
    return run(CAMPAIGN, arguments, count=20)
