"""An operator of the lab, as a process of its own. It also cancels, pauses, rolls, damages and repairs.

    python -m tests.faults.programs.operator SEED

An operator does all that a user does too, one action after the other. It chooses the next action, unless a campaign needs a
certain script to be sent: the campaign then writes the name of an action to the file `wanted` in the lab's directory. Before the
operator damages something for a doctor to repair, it writes the damage to the file `damage`. Any other finding of a doctor in the
busy namespace goes to the file `findings`, for the judge.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import redis

from coordinator import CoordinatorError, Status
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
from tests.faults.programs import user
from tests.faults.programs.user import User

T = TypeVar("T")
PAUSED = ("plain", "stumbling")  # kinds that are paused now and then
OVER = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
Action = Callable[["Operator"], None]


class Operator(User):
    """A user with a connection for plans that no client has."""

    def __init__(self, seed: int, directory: Path, stopped: threading.Event) -> None:
        super().__init__(seed, stopped)
        self.directory = directory
        self.settings = settings(timeout=5.0)
        self.wire = Wire(self.settings.address, 5.0)
        self.keys = Keys(self.settings.namespace, 0)
        self.unfit: list[str] = []
        self.elsewhere: list[str] = []

    def do(self, plan: Generator[Any, Any, T]) -> T:
        return drive(self.wire, plan)

    def next_action(self) -> Callable[[], None]:
        action = ACTIONS.get(self._asked_for()) or self.choose.choice(OFTEN)
        return lambda: action(self)

    def work(self) -> None:
        self._repair()  # An earlier operator may have left something paused or damaged.
        self.unpause()
        super().work()

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
        *user.ACTIONS, user.fill_group, enter_namespace, cancel, cancel_tree, revive, discard, enqueue_overdue_run,
        enqueue_run_that_cannot_start, pause, schedule_elsewhere, roll, drain, doctor,
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
