"""If a server refuses writes for a while, clients retry, and raise Unreachable after their timeout."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import redis

from coordinator import Client, Status, Unreachable
from tests.conftest import StartServer
from tests.servers import Kind, Server
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("the fault lab")


@pytest.fixture(params=["valkey", "redis"])
def server(request: pytest.FixtureRequest, start_server: StartServer, tmp_path: Path) -> Server:
    """A server that cannot write its snapshot and so refuses writes with MISCONF, as with a full disk."""
    kind: Kind = request.param
    made = start_server(kind, {"save": "3600 1", "enable-protected-configs": "yes"})
    with Client(made.url) as client:
        client.enqueue("first")
    place = tmp_path / "gone"
    place.mkdir()
    made.admin.config_set("dir", str(place))
    shutil.rmtree(place)
    _snapshot_until(made, "err")
    return made


def _snapshot_until(server: Server, status: str) -> None:
    def tried() -> bool:
        try:
            server.admin.bgsave()
        except redis.ResponseError:  # Another snapshot is in progress.
            return False
        return str(server.admin.info("persistence")["rdb_last_bgsave_status"]) == status

    wait_until(tried, f"a snapshot ended with {status}")


def test_a_server_that_can_not_write_its_file_is_unreachable_and_not_a_bad_call(server: Server) -> None:
    with Client(server.url, timeout=1) as client, pytest.raises(Unreachable, match="MISCONF"):
        client.enqueue("second")


def test_a_request_to_a_full_server_succeeds_when_there_is_space(server: Server, tmp_path: Path) -> None:
    with Client(server.url, timeout=30) as client:
        done: list[Status] = []
        thread = threading.Thread(target=lambda: done.append(client.enqueue("second").view().status))
        thread.start()
        refused = lambda: server.admin.info("errorstats").get("errorstat_MISCONF")  # noqa: E731
        wait_until(refused, "it has refused")
        server.admin.config_set("dir", str(tmp_path))
        _snapshot_until(server, "ok")
        thread.join(30)
    assert done == [Status.QUEUED]
