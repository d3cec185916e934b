"""Start the process that stops an embedded server after its last user was killed (see last_user_watcher.py)."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

from coordinator.store.transport.connections import last_user_watcher
from coordinator.store.transport.connections.lock_files import open_lock, try_lock

logger = logging.getLogger(__name__)


def ensure_watcher(directory: Path) -> None:
    """Start the watcher of a directory, unless it is running. The caller holds start.lock.

    Without a watcher the server works, but it keeps running if its last user is ended by a signal.
    """
    lock = open_lock(directory / "watcher.lock")
    try:
        if try_lock(lock):
            _launch(directory, lock)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning(
            "embedded server has no watcher: if the last user of embedded://%s is killed, the server keeps running: %s",
            directory,
            error,
        )
    finally:
        os.close(lock)  # the watcher inherited the file, and with it the lock


def _launch(directory: Path, lock: int) -> None:
    if "py" not in Path(sys.executable or "").name.lower():
        raise OSError(f"the program {sys.executable!r}, in which Python is embedded, can't run a script")
    subprocess.run(
        [sys.executable, "-I", "-S", last_user_watcher.__file__, str(directory), str(lock)],
        pass_fds=[lock],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",  # the watcher must not keep the file system of the current folder busy
        start_new_session=True,  # a session of its own, so that Ctrl-C in the terminal does not end the watcher
        check=True,
        timeout=30,
    )
