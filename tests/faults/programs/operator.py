"""An operator of the lab, as a process of its own. It does by hand what neither producers nor workers do by themselves.

    python -m tests.faults.programs.operator SEED

The operator does one action after the other. It chooses the next action, unless a campaign needs a certain script to be sent:
the campaign then writes the name of an action to the file `wanted` in the lab's directory. Before the operator damages something
for a doctor to repair, it writes the damage to the file `damage`. Any other finding of a doctor in the busy namespace goes to the
file `findings`, for the judge.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import redis

from coordinator import Client, CoordinatorError, ResultTimeout, RunView, Status
from coordinator.client.schedules import build_schedule
from coordinator.config import settings
from coordinator.doctor.examiner import examine
from coordinator.doctor.findings import Finding
from coordinator.doctor.report import DoctorReport
from coordinator.encoding.codec import encode
from coordinator.model.run_id import id_from
from coordinator.store.keys import Keys
from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.plans import schedules as schedule_plans
from coordinator.store.server_checks import enter
from coordinator.store.transport.wire import Wire, drive
from tests.faults.lab.observer import DIRECTORY
from tests.faults.programs.app import RATE, answer_all

T = TypeVar("T")
REST = 0.25  # seconds between two actions
SCHEDULES = {"first": 1.0, "second": 2.0}  # schedules and the seconds between their fire times
PAUSED = ("plain", "stumbling")  # kinds that are paused now and then
OVER = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
Action = Callable[["Operator"], None]


class Operator:
    """The operator's client, directory and random choices."""

    def __init__(self, seed: int, directory: Path, stopped: threading.Event) -> None:
        self.choose, self.directory, self.stopped = random.Random(seed), directory, stopped
        self.settings = settings(timeout=5.0)
        self.client, self.wire = Client(timeout=5.0), Wire(self.settings.address, 5.0)
        self.keys = Keys(self.settings.namespace, 0)
        self.unfit: list[str] = []
        self.asking: list[str] = []
        self.elsewhere: list[str] = []
        self.numbers = itertools.count()

    def do(self, plan: Generator[Any, Any, T]) -> T:
        return drive(self.wire, plan)

    def inputs(self, turns: int = 4) -> dict[str, Any]:
        return {"topic": f"small-operator-{os.getpid()}-{next(self.numbers)}", "turns": turns}

    def some_run(self, *statuses: Status) -> RunView | None:
        found = self.client.list(status=self.choose.choice(statuses), limit=30)
        return self.choose.choice(found) if found else None

    def a_while(self) -> None:
        self.stopped.wait(self.choose.uniform(0.1, 0.4))

    def work(self) -> None:
        self._repair()  # An earlier operator may have left something paused or damaged.
        self.unpause()
        while not self.stopped.wait(REST):
            action = ACTIONS.get(self._asked_for()) or self.choose.choice(OFTEN)
            with contextlib.suppress(CoordinatorError, redis.RedisError):
                action(self)

    def unpause(self, first: str = PAUSED[0]) -> None:
        """Unpause all kinds, also those that an earlier or a late pause left paused.

        Otherwise soon only paused runs would be left, and little work would be done.
        """
        for kind in sorted(PAUSED, key=lambda kind: kind != first):
            with contextlib.suppress(CoordinatorError):
                self.client.unpause(kind=kind)

    def _asked_for(self) -> str:
        """Return the action that a campaign requested. A rename ensures that it is done once."""
        with contextlib.suppress(OSError):
            taken = (self.directory / "wanted").rename(self.directory / "wanted.taken")
            return taken.read_text()
        return ""

    def _repair(self) -> None:
        with contextlib.suppress(CoordinatorError):
            _report_unexpected(self, self.do(examine(self.do(enter(self.settings)), repair=True)))


# ---- runs --------------------------------------------------------------------------------------------------------------


def enter_namespace(by: Operator) -> None:
    by.do(enter(by.settings))


def look(by: Operator) -> None:
    if run := by.some_run(Status.RUNNING, Status.QUEUED):
        handle = by.client.handle(run.id)
        handle.view()
        list(handle.messages())
        handle.wait(timeout=0.3)


