"""Checkpoints without workers, in real processes and with faults.

The first tests run the program of docs/guides/checkpoints-alone.md.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.config import address
from coordinator.errors import NotConfigured, ServerFull, Unreachable
from coordinator.store.scripts import SCRIPTS
from coordinator.store.transport.wire import Wire, drive
from tests.conftest import StartServer
from tests.lua import record_calls
from tests.lua.store import Store
from tests.proxy import Proxy, naming
from tests.servers import Server
from tests.waiting import wait_until
from workers.durable import Checkpoint, Fenced, Meta, RedisStore, recover

ROOT = Path(__file__).parents[3]
BLOCKS: list[str] = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "guides" / "checkpoints-alone.md").read_text(), re.S
)
END = "def ask_model(messages):\n"


def start(tmp_path: Path, server: Server, code: str, *questions: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "agent.py"
    program.write_text(code.replace('namespace="answers"', f'namespace="{tmp_path.name[-40:]}"'))
    environment = os.environ | {"RUNS_URL": server.url, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(program), *questions], env=environment, capture_output=True, text=True, timeout=60
    )


def ending_at(turn: int, how: str) -> str:
    """Return the program, changed so that it ends inside a turn of its model."""
    end = (
        f"    if len(messages) == {turn + 1}:\n        import os, signal\n        os.kill(os.getpid(), signal.{how})\n"
    )
    assert END in BLOCKS[0]
    return BLOCKS[0].replace(END, END + end).replace("CheckpointerFactory(store)", "CheckpointerFactory(store, 0)")


def test_program_of_the_guide_prints_its_answer(tmp_path: Path, valkey_server: Server) -> None:
    done = start(tmp_path, valkey_server, BLOCKS[0], "why?", "how?")
    assert (done.stdout, done.stderr) == ("q-0: thought 5\nq-1: thought 5\n", "")
    assert start(tmp_path, valkey_server, BLOCKS[0]).stdout == ""


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.parametrize("turn", [1, 4])
def test_stopped_program_continues_immediately(tmp_path: Path, valkey_server: Server, turn: int) -> None:
    assert start(tmp_path, valkey_server, ending_at(turn, "SIGTERM"), "why?").returncode == 1
    again = start(tmp_path, valkey_server, BLOCKS[0])
    assert (again.stdout, again.stderr) == (f"q-0 continues at turn {turn}: thought 5\n", "")
    assert start(tmp_path, valkey_server, BLOCKS[0]).stdout == ""


def test_killed_program_continues_after_its_lease(tmp_path: Path, valkey_server: Server) -> None:
    code = ending_at(3, "SIGKILL").replace('namespace="answers"', 'namespace="answers", lease=1')
    assert start(tmp_path, valkey_server, code, "why?").returncode == -signal.SIGKILL
    with RedisStore(valkey_server.url, tmp_path.name[-40:]) as store:
        left = wait_until(lambda: list(recover(store)), "the end of the lease")
    assert [run.checkpoint.iteration for run in left] == [3]
    assert start(tmp_path, valkey_server, BLOCKS[0]).stdout == "q-0 continues at turn 3: thought 5\n"


# ---- lost replies, forks, outages --------------------------------------------------------------------------------------


@pytest.fixture
def proxy(valkey_server: Server) -> Iterator[Proxy]:
    proxy = Proxy(valkey_server.port)
    yield proxy
    proxy.close()


@pytest.mark.parametrize("name", record_calls.PREPARE)
def test_call_with_a_lost_reply_is_repeated_with_the_same_answer(
    valkey_server: Server, proxy: Proxy, namespace: str, name: str
) -> None:
    script = next(script for script in SCRIPTS if script.name == name)
    valkey_server.admin.script_load(script.text)
    plain, faulty = Store(valkey_server.url, f"{namespace}.0"), Store(valkey_server.url, f"{namespace}.1")
    wire = Wire(address(proxy.url), timeout=10)
    try:
        expected = plain.do(record_calls.PREPARE[name](plain))
        plan = record_calls.PREPARE[name](faulty)
        cut = proxy.cut_next_reply(naming(script.sha.encode()))
        assert drive(wire, plan) == expected
        assert cut.happened.is_set()
        assert contents(faulty) == contents(plain)
    finally:
        wire.close()
        plain.close()
        faulty.close()


def contents(store: Store) -> dict[str, Any]:
    """Return everything that is stored, without the namespace's name."""
    return {key.split("}:", 1)[1]: value for key, value in store.dump().items()}


def test_forked_child_counts_as_another_process(valkey_server: Server, namespace: str) -> None:
    with RedisStore(valkey_server.url, namespace) as store:
        store.save(Checkpoint(Meta("r1"), ["parent"]))
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                store.save(Checkpoint(Meta("r2"), ["child"]))
                store.save(Checkpoint(Meta("r1"), ["child"]))
                os.write(write_end, b"saved")
            except Fenced:
                os.write(write_end, b"fenced")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read_end, 100) == b"fenced"
        os.close(read_end)
        os.close(write_end)
        store.save(Checkpoint(Meta("r1"), ["parent", "more"]))
        found = store.load("r2")
        assert found is not None
        assert found.messages == ["child"]


def test_server_that_may_lose_checkpoints_is_rejected(start_server: StartServer, namespace: str) -> None:
    server = start_server(settings={"appendonly": "yes", "maxmemory": "50mb", "maxmemory-policy": "allkeys-lru"})
    with RedisStore(server.url, namespace) as store, pytest.raises(NotConfigured, match="noeviction"):
        store.save(Checkpoint(Meta("r1")))


def test_full_memory_refuses_a_save_and_accepts_an_ending(start_server: StartServer, namespace: str) -> None:
    server = start_server(settings={"appendonly": "yes", "maxmemory-policy": "noeviction"})
    with RedisStore(server.url, namespace) as store, RedisStore(server.url, namespace) as other:
        store.save(Checkpoint(Meta("r1"), ["a"]))
        store.save(Checkpoint(Meta("r2"), ["a"]))
        server.admin.config_set("maxmemory", "1")
        with pytest.raises(ServerFull):
            store.save(Checkpoint(Meta("r1"), ["a", "b"]))
        store.delete("r1")
        store.close()
        assert [one.meta.run_id for one in other.claim_interrupted()] == ["r2"]
        server.admin.config_set("maxmemory", "0")


@pytest.mark.matrix("waits through a timeout")
def test_close_without_a_server_reports_it_and_ends(start_server: StartServer, namespace: str, caplog: Any) -> None:
    server = start_server()
    store = RedisStore(server.url, namespace, timeout=2)
    store.save(Checkpoint(Meta("r1")))
    server.kill()
    with pytest.raises(Unreachable):
        store.load("r1")
    store.close()
    assert "lease of records not ended" in caplog.text
