"""Handlers with effects on an outside sink that dedupes nothing: a file, or a service behind a fault proxy.

The lab writes an order, `before` or `after`. The first process that reaches this side of a call kills itself with SIGKILL.
"""

from __future__ import annotations

import os
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.faults.lab.process_identity import this_process
from workers import AsyncRun, NotDone, Registry, Retry, Run

runs = Registry()
ORDER, SINK, DEATHS, SERVICE = (os.environ.get(name, "") for name in ("ORDER", "SINK", "DEATHS", "SERVICE"))
PROCESSES = os.environ.get("PROCESSES", "")
ME = this_process()
if PROCESSES:  # this process can be in a call from now on, so each judgement about the living processes must know it
    Path(PROCESSES, ME).touch()


def kill_if_ordered(side: str) -> None:
    """Kill this process if the lab has ordered it for this side of a call. One process carries out an order."""
    taken = f"{ORDER}.{os.getpid()}"
    try:
        if Path(ORDER).read_text() != side:
            return
        Path(ORDER).rename(taken)
    except FileNotFoundError:
        return
    Path(taken).unlink()
    with Path(DEATHS).open("a") as deaths:
        deaths.write(f"{ME} {time.time()}\n")
    os.kill(os.getpid(), signal.SIGKILL)


def append(name: str) -> str:
    """Append a line to the file, without any check for a repetition."""
    kill_if_ordered("before")
    write_line("done", name)
    kill_if_ordered("after")
    return f"receipt {name}"


def find_line(name: str) -> str | type[NotDone]:
    """Look for the line in the file. The answer NotDone is appended to the file too, so that the judge knows their order."""
    text = Path(SINK).read_text() if Path(SINK).exists() else ""
    if f"done {name} " in text:
        return f"receipt {name}"
    write_line("absent", name)
    return NotDone


def write_line(what: str, name: str) -> None:
    """Append a line to the file with one system call."""
    descriptor = os.open(SINK, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{what} {name} {ME} {time.time()}\n".encode())
    finally:
        os.close(descriptor)


def post(name: str) -> str:
    """Call the service. The proxy before it may lose or hold the reply."""
    kill_if_ordered("before")
    with urllib.request.urlopen(urllib.request.Request(f"{SERVICE}/{name}?{ME}", method="POST"), timeout=30) as reply:
        text: str = reply.read().decode()
    kill_if_ordered("after")
    return text


def find_post(name: str) -> str | type[NotDone]:
    """Ask the service for the call."""
    try:
        with urllib.request.urlopen(f"{SERVICE}/{name}?{ME}", timeout=30) as reply:
            text: str = reply.read().decode()
            return text
    except urllib.error.HTTPError:
        return NotDone


RETRY = Retry(limit=1000, wait=0.05)


@runs.handler(throttle=0, retry=RETRY)
async def unchecked(run: AsyncRun, count: int) -> int:
    """Make effects without a check: the run fails if an outcome is unknown."""
    for number in range(count):
        await run.once(f"call {number}", append, f"{run.id}.{number}")
    return count


@runs.handler(throttle=0, retry=RETRY)
def checked(run: Run, count: int) -> int:
    """Make effects with a check, in a plain handler."""
    for number in range(count):
        run.once(f"call {number}", append, f"{run.id}.{number}", check=find_line)
    return count


@runs.handler(throttle=0, retry=RETRY)
async def posted(run: AsyncRun, count: int) -> int:
    """Call the service, with a check."""
    for number in range(count):
        await run.once(f"call {number}", post, f"{run.id}.{number}", check=find_post)
    return count