def read_output(by: Operator) -> None:
    """Read the outputs of two runs at the same time: the second reader interrupts the blocking read of the first."""
    found = [by.some_run(Status.RUNNING, Status.QUEUED) for _ in range(2)]
    readers = [by.client.handle(run.id).stream(timeout=0.3) for run in found if run is not None]
    for reader in readers:
        with contextlib.suppress(StopIteration, ResultTimeout):
            next(reader)
    for reader in readers:
        with contextlib.suppress(ResultTimeout):
            list(itertools.islice(reader, 5))


def cancel(by: Operator) -> None:
    if run := by.some_run(Status.RUNNING, Status.QUEUED, Status.DELAYED, Status.WAITING):
        by.client.handle(run.id).cancel(grace=5)


def cancel_tree(by: Operator) -> None:
    """Cancel the tree of a running run, because only running runs can enqueue children."""
    if run := by.some_run(Status.RUNNING):
        by.client.handle(run.id).cancel_tree(grace=5)


def revive(by: Operator) -> None:
    if run := by.some_run(Status.FAILED, Status.CANCELLED):
        by.client.handle(run.id).revive(from_start=by.choose.random() < 0.3)


def discard(by: Operator) -> None:
    if run := by.some_run(*OVER):
        by.client.handle(run.id).discard()


def enqueue_overdue_run(by: Operator) -> None:
    by.client.enqueue("overdue", by.inputs())


def enqueue_asking_run(by: Operator) -> None:
    """Enqueue a run that waits for signals. `answer` sends them to it later."""
    by.asking.append(by.client.enqueue("asking", by.inputs()).id)
    if len(by.asking) > 5:
        _answer(by, by.asking.pop(0))


def enqueue_summing_run(by: Operator) -> None:
    """Enqueue a run that waits for children."""
    by.client.enqueue("summing", by.inputs(by.choose.choice([1, 4, 8])))


def limit_group(by: Operator) -> None:
    """Change the limit of a group, and enqueue runs of the group."""
    group = by.choose.choice(["first", "second"])
    by.client.set_limit("plain", at_once=by.choose.choice([1, 2, 5]), group=group)
    by.client.enqueue_many([("plain", by.inputs()) for _ in range(3)], group=group)


def fill_group(by: Operator) -> None:
    """Enqueue enough runs of a group that some wait in its line for seconds. Coordinators sweep only while runs wait."""
    by.client.set_limit("plain", at_once=1, group="third")
    by.client.enqueue_many([("plain", by.inputs(turns=8)) for _ in range(12)], group="third")


def call_outside(by: Operator) -> None:
    """Set the rate of the external calls, and enqueue runs that make such calls."""
    by.client.set_rate(RATE, "60/s", burst=10, at_once=3)
    by.client.enqueue_many([("calling", by.inputs()) for _ in range(3)])


def answer(by: Operator) -> None:
    """Send signals to a run that waits, or to a new one."""
    if not by.asking:
        enqueue_asking_run(by)
    _answer(by, by.choose.choice(by.asking))


def _answer(by: Operator, id: str) -> None:
    handle = by.client.handle(id)
    if by.choose.random() < 0.5:
        handle.send("hint")
    answer_all(lambda topic, payload, key: handle.send(topic, payload, key=key), by.choose.choice([1, 4]))


def enqueue_run_that_cannot_start(by: Operator) -> None:
    """Enqueue a run that cannot start, and a normal one of the same kind.

    The bad run is rejected repeatedly until it is dead or the operator cancels it. The normal run shows that the kind
    works.
    """
    by.client.enqueue("fitting", by.inputs())
    by.unfit.append(by.client.enqueue("fitting", {**by.inputs(), "unknown": 1}).id)
    if len(by.unfit) > 3:
        by.client.handle(by.unfit.pop(0)).cancel(grace=5)


# ---- pauses, schedules, fleets -----------------------------------------------------------------------------------------


def pause(by: Operator) -> None:
    kind = by.choose.choice(PAUSED)
    try:
        by.client.pause(kind=kind)
        by.a_while()
    finally:
        by.unpause(kind)


def schedule(by: Operator) -> None:
    _scheduled(by)


