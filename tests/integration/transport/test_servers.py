"""The test servers behave as the fault tests expect."""

from __future__ import annotations

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.conftest import StartServer
from tests.servers import FORGETFUL, Kind, Server

pytestmark = pytest.mark.parametrize("kind", ["valkey", "redis"])


def test_acknowledged_writes_survive_kill_and_restart(start_server: StartServer, kind: Kind) -> None:
    server: Server = start_server(kind)
    port = server.port
    server.admin.set("key", "kept")
    server.kill()
    with pytest.raises(redis.ConnectionError):
        server.admin.ping()
    server.restart()
    assert (server.port, server.admin.get("key")) == (port, b"kept")


def test_server_without_persistence_loses_its_data(start_server: StartServer, kind: Kind) -> None:
    server: Server = start_server(kind, FORGETFUL)
    server.admin.set("key", "lost")
    server.restart()
    assert server.admin.get("key") is None


def test_paused_server_answers_when_it_resumes(start_server: StartServer, kind: Kind) -> None:
    server: Server = start_server(kind)
    server.pause()
    impatient = redis.Redis(port=server.port, socket_timeout=0.2, retry=Retry(NoBackoff(), 0), protocol=2)
    with pytest.raises(redis.TimeoutError):
        impatient.ping()
    server.resume()
    assert server.admin.ping()
    impatient.close()


def test_settings_reach_the_server(start_server: StartServer, kind: Kind) -> None:
    server: Server = start_server(kind, {"maxmemory": "64mb", "save": "3600 1"})
    assert server.admin.config_get("maxmemory") == {"maxmemory": "67108864"}
    assert server.admin.config_get("save") == {"save": "3600 1"}
