"""Handlers that start processes of their own and end them again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.e2e.app import journal
from tests.waiting import eventually
from workers import AsyncRun, Registry, Run

runs = Registry()
FORK = multiprocessing.get_context("fork")


def running_loop() -> str:
    """Return the module of the worker's event loop class: `uvloop` or an asyncio module."""
    return "uvloop" if "uvloop" in sys.modules else "asyncio"


@runs.handler
async def neighbour(run: AsyncRun) -> int:
    """Wait for the gate "enough", without a cut."""
    journal(run, "start")
    await eventually(Path(f"{os.environ['JOURNAL']}.enough").exists, "the gate", timeout=3600, pause=0.05)
    return os.getpid()


@runs.handler
def uses_pool(run: Run) -> list[object]:
    """Leave a pool of processes, which terminates them."""
    with FORK.Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
    return [os.getpid(), running_loop(), -signal.SIGTERM]


@runs.handler
def terminates_process(run: Run) -> list[object]:
    """Terminate a process that would sleep for an hour."""
    child = FORK.Process(target=time.sleep, args=(3600,))
    child.start()
    child.terminate()
    child.join()
    return [os.getpid(), running_loop(), child.exitcode]


@runs.handler
async def terminates_process_async(run: AsyncRun) -> list[object]:
    """Do the same on the event loop."""
    child = FORK.Process(target=time.sleep, args=(3600,))
    child.start()
    child.terminate()
    await eventually(lambda: child.exitcode is not None, "the child to end")
    return [os.getpid(), running_loop(), child.exitcode]


@runs.handler
def kills_group_of_tool(run: Run) -> list[object]:
    """End a tool with its process group, although the tool was started without a session of its own."""
    tool = subprocess.Popen(["sleep", "3600"])
    os.killpg(os.getpgid(tool.pid), signal.SIGTERM)
    return [os.getpid(), running_loop(), tool.wait()]


@runs.handler
def hangs_up_group_of_tool(run: Run) -> list[object]:
    """End a tool in the same way, with the signal of a closed terminal."""
    tool = subprocess.Popen(["sleep", "3600"])
    os.killpg(os.getpgid(tool.pid), signal.SIGHUP)
    tool.wait()
    return [os.getpid(), running_loop(), -signal.SIGTERM]
