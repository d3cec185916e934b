"""Stop a worker until other workers own its runs, then let it continue: the server refuses whatever it writes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence

from tests.faults.campaigns.runner import Campaign, run
from tests.faults.lab.lab import PATIENCE, Lab, Plan
from tests.waiting import wait_until


def break_one(lab: Lab) -> str:
    lab.work_on(lab.choose.randint(1, 10))
    pid = lab.choose.choice(wait_until(lambda: _holders(lab), "a worker holds runs", timeout=PATIENCE))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: not lab.owned_by(pid), "its runs are taken from it", timeout=PATIENCE)
            if lab.choose.random() < 0.5:  # Let the new owners make progress.
                lab.work_on(lab.choose.randint(1, 20))
        finally:
            os.kill(pid, signal.SIGCONT)
    return "zombie"


def _holders(lab: Lab) -> list[int]:
    lab.tend()
    return [pid for pid in lab.workers(at_work=True) if lab.owned_by(pid)]


CAMPAIGN = Campaign("zombie", break_one, Plan(users=1))


def main(arguments: Sequence[str]) -> int:
    return run(CAMPAIGN, arguments, count=30)
