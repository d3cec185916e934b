"""An embedded server that is killed under a running fleet is started again by those who use it, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
import redis

from coordinator import Client, Status
from coordinator.store.transport.connections import valkey_process
from coordinator.store.transport.connections.embedded_connection import detach
from tests.e2e.conftest import MakeStage
from tests.e2e.processes import stop, wait_for_start
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("more cases with real processes")


def server_pid(directory: Path) -> int:
    """Of the server that was started last; 0 while it is about to say."""
    return int((directory / "valkey.pid").read_text() or 0)


def kill_server(directory: Path) -> int:
    """kill -9 of the server, when what it has acknowledged until now is in its file: with everysec that waits while an fsync takes
    long. Which process it was."""
    wait_until(lambda: _has_written_all(directory), "the server answers, and has written all", timeout=60)
    pid = server_pid(directory)
    os.kill(pid, signal.SIGKILL)
    return pid


def _has_written_all(directory: Path) -> bool:
    socket = (directory / "server.lock").read_text()
    with contextlib.suppress(redis.ConnectionError), redis.Redis(unix_socket_path=socket) as admin:
        return bool(admin.info("persistence")["aof_buffer_length"] == 0)
    return False


@pytest.mark.timeout(240)
def test_a_killed_embedded_server_is_started_again_by_its_fleet(make_stage: MakeStage, tmp_path: Path) -> None:
    """The test has no client while it is away: it is the fleet that has started it again."""
    directory = tmp_path / "data"
    stage = make_stage(f"embedded://{directory}")
    coordinator, fleet = stage.coordinator(), stage.fleet(2, lease=5)
    with Client(stage.url, stage.namespace) as client:
        ids = [handle.id for handle in client.enqueue_many([("steps", {"total": 40, "seconds": 0.1})] * 10)]
        last = client.enqueue("add", {"left": 1, "right": 2}, delay=2.0).id
        wait_for_start(stage, 10)
    for _ in range(2):
        dead = kill_server(directory)
        wait_until(lambda: server_pid(directory) not in (0, dead), "another server", timeout=60)  # noqa: B023  # called at once
    with Client(stage.url, stage.namespace) as client:
        handles, delayed = [client.handle(id) for id in ids], client.handle(last)
        assert Counter(handle.wait(120) for handle in handles) == {Status.COMPLETED: 10}
        assert {handle.result(0) for handle in handles} == {40}, "no message is lost, and none is there twice"
        assert delayed.result(60) == 3
        assert sum(handle.view().counters.strikes for handle in handles) == 0
        kill_server(directory)
        assert client.enqueue("add", {"left": 2, "right": 2}).result(60) == 4, "a client comes back, too"
    assert stop(fleet) == stop(coordinator) == 0
    assert "embedded server restarted:" in stage.logs()
    detach()
    assert not valkey_process.is_alive(directory), "the last one out has stopped it"
