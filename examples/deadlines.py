"""A crawl that may take ten minutes, or longer where its escalator says so."""

import asyncio

from workers import AsyncRun, Deadline, Extend, Kill, Registry, Watched

runs = Registry()


def patience(run: Watched) -> Extend | Kill:
    """Asked at the soft deadline, and again when the time that it gave is over."""
    if run.idle > 120:
        return Kill(f"nothing new for {run.idle:.0f} s, after page {run.iteration}")
    if run.extensions == 3:
        return Kill("three times more time is enough")
    return Extend(300)


@runs.handler(deadline=Deadline(soft=600, hard=3600, progress=900, escalator=patience))
async def crawl(run: AsyncRun, pages: int) -> int:
    if run.resumed and run.resumed.killed:  # somebody revived it: what it was killed for is known
        run.note(f"again, after it was {run.resumed.killed.message}")
    async for page in run.loop(limit=pages):
        run.messages.append({"page": page, "text": await fetch(page)})
    return len(run.messages)


async def fetch(page: int) -> str:  # yours
    await asyncio.sleep(0.01)
    return f"what page {page} says"
