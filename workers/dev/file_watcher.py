"""Notice changed Python files by polling all of them.

Polling takes about a millisecond for a hundred files and needs no library. It also works where kernel notifications do not: on
mounted folders of containers and virtual machines, on network disks, and with editors that replace a file instead of writing it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from coordinator.clock import Clock

FILE_POLL_SECONDS = 0.3
SETTLE_SECONDS = 0.1  # an editor or a checkout writes in several steps: the watcher waits until two snapshots agree
MAX_FILES = 20_000
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages"})

Snapshot = Mapping[str, tuple[int, int, int]]  # path -> modification time, size, inode


def take_snapshot(root: Path, others: Iterable[str] = ()) -> Snapshot:
    """Return the modification time, size and inode of each Python file below a folder, and of the other given files."""
    found: dict[str, tuple[int, int, int]] = {}
    folders = [str(root)]
    while folders and len(found) < MAX_FILES:
        try:
            with os.scandir(folders.pop()) as entries:
                inside = list(entries)
        except OSError:
            continue  # the folder was just removed, or may not be read
        if any(entry.name == "pyvenv.cfg" for entry in inside):
            continue  # a virtual environment: installed packages do not change
        for entry in inside:
            if entry.name.startswith(".") or entry.name in _SKIPPED_FOLDERS:
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.name.endswith(".py"):
                _add(found, entry.path)
    for path in others:
        _add(found, path)
    return found


def _add(found: dict[str, tuple[int, int, int]], path: str) -> None:
    try:
        facts = os.stat(path)
    except OSError:
        return
    found[path] = (facts.st_mtime_ns, facts.st_size, facts.st_ino)


def changed_files(before: Snapshot, after: Snapshot) -> list[str]:
    """Return the files that are new, removed or changed."""
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


class FileWatcher:
    """Wait for changed files. Each changed file is returned once.

    Args:
        root: The folder whose Python files are watched.
        clock: The time source.
    """

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root, self._clock = root, clock
        self._others: tuple[str, ...] = ()
        self._seen: Snapshot = take_snapshot(root)

    def watch_also(self, files: Iterable[str]) -> None:
        """Also watch the given files that are not below the folder: handlers were imported from them."""
        below = f"{self._root}{os.sep}"
        self._others = tuple(sorted({file for file in files if not file.startswith(below)}))
        self._seen = {**take_snapshot(Path(os.devnull), self._others), **self._seen}

    async def wait_for_change(self) -> list[str]:
        """Wait until files have changed and then stayed the same for a moment, and return them.

        Changes between two calls count too.
        """
        while not changed_files(self._seen, now := await self._take_snapshot()):
            await self._clock.asleep(FILE_POLL_SECONDS)
        while True:
            await self._clock.asleep(SETTLE_SECONDS)
            after = await self._take_snapshot()
            if after == now:
                break
            now = after
        changed, self._seen = changed_files(self._seen, now), now
        return changed

    async def _take_snapshot(self) -> Snapshot:
        return await asyncio.to_thread(take_snapshot, self._root, self._others)
