"""Only a stop that is requested twice from the same source ends the grace of a run.

One request each from two sources is one drain.
"""

from __future__ import annotations

import signal
import socket

import pytest

from coordinator import Client, Status
from tests.e2e.processes import Stage, children
from tests.e2e.test_fleet import first_child, gone, start
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("more cases with real processes")


def wait_for_ticks(stage: Stage, more: int = 50) -> None:
    """Wait until the event loop has run often enough to handle every request."""
    before = len(stage.events("tick"))
    wait_until(lambda: len(stage.events("tick")) >= before + more, "the handler continues", timeout=30)


def request_drain(how: str, stage: Stage, fleet: int) -> None:
    if how == "drain":
        stage.run("workers", "drain", f"{socket.gethostname()}:{children(fleet)[0]}")
    else:
        stage.started[0].send_signal(signal.SIGTERM)
    wait_until(lambda: "draining 1 run " in stage.logs(), "the drain has begun")


@pytest.mark.parametrize(
    ("first", "then"), [("drain", signal.SIGTERM), ("drain", signal.SIGKILL), ("stop", signal.SIGKILL)]
)
def test_one_stop_request_each_from_two_sources_keeps_the_grace(
    stage: Stage, client: Client, first: str, then: signal.Signals
) -> None:
    """Check that the handler keeps its grace when its draining worker is also stopped by its supervisor, or loses its
    supervisor.
    """
    fleet = start(stage)
    handle = client.enqueue("ticks", {})
    wait_for_ticks(stage, 1)
    worker = first_child(fleet)
    request_drain(first, stage, fleet.pid)
    fleet.send_signal(then)
    wait_for_ticks(stage)
    stage.open_gate("enough")
    assert handle.result(30) == "in peace"
    assert (handle.view().status, handle.view().attempt) == (Status.COMPLETED, 1)
    wait_until(lambda: gone(worker), "the worker has ended")
    assert fleet.wait(30) == (0 if then == signal.SIGTERM else -signal.SIGKILL)
