"""Each script in turn: its reply is cut after it was carried out, or its request arrives seconds late, after its caller gave up."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from coordinator.store import plans
from coordinator.store.script import Script
from tests.faults.campaign import Campaign, run
from tests.faults.lab import Lab
from tests.proxy import Fault, naming
from tests.waiting import wait_until

# what a lab's processes send while all is well
ALWAYS = (
    plans.ENQUEUE, plans.CLAIM, plans.LOAD, plans.CHECKPOINT, plans.NOTE, plans.COMPLETE, plans.FAIL, plans.RETRY, plans.HEARTBEAT,
    plans.JUDGE, plans.DUE, plans.RING, plans.CANCEL, plans.REVIVE,
)  # fmt: skip
# and what they send when a worker drains, is killed, or is lost with its supervisor
DRAINED = (plans.RELEASE, plans.LEAVE, plans.JOIN)
KILLED = (plans.ABANDON,)
LOST = (plans.RECOVER, plans.LOCK)
MANY_STEPS = 150


def break_one(lab: Lab) -> str:
    script = lab.choose.choice([*ALWAYS, *DRAINED, *KILLED, *LOST])
    late = lab.choose.random() < 0.4
    if not _hit(lab, script, lab.choose.choice([0.3, 2.5, 6.0]) if late else None):
        return break_one(lab)  # nobody sent it
    return f"{script.name} {'late' if late else 'cut'}"


def _hit(lab: Lab, script: Script, seconds: float | None) -> bool:
    """Whether the next call of a script was hit."""
    assert lab.proxy is not None
    of_it = naming(script.sha.encode())
    fault = lab.proxy.cut_next_reply(of_it) if seconds is None else lab.proxy.delay_next_request(seconds, of_it)
    _provoke(lab, script)
    begun = lab.steps_so_far()
    wait_until(lambda: _happened_or_not(lab, fault, begun), "the call is hit, or work goes on without it", timeout=60)
    if not fault.happened.is_set():
        return not lab.proxy.call_off(fault)
    return True


def _happened_or_not(lab: Lab, fault: Fault, begun: int) -> bool:
    lab.tend()
    return fault.happened.is_set() or lab.steps_so_far() > begun + MANY_STEPS


def _provoke(lab: Lab, script: Script) -> None:
    """Lets something happen after which a script is sent."""
    workers = lab.workers(at_work=True)
    if script in DRAINED and workers:
        os.kill(lab.choose.choice(workers), signal.SIGTERM)
    elif script in KILLED and workers:
        os.kill(lab.choose.choice(workers), signal.SIGKILL)
    elif script in LOST:
        fleet = lab.choose.choice(lab.fleets)
        for pid in [fleet.pid, *(pid for pid in lab.workers(at_work=False) if _parent(pid) == fleet.pid)]:
            os.kill(pid, signal.SIGKILL)
        fleet.wait()
        lab.tend()


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return int(stat.read().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return 0


CAMPAIGN = Campaign("replies", break_one, proxied=True)


def main(arguments: Sequence[str]) -> int:
    return run(CAMPAIGN, arguments, count=60)
