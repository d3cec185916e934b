"""Handlers that enqueue children with clients that were created without arguments."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from coordinator import Client
from workers import AsyncRun, Registry, Run

runs = Registry()
client = Client(timeout=2.0)  # created at the import of the module


def enqueue_leaf() -> str:
    with Client(timeout=2.0) as made:
        return made.enqueue("leaf").id


@runs.handler
async def leaf(run: AsyncRun) -> str:
    return "ok"


@runs.handler
def handler(run: Run) -> str:
    return enqueue_leaf()


@runs.handler
def module(run: Run) -> str:
    return client.enqueue("leaf").id


@runs.handler
def thread(run: Run) -> str:
    with ThreadPoolExecutor(1) as threads:  # its threads do not inherit context variables
        return threads.submit(enqueue_leaf).result()
