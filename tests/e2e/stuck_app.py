"""A plain handler that ignores every request to stop, and handlers that are stopped with it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.e2e.app import journal
from tests.waiting import block_for
from workers import Registry, Run

runs = Registry()


@runs.handler
def hangs(run: Run) -> None:
    """Reach no cut and look at nothing."""
    journal(run, "hangs")
    time.sleep(600)  # The handler ignores every request to stop.


@runs.handler
def hangs_as_a_suspect(run: Run) -> None:
    """End the process twice, so that the run is a suspect. Then reach no cut and look at nothing."""
    journal(run, "hangs")
    if run.attempt < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)  # The handler ignores every request to stop.


@runs.handler
def neighbour(run: Run) -> int:
    """Wait for the gate "all", with many cuts."""
    journal(run, "start")
    while not Path(f"{os.environ['JOURNAL']}.all").exists():
        block_for(0.05)
        run.checkpoint()
    return os.getpid()


@runs.handler(grace=120)
def patient(run: Run) -> None:
    """Wait for the gate "all" without a cut, so that a drain has to wait too."""
    journal(run, "waits")
    while not Path(f"{os.environ['JOURNAL']}.all").exists():
        block_for(0.05)
