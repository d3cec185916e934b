"""Hosts with network faults: a cut is silent in both directions, and nothing is left after the hosts are closed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.lab.hosts import NAME, Hosts, missing_requirement
from tests.servers import Host, Server

pytestmark = pytest.mark.matrix("the fault lab")

SHORT = 0.5


@pytest.fixture(autouse=True)
def _can_be_made() -> None:
    if sentence := missing_requirement():
        pytest.skip(sentence)  # It depends on the machine, and cannot be installed.


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    made = Hosts(2)
    yield made
    made.close()


@pytest.fixture
def server(hosts: Hosts, tmp_path: Path) -> Iterator[Server]:
    made = Server("valkey", tmp_path, {"protected-mode": "no"}, hosts.all[0])
    yield made
    made.close()


def left(of: int) -> list[str]:
    """Return what a process has created and not removed."""
    links = [path.name for path in Path("/sys/class/net").iterdir()]
    spaces = [path.name for path in Path("/run/netns").iterdir()]
    return [name for name in (*links, *spaces) if name.startswith(f"{NAME}{of}-")]


def reaches(host: Host, server: Server) -> bool:
    """Return whether a program on a host gets a connection. Anything but silence is an error."""
    program = f"import socket; socket.create_connection(({server.host.address!r}, {server.port}), {SHORT})"
    done = subprocess.run([*host.enter, sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 or "TimeoutError: timed out" in done.stderr, done.stderr
    return done.returncode == 0


def test_a_host_cut_off_from_clients_is_silent_until_the_network_is_repaired(hosts: Hosts, server: Server) -> None:
    there, other = hosts.all
    with socket.create_connection((there.address, server.port), timeout=SHORT) as line:
        hosts.cut(there, outside=True)
        line.sendall(b"PING\r\n")
        with pytest.raises(TimeoutError):
            line.recv(16)
        with pytest.raises(TimeoutError):
            socket.create_connection((there.address, server.port), timeout=SHORT)
        assert reaches(other, server), "only clients are cut off"
        assert server.admin.ping(), "and not we, aside"
        hosts.heal()
        line.settimeout(30)
        assert line.recv(16) == b"+PONG\r\n", "the same connection: it was not broken, it was silent"


def test_a_host_cut_off_from_other_hosts_is_still_reached_by_clients(hosts: Hosts, server: Server) -> None:
    there, other = hosts.all
    assert reaches(other, server)
    hosts.cut(there, *hosts.all)
    assert not reaches(other, server)
    with socket.create_connection((there.address, server.port), timeout=SHORT) as line:
        line.sendall(b"PING\r\n")
        assert line.recv(16) == b"+PONG\r\n"
    hosts.heal()
    assert reaches(other, server)


def test_a_host_cut_off_in_one_direction_receives_but_cannot_answer(hosts: Hosts, server: Server) -> None:
    there = hosts.all[0]
    with socket.create_connection((there.address, server.port), timeout=SHORT) as line:
        hosts.cut(there, outside=True, way="out")
        line.sendall(b"SET heard yes\r\n")
        with pytest.raises(TimeoutError):
            line.recv(16)
        assert server.admin.get("heard") == b"yes"
        hosts.heal()
        line.settimeout(30)
        assert line.recv(16) == b"+OK\r\n"
        hosts.cut(there, outside=True, way="in")
        line.settimeout(SHORT)
        line.sendall(b"SET heard no\r\n")
        with pytest.raises(TimeoutError):
            line.recv(16)
        assert server.admin.get("heard") == b"yes"


def test_closed_hosts_leave_nothing_behind() -> None:
    one, two = Hosts(1), Hosts(2)
    assert {host.address for host in one.all}.isdisjoint(host.address for host in two.all)
    one.close()
    assert left(os.getpid()), "another lab's are not touched"
    two.close()
    assert left(os.getpid()) == []


def test_the_next_process_removes_the_hosts_of_a_killed_process() -> None:
    killed = "print(os.getpid(), flush=True); os.kill(os.getpid(), 9)"
    program = f"import os; from tests.faults.lab.hosts import Hosts; made = Hosts(2); {killed}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert left(int(done.stdout))
    Hosts(1).close()
    assert left(int(done.stdout)) == []
