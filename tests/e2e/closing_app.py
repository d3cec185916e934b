"""Handlers that close file descriptors which they have not opened, as a library with a double close does."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from tests.e2e.app import journal
from workers import AsyncRun, Registry, Run

MOST = 65_536  # more files than a process of the tests opens
loops: list[Any] = []  # the event loop of the process


@asynccontextmanager
async def keep_loop() -> AsyncIterator[None]:
    """Store the event loop of the process, for handlers in threads."""
    loops.append(asyncio.get_running_loop())
    yield None


runs = Registry(lifespan=keep_loop)


def open_files(kind: str) -> Iterator[int]:
    """Return the files above the standard files whose name in /proc begins with a word, as in "socket" or "pipe"."""
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # this is the list itself
            continue
        if number > 2 and name.startswith(kind):
            yield number


def close_everything(loop: Any) -> None:
    os.closerange(3, MOST)


def close_connections(loop: Any) -> None:
    """Close all connections to the server: those of the event loop and that of the heartbeat."""
    for number in list(open_files("socket:")):
        with socket.socket(fileno=os.dup(number)) as copy:
            try:
                copy.getpeername()
            except OSError:
                continue
            if copy.family != socket.AF_UNIX:
                os.close(number)


def close_pipes(loop: Any) -> None:
    """Close all pipes. Two of them lead to the supervisor."""
    for number in list(open_files("pipe:")):
        os.close(number)


def close_heartbeat(loop: Any) -> None:
    """Close the event loops of other threads. Only the heartbeat has one."""
    own = loop._get_backend_id() if hasattr(loop, "_get_backend_id") else loop._selector.fileno()
    for number in list(open_files("anon_inode:[eventpoll]")):
        if number != own:
            os.close(number)


CLOSE = {
    "everything": close_everything,
    "connections": close_connections,
    "pipes": close_pipes,
    "heartbeat": close_heartbeat,
}


def close_once(run: AsyncRun | Run, what: str) -> int:
    """Close files in the first attempt, and return the number of the attempt."""
    journal(run, "closes", run.attempt)
    if run.attempt == 1:
        CLOSE[what](loops[0])
    return run.attempt


@runs.handler
async def closer(run: AsyncRun, what: str) -> int:
    return close_once(run, what)


@runs.handler
def plain_closer(run: Run, what: str) -> int:
    return close_once(run, what)


@runs.handler
async def always(run: AsyncRun) -> None:
    """Close everything in each attempt."""
    journal(run, "closes", run.attempt)
    os.closerange(3, MOST)
