"""run-coordinator with its defaults: a supervisor, one worker process of 100 slots, and a coordinator.

Nothing is left out to be faster: leases, endings, retention and recovery work as for any run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import probe

from coordinator import Client
from workers import AsyncRun, Registry

GROUPS = int(os.environ.get("BENCH_GROUPS", "0"))

runs = Registry()


@runs.handler
async def nothing(run: AsyncRun, began: int = 0, text: str = "") -> str | None:
    probe.mark(began)
    return text if began == probe.TRIP else None


@runs.handler(at_once=int(os.environ.get("BENCH_AT_ONCE", "1")), group_by="customer")
async def limited(run: AsyncRun, customer: int, text: str) -> None:
    probe.mark()


async def producer(url: str) -> Any:
    client = Client(url)

    async def one(began: int) -> None:
        client.enqueue("nothing", {"began": began, "text": probe.TEXT})

    async def many(count: int) -> None:
        if GROUPS:
            inputs = [("limited", {"customer": n % GROUPS, "text": probe.TEXT}) for n in range(count)]
            client.enqueue_many(inputs, group=lambda given: str(given["customer"]))
            return
        client.enqueue_many([("nothing", {"began": 0, "text": probe.TEXT})] * count)

    async def trip() -> None:
        client.enqueue("nothing", {"began": probe.TRIP, "text": probe.TEXT}).result(30)

    return SimpleNamespace(one=one, many=many, trip=trip)


def work(url: str) -> None:
    """Start both commands as a user does. SIGTERM ends both."""
    commands = Path(sys.executable).parent
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": str(here), "RUNS_URL": url}
    started = [
        subprocess.Popen([commands / "workers", "start", "ours_app:runs", "--log-level", "WARNING"], env=environment),
        subprocess.Popen([commands / "coordinator", "start", "--log-level", "WARNING"], env=environment),
    ]
    signal.signal(signal.SIGTERM, lambda *_: [child.terminate() for child in started])
    for child in started:
        child.wait()


if __name__ == "__main__":
    probe.main(producer, work)
