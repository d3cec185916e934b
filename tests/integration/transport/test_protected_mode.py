"""A real server in protected mode refuses clients of other hosts. Every program then names that as the cause."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator import AsyncClient, Client
from coordinator.errors import NotConfigured
from tests.faults.lab.hosts import Hosts, missing_requirement
from tests.servers import Kind, Server

CAUSE = "refuses connections from other machines, because it runs in protected mode: set a password"


class ProtectedServer(Server):
    """A server without a password, in protected mode, on a host of its own."""

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.host.aside, self.port), timeout=1) as line:
            return line.recv(16).startswith(b"-DENIED")
        return False


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if sentence := missing_requirement():
        pytest.skip(sentence)  # It depends on the machine, and cannot be installed.
    made = Hosts(1)
    yield made
    made.close()


@pytest.fixture(params=["redis", "valkey"])
def server(hosts: Hosts, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    kind: Kind = request.param
    made = ProtectedServer(kind, tmp_path, {"protected-mode": "yes"}, hosts.all[0])
    yield made
    made.close()


def urls(server: Server) -> list[str]:
    """Return URLs for which a client opens its connection with different commands."""
    place = f"{server.host.address}:{server.port}"
    return [f"redis://{place}/0", f"redis://{place}/3", f"redis://user:secret@{place}/0"]


async def test_clients_name_protected_mode_as_the_cause(server: Server, namespace: str) -> None:
    """Try it often: the server's last words and the reset of the connection arrive in any order."""
    for url in urls(server):
        for _ in range(10):
            with Client(url, namespace, timeout=1.0) as client, pytest.raises(NotConfigured, match=CAUSE):
                client.enqueue("k")
            async with AsyncClient(url, namespace, timeout=1.0) as other:
                with pytest.raises(NotConfigured, match=CAUSE):
                    await other.enqueue("k")


@pytest.mark.matrix("commands, case by case")
def test_commands_name_protected_mode_as_the_cause(server: Server, namespace: str) -> None:
    environment = os.environ | {"RUNS_URL": server.url, "RUNS_NAMESPACE": namespace}
    for program, *words in (
        ["coordinator", "check"],
        ["coordinator", "start"],
        ["workers", "start", "tests.e2e.app:runs"],
    ):
        command = [str(Path(sys.executable).parent / program), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 3, done
        assert CAUSE in done.stderr, done
