"""A plain loop with a cursor: `run.state` holds the position, and `run.checkpoint()` offers it to be saved after each batch.

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
        run.state["cursor"] += batch  # copy the batch here; the target can refuse a stale owner by run.token
        run.note("copying", done=run.state["cursor"], total=count)
        run.checkpoint()
    copied: int = run.state["cursor"]
    return copied
