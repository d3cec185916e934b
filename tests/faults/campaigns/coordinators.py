"""Slow the coordinators down or let them crash again and again, while hosts are lost: recovery is late, and nothing is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

from tests.faults.campaigns.kill import kill_a_worker
from tests.faults.campaigns.runner import Campaign, run
from tests.faults.lab.lab import Lab, Plan

CRASHES = 4  # in a row
SECONDS = 6.0  # how long coordinators are slowed down: three leases
STOPPED, RUNNING = 0.45, 0.05  # seconds of each turn


def break_one(lab: Lab) -> str:
    lab.work_on(lab.choose.randint(2, 20))
    lost = lab.choose.random() < 0.5
    if lost:
        lab.lose(lab.fleets[0])
        lab.tend()
    fault = lab.choose.choice([crash_in_a_loop, slow_down])
    fault(lab)
    if not lost:
        kill_a_worker(lab)
    return f"{fault.__name__.replace('_', ' ')}, {'a host is lost' if lost else 'a worker is killed'}"


def crash_in_a_loop(lab: Lab) -> None:
    """Kill each coordinator soon after it was started: while it starts, and when it has begun to work."""
    for _ in range(CRASHES):
        time.sleep(lab.choose.random() * 2)  # the crash comes at any moment of the start
        for coordinator in lab.coordinators:
            coordinator.kill()
            coordinator.wait()
        lab.tend()


def slow_down(lab: Lab) -> None:
    """Let all coordinators run for a tenth of the time only."""
    until = time.monotonic() + SECONDS
    pids = [coordinator.pid for coordinator in lab.coordinators]
    while time.monotonic() < until:
        for number, seconds in ((signal.SIGSTOP, STOPPED), (signal.SIGCONT, RUNNING)):
            for pid in pids:
                os.kill(pid, number)
            time.sleep(seconds)  # the share of time in which a coordinator runs


CAMPAIGN = Campaign("coordinators", break_one, Plan(coordinators=2, operators=1))


def main(arguments: Sequence[str]) -> int:
    return run(CAMPAIGN, arguments, count=20)