def _scheduled(by: Operator) -> str:
    name = by.choose.choice(list(SCHEDULES))
    overlap = by.choose.choice(["skip", "allow", "cancel"])
    by.client.schedule(name, SCHEDULES[name], "plain", {"topic": f"small-{name}", "turns": 3}, overlap=overlap)
    return name


def pause_schedule(by: Operator) -> None:
    name = _scheduled(by)
    by.client.pause_schedule(name)
    try:
        by.a_while()
    finally:
        by.client.unpause_schedule(name)


def unschedule(by: Operator) -> None:
    by.client.unschedule(_scheduled(by))


def schedule_elsewhere(by: Operator) -> None:
    """Set a schedule with a time zone that the coordinators do not know.

    After two seconds they report this, and look again later. The schedule has a new name each time, because setting the
    same one again would restart the two seconds.
    """
    by.elsewhere.append(f"elsewhere-{os.getpid()}-{next(by.numbers)}")
    if len(by.elsewhere) > 20:  # This many actions take more than two seconds.
        by.client.unschedule(by.elsewhere.pop(0))
    new = build_schedule(by.elsewhere[-1], "* * * * *", "plain", {"topic": "small-elsewhere", "turns": 3}, {})
    new = new._replace(rules=encode(["* * * * *", 0.0, "Atlantis/Poseidonis", 0.0, "skip", "latest"], "rules"))
    by.do(schedule_plans.replace(by.keys, "", new, os.urandom(8).hex()))


def roll(by: Operator) -> None:
    by.do(fleet_plans.request_roll(by.keys, "default", os.urandom(8).hex(), at_once=1, by="operator"))


def drain(by: Operator) -> None:
    if workers := by.client.workers():
        by.do(fleet_plans.drain(by.keys, by.choose.choice(workers).id))


# ---- the doctor --------------------------------------------------------------------------------------------------------


def doctor(by: Operator) -> None:
    """Let a doctor look at the namespace, then damage something, and let a doctor repair it."""
    _report_unexpected(by, by.do(examine(by.do(enter(by.settings)))))
    _damage(by)
    _report_unexpected(by, by.do(examine(by.do(enter(by.settings)), repair=True)))


def _damage(by: Operator) -> None:
    """Cause one damage of each sort: a run in no list, an entry and a key without a run, a key of a wrong type."""
    run = by.client.enqueue("fitting", by.inputs(), delay=1.5).id
    ghost = id_from(1, by.choose.getrandbits(40), 0)
    line = f"ready:nobody-{ghost}:none@0"
    with (by.directory / "damage").open("a") as lines:
        lines.write(f"{run}\n{ghost}\n")
    with redis.Redis.from_url(by.settings.url, socket_timeout=5.0) as raw:
        raw.zrem(by.keys.delayed(), run)
        raw.zadd(by.keys.ended("failed"), {ghost: 2**42})
        raw.hset(by.keys.ckpt(ghost), "head", "nothing")
        raw.set(f"{by.keys.at}:{line}", "no line")


def unexpected(directory: Path, findings: Sequence[Finding]) -> list[str]:
    """Return the findings that were not caused on purpose."""
    path = directory / "damage"
    known = path.read_text().split() if path.exists() else []
    return [one.sentence for one in findings if not any(name in f"{one.what} {one.name}" for name in known)]


def _report_unexpected(by: Operator, report: DoctorReport) -> None:
    if sentences := unexpected(by.directory, report.findings):
        with (by.directory / "findings").open("a") as lines:
            lines.writelines(f"{sentence}\n" for sentence in sentences)


ACTIONS: dict[str, Action] = {
    action.__name__: action
    for action in (
        enter_namespace, look, read_output, cancel, cancel_tree, revive, discard, enqueue_overdue_run,
        enqueue_run_that_cannot_start, pause, enqueue_asking_run, answer, enqueue_summing_run, limit_group, fill_group,
        call_outside,
        schedule, pause_schedule, unschedule, schedule_elsewhere, roll, drain, doctor,
    )
}  # fmt: skip
# The others happen only on request.
OFTEN = [action for name, action in ACTIONS.items() if name not in ("roll", "drain", "fill_group")]


def main() -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    Operator(int(sys.argv[1]), Path(os.environ[DIRECTORY]), stopped).work()


if __name__ == "__main__":
    main()
