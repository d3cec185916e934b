"""Kill every process of a lab with kill -9: at random moments, and at named points around every script."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Sequence

from coordinator.store.script import Script
from tests.e2e.processes import children
from tests.faults.campaigns.runner import Campaign, run
from tests.faults.lab.lab import Lab, Plan
from tests.faults.lab.observer import POINTS
from tests.faults.lab.triggers import HIT, sent
from tests.waiting import wait_until


def break_one(lab: Lab) -> str:
    how = lab.choose.random()
    if how < 0.45:
        return kill_a_worker(lab)
    if how < 0.8:
        return crash_at_a_point(lab)
    kept, name = lab.choose.choice(
        [
            (lab.fleets, "supervisor"),
            (lab.coordinators, "coordinator"),
            (lab.producers, "producer"),
            (lab.operators, "operator"),
            (lab.record_keepers, "record_keeper"),
        ]
    )
    lab.work_on(lab.choose.randint(0, 12))
    victim = lab.choose.choice(kept)
    orphans = children(victim.pid)
    victim.kill()
    victim.wait()
    if name == "supervisor" and lab.choose.random() < 0.5:  # the whole host
        for pid in orphans:
            kill(pid)
        name = "host"
    lab.tend()
    return name


def kill_a_worker(lab: Lab) -> str:
    lab.work_on(lab.choose.randint(0, 12))
    ready = lab.choose.random() < 0.8  # otherwise a process that may have just started
    victim = lab.choose.choice(wait_until(lambda: _workers(lab, ready), "a worker is there", timeout=60))
    kill(victim)
    return "worker"


def _workers(lab: Lab, ready: bool) -> list[int]:
    lab.tend()
    return lab.workers(at_work=ready)


def crash_at_a_point(lab: Lab) -> str:
    """Kill the next process that reaches this point. If no process sends the script now, do not wait for it."""
    if not lab.deck:
        lab.deck.extend(crash_points(lab.choose))
    script, point = lab.deck.popleft()
    order = lab.directory / "crash"
    new = lab.directory / "crash.new"
    new.write_text(f"{script.name} {point}")
    new.rename(order)
    if not sent(lab, script, lambda: not order.exists()):
        order.unlink(missing_ok=True)
        lab.deck.append((script, point))
        return kill_a_worker(lab)
    lab.tend()
    return f"{script.name} {point}"


def crash_points(choose: random.Random) -> list[tuple[Script, str]]:
    """Return every point around every script that a lab sends, in random order."""
    points = [(script, point) for script in HIT for point in POINTS]
    choose.shuffle(points)
    return points


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


CAMPAIGN = Campaign("kill", break_one, Plan(operators=1, record_keepers=1))


def main(arguments: Sequence[str]) -> int:
    return run(CAMPAIGN, arguments, count=100)
