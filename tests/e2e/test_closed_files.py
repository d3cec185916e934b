"""Commands work without standard input, output or error, in any combination: a service manager may close them."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator import Client
from coordinator.store.transport.connections import valkey_process
from tests.servers import Server, free_port
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
COMBINATIONS = [some for count in (1, 2, 3) for some in itertools.combinations((0, 1, 2), count)]
CLOSED = pytest.mark.parametrize("closed", COMBINATIONS, ids=lambda closed: "".join(map(str, closed)))


def without(closed: tuple[int, ...], *words: str) -> list[str]:
    """Return a command that starts a program with some of its standard files closed."""
    redirections = " ".join(f"{number}{'<' if number == 0 else '>'}&-" for number in closed)
    return ["/bin/sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, *words]


@pytest.mark.quick_cases(1)
@CLOSED
def test_a_command_on_an_embedded_server_works(closed: tuple[int, ...], tmp_path: Path) -> None:
    command = without(closed, "-m", "coordinator.cli", "enqueue", "greet", "--url", f"embedded://{tmp_path}")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    with Client(f"embedded://{tmp_path}") as client:
        assert len(client.list()) == 1


@pytest.mark.quick_cases(1)
@CLOSED
def test_a_program_that_uses_an_embedded_server_works(closed: tuple[int, ...], tmp_path: Path) -> None:
    program = f"""
from coordinator import Client
with Client("embedded://{tmp_path}") as client:
    client.enqueue("greet")
"""
    subprocess.run(without(closed, "-c", program), cwd=ROOT, timeout=100, check=True)
    assert not valkey_process.is_alive(tmp_path)
    with Client(f"embedded://{tmp_path}") as client:
        assert len(client.list()) == 1


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.parametrize("closed", [(0, 1, 2), (0,), (1, 2)], ids=["012", "0", "12"])
def test_workers_run_without_standard_files(closed: tuple[int, ...], tmp_path: Path) -> None:
    url = f"embedded://{tmp_path / 'data'}"
    words = ["-m", "workers.cli", "start", "tests.e2e.app:runs", "--coordinator", "--url", url]
    environment = os.environ | {"RUNS_NAMESPACE": "runs"}
    fleet = subprocess.Popen(
        without(closed, *words), cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with Client(url, "runs") as client:
            assert client.enqueue("add", {"left": 2, "right": 3}).result(60) == 5
    finally:
        fleet.send_signal(signal.SIGTERM)
        assert fleet.wait(60) == 0
    wait_until(lambda: not valkey_process.is_alive(tmp_path / "data"), "the server to stop", timeout=60)


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.parametrize("closed", [(0, 1, 2), (0,), (1, 2)], ids=["012", "0", "12"])
def test_a_coordinator_runs_without_standard_files(
    closed: tuple[int, ...], valkey_server: Server, namespace: str
) -> None:
    """The run is delayed, so that only a coordinator can queue it. Both programs have a listening socket too."""
    environment = os.environ | {"RUNS_NAMESPACE": namespace, "RUNS_URL": valkey_server.url}
    started = [
        subprocess.Popen(
            without(closed, "-m", f"{program}.cli", "start", *words, "--health", f"127.0.0.1:{free_port()}"),
            cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for program, words in (("coordinator", []), ("workers", ["tests.e2e.app:runs"]))
    ]  # fmt: skip
    try:
        with Client(valkey_server.url, namespace) as client:
            assert client.enqueue("add", {"left": 2, "right": 3}, delay=0.5).result(60) == 5
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(60) for process in started] == [0, 0]


@pytest.mark.quick_cases(2)
@CLOSED
def test_a_lock_file_never_gets_the_number_of_a_standard_file(closed: tuple[int, ...], tmp_path: Path) -> None:
    """A child process that inherits it would replace it with its own standard file, and lose the lock."""
    program = f"""
from pathlib import Path
from coordinator.store.transport.connections.lock_files import open_lock
assert [open_lock(Path("{tmp_path}") / name) > 2 for name in ("a", "b", "c")] == [True] * 3
"""
    subprocess.run(without(closed, "-c", program), cwd=ROOT, timeout=100, check=True)
