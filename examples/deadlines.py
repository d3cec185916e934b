"""A crawl that may take ten minutes, or longer if its escalator extends the time."""

import asyncio

from workers import AsyncRun, Deadline, Extend, Kill, Registry, Watched

runs = Registry()


def patience(run: Watched) -> Extend | Kill:
    """Return whether the run gets more time or is killed. It is asked at the soft deadline, and again after each extension."""
    if run.idle > 120:
        return Kill(f"nothing new for {run.idle:.0f} s, after page {run.iteration}")
    if run.extensions == 3:
        return Kill("it was extended three times")
    return Extend(300)


@runs.handler(deadline=Deadline(soft=600, hard=3600, progress=900, escalator=patience))
async def crawl(run: AsyncRun, pages: int) -> int:
    if run.resumed and run.resumed.killed:  # an operator revived it after a kill
        run.note(f"revived after: {run.resumed.killed.message}")
    async for page in run.loop(limit=pages):
        run.messages.append({"page": page, "text": await fetch(page)})
    return len(run.messages)


async def fetch(page: int) -> str:  # your code
    await asyncio.sleep(0.01)
    return f"text of page {page}"
