"""A process writes its requests and replies, and an order to crash is executed by one process, at its point."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator import Client
from coordinator.store.script import read
from coordinator.store.transport import observer
from coordinator.store.transport.packets import Packet
from tests.e2e.processes import ROOT
from tests.faults.judge import history
from tests.faults.lab.lab import Lab, Plan
from tests.faults.lab.observer import POINTS, Recorder
from tests.servers import Server


def test_a_process_outside_a_lab_writes_no_history(valkey_server: Server, namespace: str, tmp_path: Path) -> None:
    with Client(valkey_server.url, namespace) as client:
        client.enqueue("agent", {"topic": "quiet", "turns": 1})
        observer.install_observer(Recorder(tmp_path))
        try:
            client.enqueue("agent", {"topic": "seen", "turns": 1})
            client.enqueue_many([("agent", {"topic": str(n), "turns": 1}) for n in range(2)])
        finally:
            observer.install_observer(None)
        client.enqueue("agent", {"topic": "quiet", "turns": 1})
    seen = history.read(tmp_path).operations
    assert [(op.script, op.word) for op in seen] == [("enqueue", "created")] * 3
    assert all(op.answer[1] == op.id and op.invoked < op.ended for op in seen)


def test_a_call_without_a_reply_is_unknown(tmp_path: Path) -> None:
    with Recorder(tmp_path)([_ping()]) as watched:
        watched.sent()
    (seen,) = history.read(tmp_path).operations
    assert (seen.outcome, seen.ended) == ("unknown", history.NEVER)


@pytest.mark.parametrize(("replicas", "outcome"), [(0, "unknown"), (OSError("reset"), "unknown"), (1, "ok")])
def test_a_write_that_no_replica_confirmed_is_unknown(tmp_path: Path, replicas: object, outcome: str) -> None:
    with Recorder(tmp_path)([_ping()]) as watched:
        watched.sent()
        watched.answered([b"PONG", [b"ok"], replicas])
    (seen,) = history.read(tmp_path).operations
    assert seen.outcome == outcome


def _ping() -> Packet:
    return Packet(read("{x:0}", "PING"), [0])


@pytest.mark.parametrize("point", POINTS)
def test_a_process_dies_at_the_point_that_an_order_names(valkey_server: Server, tmp_path: Path, point: str) -> None:
    lab = Lab(valkey_server, tmp_path, Plan(), seed=1)
    (tmp_path / "crash").write_text(f"enqueue {point}")
    program = "from coordinator import Client; Client().enqueue('agent', {'topic': 't', 'turns': 1}); print('survived')"
    ended = subprocess.run(
        [sys.executable, "-c", program], env=lab.environment(), cwd=ROOT, stdout=subprocess.PIPE, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, b"")
    enqueued = list(history.read(tmp_path).of("enqueue"))[
        -1
    ]  # There may be an earlier call by the hash of an unknown script.
    assert enqueued.outcome == ("ok" if point == "answered" else "unknown")
    there = valkey_server.admin.exists(lab.keys.run(enqueued.id))
    assert (
        there == (point != "before") or point == "sent"
    )  # The call was sent without waiting for the reply, so both are right.
    assert not (tmp_path / "crash").exists()
