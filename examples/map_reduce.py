"""Count the words of many texts: one child for each text, and a parent that adds up the counts without holding a slot.

workers start map_reduce:runs
coordinator enqueue count_all texts:='["to be or not to be", "be quick"]'
"""

from __future__ import annotations

from collections import Counter

from workers import AsyncRun, Registry, Run

runs = Registry()


@runs.handler
def count_words(run: Run, text: str) -> dict[str, int]:
    return dict(Counter(text.split()))


@runs.handler
async def count_all(run: AsyncRun, texts: list[str]) -> dict[str, int]:
    total = Counter[str]()
    async for done in run.as_completed("texts", [count_words.inputs(text) for text in texts], at_once=100):
        total.update(done.result)
        run.note("counting", done=total.total())
    return dict(total)
