"""A plain loop with a cursor: the state says how far it is, and a checkpoint each time keeps it.

workers start cursor:runs
coordinator enqueue copy_rows count:=1000 --wait
"""

from __future__ import annotations

from workers import AsyncRun, Registry

runs = Registry()
BATCH = 100


@runs.handler
async def copy_rows(run: AsyncRun, count: int) -> int:
    run.state.setdefault("cursor", 0)
    while run.state["cursor"] < count:
        batch = min(BATCH, count - run.state["cursor"])
        run.state["cursor"] += batch  # here the batch would be copied; run.token lets the target refuse a stale owner
        run.note("copying", done=run.state["cursor"], total=count)
        run.checkpoint()
    copied: int = run.state["cursor"]
    return copied
