"""Make the processes of a lab with an operator and a record keeper send each script."""

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

MANY_STEPS = (
    150  # The lab stops waiting for a call after this many steps and seconds. Some calls are sent only every 5 s.
)
LONG = 12.0
AGAIN = 40  # steps after which the script is triggered again
SOON = 5  # steps after which another script is triggered

# Scripts that the processes send in normal operation.
ALWAYS = (
    scripts.ENQUEUE,
    scripts.CLAIM,
    scripts.LOAD,
    scripts.CHECKPOINT,
    scripts.NOTE,
    scripts.EMIT,
    scripts.COMPLETE,
    scripts.FAIL,
    scripts.RETRY,
    scripts.HEARTBEAT,
    scripts.JUDGE,
    scripts.DUE,
    scripts.RING,
    scripts.TRIM,
    scripts.TRIM_CHILDREN,
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
# Scripts that they send when a worker drains, is killed, or stands still together with its supervisor (a lost host).
DRAINED = (scripts.RELEASE, scripts.LEAVE, scripts.JOIN)
KILLED = (scripts.ABANDON,)
LOST = (scripts.RECOVER, scripts.LOCK)
# Scripts that are sent after an action of the operator.
ASKED: Mapping[Script, str] = {
    scripts.CREATE_NAMESPACE: "enter_namespace",
    scripts.VIEW: "look",
    scripts.WAIT: "look",
    scripts.LISTEN: "read_output",
    scripts.TRANSCRIPT: "look",
    scripts.INTERRUPT: "read_output",
    scripts.CANCEL: "cancel",
    scripts.BLOCK_CHILDREN: "cancel_tree",
    scripts.REVIVE: "revive",
    scripts.DISCARD: "discard",
    scripts.EXTEND: "enqueue_overdue_run",
    scripts.KILL: "enqueue_overdue_run",
    scripts.SUSPEND: "enqueue_asking_run",
    scripts.RECEIVE: "enqueue_asking_run",
    scripts.SPEND: "enqueue_asking_run",
    scripts.SEND: "answer",
    scripts.JOIN_CHILDREN: "enqueue_summing_run",
    scripts.COLLECT: "enqueue_summing_run",
    scripts.REJECT: "enqueue_run_that_cannot_start",
    scripts.LIMIT: "limit_group",
    scripts.SWEEP: "fill_group",
    scripts.RATE: "call_outside",
    scripts.ACQUIRE: "call_outside",
    scripts.FINISH: "call_outside",
    scripts.BACK_OFF: "call_outside",
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
# Scripts that are not hit, each with the reason.
NOT_HIT: Mapping[Script, str] = {
    **dict.fromkeys(
        (scripts.GRAPH_SAVE, scripts.GRAPH_GET, scripts.GRAPH_HISTORY, scripts.GRAPH_DELETE, scripts.GRAPH_COPY),
        "sent by savers of graphs, which the lab's processes do not use: see tests/integration/langgraph",
    ),
    **dict.fromkeys(
        (scripts.SESSION_ADD, scripts.SESSION_REMOVE),
        "sent by sessions of agents, which the lab's processes do not use: see tests/integration/openai_agents",
    ),
    scripts.TAKE_ENDINGS: "sent by coordinators with metrics or traces, unlike the lab's: see tests/integration/metrics",
    scripts.CONFIRM: "sent only where replicas confirm, in one trip with the script it confirms: see `scripts/faults failover`",
}


def trigger(lab: Lab, script: Script) -> None:
    """Cause an event after which a process of the lab sends the script.

    Only one host is lost at a time: the recovery of its runs takes a lease and a pause of recovery, and more lost hosts
    would prolong it.
    """
    workers = lab.workers(at_work=True)
    if script in ASKED:
        lab.ask(ASKED[script])
    elif script in DRAINED:
        lab.ask("drain")
    elif script in KILLED and workers:
        _signal(lab.choose.choice(workers), signal.SIGKILL)
    elif script in LOST and not lab.lost and (busy := [f for f in lab.fleets if set(workers) & set(children(f.pid))]):
        lab.lose(lab.choose.choice(busy))


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def sent(lab: Lab, script: Script, happened: Callable[[], bool]) -> bool:
    """Trigger a script until a call of it was hit. Return False if no process sent it although work continued."""
    begun, since, provoked = lab.steps_so_far(), time.monotonic(), -1

    def is_over() -> bool:
        nonlocal provoked
        lab.tend()
        done = lab.steps_so_far() - begun
        if happened() or (done > MANY_STEPS and time.monotonic() - since > LONG):
            return True
        if (
            done > provoked
        ):  # Trigger it again: a drained worker may have nothing to release, and a run may end before it is cancelled.
            trigger(lab, script)
            provoked = done + AGAIN
        return False

    wait_until(is_over, f"{script.name} is sent, or work goes on without it", timeout=90)
    return happened()
