"""How a lab with an operator and a record keeper is made to send each script."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping

from coordinator.store import scripts
from coordinator.store.script import Script
from tests.e2e.processes import children
from tests.faults.lab.lab import Lab
from tests.waiting import wait_until

MANY_STEPS = 150  # after so many, and so many seconds, a call is not waited for any more; some are sent every 5 s
LONG = 12.0
AGAIN = 40  # steps after which it is provoked once more
SOON = 5  # steps after which another one is provoked

# what its processes send while all is well
ALWAYS = (
    scripts.ENQUEUE,
    scripts.CLAIM,
    scripts.LOAD,
    scripts.CHECKPOINT,
    scripts.NOTE,
    scripts.COMPLETE,
    scripts.FAIL,
    scripts.RETRY,
    scripts.HEARTBEAT,
    scripts.JUDGE,
    scripts.DUE,
    scripts.RING,
    scripts.TRIM,
    scripts.CAP,
    scripts.UPCOMING,
    scripts.SUPERVISE,
    scripts.RECORD_SAVE,
    scripts.RECORD_LOAD,
    scripts.RECORD_DELETE,
    scripts.RECORD_LIST,
    scripts.RECORD_CLAIM,
    scripts.RECORD_KEEP,
)
# and what they send when a worker drains, is killed, or stands still with its supervisor: its host is lost
DRAINED = (scripts.RELEASE, scripts.LEAVE, scripts.JOIN)
KILLED = (scripts.ABANDON,)
LOST = (scripts.RECOVER, scripts.LOCK)
# and after a action of the operator
ASKED: Mapping[Script, str] = {
    scripts.CREATE_NAMESPACE: "come_in",
    scripts.VIEW: "look",
    scripts.WAIT: "look",
    scripts.CANCEL: "cancel",
    scripts.BLOCK_CHILDREN: "cancel_tree",
    scripts.REVIVE: "revive",
    scripts.DISCARD: "discard",
    scripts.EXTEND: "let_one_be_overdue",
    scripts.KILL: "let_one_be_overdue",
    scripts.REJECT: "enqueue_what_can_not_start",
    scripts.PAUSE: "pause",
    scripts.UNPAUSE: "pause",
    scripts.SCHEDULE: "schedule",
    scripts.FIRE: "schedule",
    scripts.PAUSE_SCHEDULE: "pause_schedule",
    scripts.UNSCHEDULE: "unschedule",
    scripts.POSTPONE: "schedule_elsewhere",
    scripts.ROLL: "roll",
    scripts.ROLL_PART: "roll",
    scripts.UNLOCK: "roll",
    scripts.DRAIN: "drain",
    scripts.EXAMINE: "doctor",
    scripts.EXAMINE_ENTRIES: "doctor",
    scripts.EXAMINE_KEYS: "doctor",
    scripts.REPAIR_RUN: "doctor",
    scripts.REPAIR_ENTRY: "doctor",
    scripts.REPAIR_KEY: "doctor",
    scripts.REPAIR_TYPE: "doctor",
}
HIT = (*ALWAYS, *DRAINED, *KILLED, *LOST, *ASKED)
# and those that are not hit, each with the reason
NOT_HIT: Mapping[Script, str] = {
    scripts.CONFIRM: "sent only where replicas confirm, in one trip with the script it confirms: see `scripts/faults failover`",
}


def provoke(lab: Lab, script: Script) -> None:
    """Lets something happen after which a script is sent. One host is lost at a time: that its runs are recovered takes a lease
    and a hold, and would take longer if more were lost meanwhile."""
    workers = lab.workers(at_work=True)
    if script in ASKED:
        lab.ask(ASKED[script])
    elif script in DRAINED and workers:
        _signal(lab.choose.choice(workers), signal.SIGTERM)
    elif script in KILLED and workers:
        _signal(lab.choose.choice(workers), signal.SIGKILL)
    elif script in LOST and not lab.lost and (busy := [f for f in lab.fleets if set(workers) & set(children(f.pid))]):
        lab.lose(lab.choose.choice(busy))


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def sent(lab: Lab, script: Script, happened: Callable[[], bool]) -> bool:
    """Provokes a script until something has happened to a call of it; False where nobody sent it although work went on."""
    begun, since, provoked = lab.steps_so_far(), time.monotonic(), -1

    def is_over() -> bool:
        nonlocal provoked
        lab.tend()
        done = lab.steps_so_far() - begun
        if happened() or (done > MANY_STEPS and time.monotonic() - since > LONG):
            return True
        if (
            done > provoked
        ):  # again: who is drained may have nothing to release, a run may be gone before it is cancelled
            provoke(lab, script)
            provoked = done + AGAIN
        return False

    wait_until(is_over, f"{script.name} is sent, or work goes on without it", timeout=90)
    return happened()
