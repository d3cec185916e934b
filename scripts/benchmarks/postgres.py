"""Start a PostgreSQL server of its own, from the packages of the machine, for checkpointers that need one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGES = "/usr/lib/postgresql"  # where Debian keeps initdb and pg_ctl, which are not on the PATH


def programs() -> Path | None:
    """Return the folder of initdb and pg_ctl, or None if PostgreSQL is not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path(PACKAGES).glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@contextmanager
def started(directory: Path) -> Iterator[str]:
    """Yield the URL of a new server in a folder. The server refuses to run as root, so root starts it as the user postgres.

    A commit does not wait for the disk, as in the server of the other checkpointers, whose append-only file is synced each second.
    """
    folder = programs()
    if folder is None:
        raise FileNotFoundError("PostgreSQL is not installed: initdb was not found")
    user = "postgres" if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(directory, user)
    data, port = directory / "data", _free_port()

    def call(*command: str | Path) -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, user=user, cwd=directory)

    call(folder / "initdb", "-D", data, "-U", "bench", "-A", "trust", "--no-sync")
    options = (
        f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={directory} -c synchronous_commit=off"
    )
    call(folder / "pg_ctl", "-D", data, "-l", directory / "log", "-o", options, "-w", "start")
    try:
        yield f"postgresql://bench@127.0.0.1:{port}/postgres"
    finally:
        call(folder / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
