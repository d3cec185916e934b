"""The tests that LangGraph has for every checkpointer, on each server: the base and the extended interface, sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES

from workers.integrations.langgraph import RedisSaver


class ThreadSaver(RedisSaver):
    """A saver whose async methods call the methods for threads, so that the tests, which are async, test these too."""

    async def aget_tuple(self, config: Any) -> Any:
        return await asyncio.to_thread(self.get_tuple, config)

    async def aput(self, *arguments: Any) -> Any:
        return await asyncio.to_thread(self.put, *arguments)

    async def aput_writes(self, *arguments: Any, **given: Any) -> None:
        await asyncio.to_thread(lambda: self.put_writes(*arguments, **given))

    async def alist(self, config: Any, **given: Any) -> AsyncIterator[Any]:
        for one in await asyncio.to_thread(lambda: list(self.list(config, **given))):
            yield one

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await asyncio.to_thread(lambda: self.prune(thread_ids, strategy=strategy))


@pytest.mark.parametrize("kind", [RedisSaver, ThreadSaver])
async def test_saver_passes_all_tests_of_langgraph(saver_url: str, namespace: str, kind: type[RedisSaver]) -> None:
    @checkpointer_test(name="saver")
    async def saver() -> AsyncIterator[RedisSaver]:
        async with kind(saver_url, namespace) as made:
            yield made

    report = await validate(saver)
    assert {name: result.failures for name, result in report.results.items() if result.failures} == {}
    assert set(report.results) == {one.value for one in ALL_CAPABILITIES}
    assert sum(result.tests_passed for result in report.results.values()) >= 81
    assert not any(result.tests_skipped for result in report.results.values())
