"""The grace of a run is taken by who asks for it twice, and by nobody else: two who ask once each are one drain."""

from __future__ import annotations

import signal
import socket

import pytest

from coordinator import Client, Status
from tests.e2e.processes import Stage, children
from tests.e2e.test_fleet import first_child, gone, start
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("more cases with real processes")


def goes_on(stage: Stage, more: int = 50) -> None:
    """Its event loop has come round often enough for whatever it was told."""
    before = len(stage.events("tick"))
    wait_until(lambda: len(stage.events("tick")) >= before + more, "the handler goes on", timeout=30)


def asked_by(how: str, stage: Stage, fleet: int) -> None:
    if how == "drain":
        stage.run("workers", "drain", f"{socket.gethostname()}:{children(fleet)[0]}")
    else:
        stage.started[0].send_signal(signal.SIGTERM)
    wait_until(lambda: "draining 1 run " in stage.logs(), "the drain has begun")


@pytest.mark.parametrize(
    ("first", "then"), [("drain", signal.SIGTERM), ("drain", signal.SIGKILL), ("stop", signal.SIGKILL)]
)
def test_two_who_ask_once_each_leave_the_grace(stage: Stage, client: Client, first: str, then: signal.Signals) -> None:
    """A worker that drains is told to by its supervisor too, or its supervisor dies: no handler is cut short for that."""
    fleet = start(stage)
    handle = client.enqueue("ticks", {})
    goes_on(stage, 1)
    worker = first_child(fleet)
    asked_by(first, stage, fleet.pid)
    fleet.send_signal(then)
    goes_on(stage)
    stage.open_gate("enough")
    assert handle.result(30) == "in peace"
    assert (handle.view().status, handle.view().attempt) == (Status.COMPLETED, 1)
    wait_until(lambda: gone(worker), "the worker has ended")
    assert fleet.wait(30) == (0 if then == signal.SIGTERM else -signal.SIGKILL)
