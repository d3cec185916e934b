"""The processes of a running fleet restart an embedded server that was killed, and no run is lost."""

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
    """Return the process id of the server that was started last, or 0 while it is not written yet."""
    return int((directory / "valkey.pid").read_text() or 0)


def kill_server(directory: Path) -> int:
    """Kill the server with SIGKILL after everything that it has acknowledged is in its file.

    Return its process id. With everysec, a slow fsync delays that moment.
    """
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
def test_fleet_restarts_a_killed_embedded_server(make_stage: MakeStage, tmp_path: Path) -> None:
    """Use no client while the server is gone, so that only the fleet can have restarted it."""
    directory = tmp_path / "data"
    stage = make_stage(f"embedded://{directory}")
    coordinator, fleet = stage.coordinator(), stage.fleet(2, lease=5)
    with Client(stage.url, stage.namespace) as client:
        ids = [handle.id for handle in client.enqueue_many([("steps", {"total": 40, "seconds": 0.1})] * 10)]
        last = client.enqueue("add", {"left": 1, "right": 2}, delay=2.0).id
        wait_for_start(stage, 10)
    # A process that is still starting would start the server, and not say that it restarted one.
    wait_until(lambda: stage.logs().count("INFO    ready:") == 2, "both worker processes are ready", timeout=60)
    for _ in range(2):
        dead = kill_server(directory)
        wait_until(lambda: server_pid(directory) not in (0, dead), "another server", timeout=60)  # noqa: B023  # The function is called immediately.
    with Client(stage.url, stage.namespace) as client:
        handles, delayed = [client.handle(id) for id in ids], client.handle(last)
        assert Counter(handle.wait(120) for handle in handles) == {Status.COMPLETED: 10}
        assert {handle.result(0) for handle in handles} == {40}, "no message is lost or repeated"
        assert delayed.result(60) == 3
        assert sum(handle.view().counters.strikes for handle in handles) == 0
        kill_server(directory)
        assert client.enqueue("add", {"left": 2, "right": 2}).result(60) == 4, "a client comes back, too"
    assert stop(fleet) == stop(coordinator) == 0
    assert "embedded server restarted:" in stage.logs()
    detach()
    assert not valkey_process.is_alive(directory), "the last one out has stopped it"
