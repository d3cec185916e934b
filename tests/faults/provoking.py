"""Which scripts are sent in a lab with an operator and a diarist, and what lets a script be sent now: every one that there is."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping

from coordinator.store import plans
from coordinator.store.script import Script
from tests.faults.lab import Lab

# what its processes send while all is well
ALWAYS = (
    plans.ENQUEUE, plans.CLAIM, plans.LOAD, plans.CHECKPOINT, plans.NOTE, plans.COMPLETE, plans.FAIL, plans.RETRY, plans.HEARTBEAT,
    plans.JUDGE, plans.DUE, plans.RING, plans.TRIM, plans.CAP, plans.UPCOMING, plans.SUPERVISE,
    plans.RECORD_SAVE, plans.RECORD_LOAD, plans.RECORD_DELETE, plans.RECORD_LIST, plans.RECORD_CLAIM, plans.RECORD_KEEP,
)  # fmt: skip
# and what they send when a worker drains, is killed, or is lost with its supervisor
DRAINED = (plans.RELEASE, plans.LEAVE, plans.JOIN)
KILLED = (plans.ABANDON,)
LOST = (plans.RECOVER, plans.LOCK)
# and after a deed of the operator
ASKED: Mapping[Script, str] = {
    plans.FOUND: "come_in", plans.VIEW: "look", plans.WAIT: "look", plans.CANCEL: "cancel", plans.FELL: "cancel_tree",
    plans.REVIVE: "revive", plans.DISCARD: "discard", plans.EXTEND: "let_one_be_overdue", plans.KILL: "let_one_be_overdue",
    plans.REJECT: "enqueue_what_can_not_start", plans.PAUSE: "pause", plans.UNPAUSE: "pause", plans.SCHEDULE: "schedule",
    plans.FIRE: "schedule", plans.PAUSE_SCHEDULE: "pause_schedule", plans.UNSCHEDULE: "unschedule",
    plans.POSTPONE: "schedule_elsewhere", plans.ROLL: "roll", plans.ROLL_PART: "roll", plans.UNLOCK: "roll", plans.DRAIN: "drain",
    plans.EXAMINE: "doctor", plans.EXAMINE_ENTRIES: "doctor", plans.EXAMINE_KEYS: "doctor", plans.MEND_RUN: "doctor",
    plans.MEND_ENTRY: "doctor", plans.MEND_KEY: "doctor", plans.MEND_TYPE: "doctor",
}  # fmt: skip
HIT = (*ALWAYS, *DRAINED, *KILLED, *LOST, *ASKED)
# and those that are not hit, each with the reason
NOT_HIT: Mapping[Script, str] = {
    plans.CONFIRM: "sent only where replicas confirm, in one trip with the script that it is about: see `scripts/faults failover`",
}


def provoke(lab: Lab, script: Script) -> None:
    """Lets something happen after which a script is sent."""
    workers = lab.workers(at_work=True)
    if script in ASKED:
        lab.ask(ASKED[script])
    elif script in DRAINED and workers:
        _signal(lab.choose.choice(workers), signal.SIGTERM)
    elif script in KILLED and workers:
        _signal(lab.choose.choice(workers), signal.SIGKILL)
    elif script in LOST:
        fleet = lab.choose.choice(lab.fleets)
        for pid in [fleet.pid, *(pid for pid in lab.workers(at_work=False) if _parent(pid) == fleet.pid)]:
            _signal(pid, signal.SIGKILL)
        fleet.wait()
        lab.tend()


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return int(stat.read().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return 0
