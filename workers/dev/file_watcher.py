"""Notices that Python files have changed, by looking at all of them again and again.

Looking costs about a millisecond for a hundred files, needs no library, and works where notifications of the kernel don't: on
mounted folders of containers and virtual machines, on network disks, and where an editor replaces a file instead of writing it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from coordinator.clock import Clock

EVERY = 0.3
SETTLED = 0.1  # an editor or a checkout writes in several steps: it is waited until two looks agree
MOST = 20_000
_NOT_INTO = frozenset({"__pycache__", "node_modules", "site-packages"})

Look = Mapping[str, tuple[int, int, int]]


def look(root: Path, others: Iterable[str] = ()) -> Look:
    """Of each Python file below a folder, and of some others: what changes with it."""
    found: dict[str, tuple[int, int, int]] = {}
    folders = [str(root)]
    while folders and len(found) < MOST:
        try:
            with os.scandir(folders.pop()) as entries:
                inside = list(entries)
        except OSError:
            continue  # it has just gone, or is not ours to read
        if any(entry.name == "pyvenv.cfg" for entry in inside):
            continue  # what is installed does not change
        for entry in inside:
            if entry.name.startswith(".") or entry.name in _NOT_INTO:
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


def differing(before: Look, after: Look) -> list[str]:
    """The files that are new, gone or changed."""
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


class Watch:
    """Waits for a change since the last one that it told."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root, self._clock = root, clock
        self._others: tuple[str, ...] = ()
        self._seen: Look = look(root)

    def also(self, files: Iterable[str]) -> None:
        """Files elsewhere, that the handlers are made of."""
        below = f"{self._root}{os.sep}"
        self._others = tuple(sorted({file for file in files if not file.startswith(below)}))
        self._seen = {**look(Path(os.devnull), self._others), **self._seen}

    async def changed(self) -> list[str]:
        """Returns when files have changed and come to rest. What changed since the last time counts, also meanwhile."""
        while not differing(self._seen, now := await self._look()):
            await self._clock.asleep(EVERY)
        while True:
            await self._clock.asleep(SETTLED)
            after = await self._look()
            if after == now:
                break
            now = after
        changed, self._seen = differing(self._seen, now), now
        return changed

    async def _look(self) -> Look:
        return await asyncio.to_thread(look, self._root, self._others)
