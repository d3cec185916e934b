"""A server whose disk and clock the lab controls, through a preloaded library (shim.c) and shared memory.

power_cut()   kill -9, and remove every byte that no fsync confirmed from the append-only file
ahead         seconds by which the server's clock is ahead; an assignment makes it jump
full          True while the server's files cannot grow
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

from tests.servers import Kind, Server
from tests.waiting import wait_until

SOURCE = Path(__file__).parent / "shim.c"
_FILES = 250
_SIZE = 8 * (3 + 2 * _FILES)


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def built(place: Path) -> Path:
    """Compile the library and return its path."""
    library = place / "shim.so"
    program = compiler()
    assert program, "the shim needs a C compiler (Debian: apt-get install gcc)"
    subprocess.run([program, "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return library


class ShimServer(Server):
    """A server with the preloaded library."""

    def __init__(self, kind: Kind, directory: Path, settings: dict[str, str]) -> None:
        self.furthest = 0.0  # the most seconds by which the clock has ever been ahead
        path = directory / "control"
        path.write_bytes(bytes(_SIZE))
        with path.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), _SIZE)
        self.environment = os.environ | {"LD_PRELOAD": str(built(directory)), "SHIM_CONTROL": str(path)}
        super().__init__(kind, directory, {"auto-aof-rewrite-percentage": "0", **settings})

    def _get(self, index: int) -> int:
        value: int = struct.unpack_from("q", self._control, 8 * index)[0]
        return value

    def _set(self, index: int, value: int) -> None:
        struct.pack_into("q", self._control, 8 * index, value)

    @property
    def ahead(self) -> float:
        return self._get(0) / 1e6

    @ahead.setter
    def ahead(self, seconds: float) -> None:
        """Let the clock of a running server jump, and return when the server uses the new time.

        Valkey 9.1 reads the time of day only once in a millisecond. A call in the same millisecond would get the old time.
        """
        jump = abs(seconds - self.ahead)
        self.furthest = max(self.furthest, seconds)
        self._set(0, round(seconds * 1e6))
        if self.answers and jump:
            wait_until(lambda: abs(self._ahead_in_calls() - seconds) < jump / 2, "the server to use the new time")

    def _ahead_in_calls(self) -> float:
        """Return how many seconds ahead the time is that a call gets."""
        now, microseconds = self.admin.time()
        return float(now) + float(microseconds) / 1e6 - time.time()

    @property
    def full(self) -> bool:
        return bool(self._get(1))

    @full.setter
    def full(self, full: bool) -> None:
        self._set(1, int(full))

    @property
    def refused(self) -> int:
        """The number of writes that failed because the disk was full."""
        return self._get(2)

    def power_cut(self) -> int:
        """Kill the server, remove its unconfirmed bytes, and return how many there were."""
        self.kill()
        synced = {self._get(3 + 2 * i): self._get(4 + 2 * i) for i in range(_FILES)}
        lost = 0
        for path in (self.directory / "appendonlydir").glob("*.incr.aof"):
            status = path.stat()
            durable = synced.get(status.st_ino, 0)
            lost += status.st_size - durable
            os.truncate(path, durable)
        return lost
