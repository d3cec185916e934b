"""The last note of an attempt is stored, and every failure is logged with its traceback."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.encoding.codec import decode
from coordinator.model.policies.retry import Retry, RetryLater
from tests.integration.worker_harness import Bench, bench, performing
from tests.waiting import eventually
from workers import AsyncRun, Registry, Run


@pytest.fixture
async def here(real_url: str, namespace: str) -> AsyncIterator[Bench]:
    async with bench(real_url, namespace) as made:
        yield made


def noting() -> Registry[Any]:
    """Return handlers that write a note as the last thing that they do."""
    runs = Registry()

    @runs.handler
    async def returns(run: AsyncRun) -> None:
        run.note("done", done=1, total=1)

    @runs.handler
    def returns_plain(run: Run) -> str:
        run.note("saving")
        run.flush()
        run.note("done", done=1, total=1)
        return "result"

    @runs.handler
    async def raises(run: AsyncRun) -> None:
        run.note("saving")
        await run.flush()
        run.note("done", done=1, total=1)
        raise ValueError("broken")

    @runs.handler(retry=Retry(limit=3))
    async def retries(run: AsyncRun) -> None:
        run.note("done", done=1, total=1)
        raise RetryLater("not yet", after=60)

    return runs


@pytest.mark.parametrize("kind", ["returns", "returns_plain", "raises", "retries"])
async def test_last_note_of_an_attempt_is_stored(here: Bench, kind: str) -> None:
    here.worker(noting())
    id = await here.enqueue(kind)
    await here.outcome(id)
    assert decode(here.run(id)["note"], "note") == ["done", 1, 1]


async def test_last_note_of_a_released_run_is_stored(here: Bench) -> None:
    runs = Registry()

    @runs.handler
    async def waits(run: AsyncRun) -> None:
        run.note("waiting")
        await asyncio.Event().wait()

    worker, task = here.worker(runs, grace=0.1)
    id = await here.enqueue("waits")
    await performing(worker)
    assert await here.end(worker, task) == 0
    assert here.status(id) == "queued"
    assert decode(here.run(id)["note"], "note") == ["waiting", None, None]


def failing() -> Registry[Any]:
    runs = Registry()

    @runs.handler
    async def returns_object(run: AsyncRun) -> Any:
        return object()

    @runs.handler
    async def returns_too_much(run: AsyncRun) -> bytes:
        return b"x" * (9 * 1024 * 1024)

    @runs.handler
    async def raises(run: AsyncRun) -> None:
        raise ValueError("broken")

    @runs.handler
    def raises_plain(run: Run) -> None:
        raise ValueError("broken")

    @runs.handler(retry=Retry(limit=3))
    async def is_retried(run: AsyncRun) -> None:
        raise ValueError("broken")

    return runs


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("returns_object", "NotPlain"),
        ("returns_too_much", "TooLarge"),
        ("raises", "ValueError"),
        ("raises_plain", "ValueError"),
        ("is_retried", "ValueError"),
    ],
)
async def test_failure_is_logged_once_with_its_traceback(
    here: Bench, caplog: pytest.LogCaptureFixture, kind: str, error: str
) -> None:
    caplog.set_level(logging.WARNING)
    here.worker(failing())
    id = await here.enqueue(kind)
    await here.outcome(id)

    def found() -> list[logging.LogRecord]:
        return [record for record in caplog.records if id in record.getMessage()]

    await eventually(found, "the log line")
    (record,) = found()
    assert error in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is not None
    assert record.exc_info[0].__name__ == error


@pytest.mark.parametrize("kind", ["raises", "raises_plain"])
async def test_traceback_of_a_failure_begins_in_the_handler(here: Bench, kind: str) -> None:
    here.worker(failing())
    id = await here.enqueue(kind)
    await here.outcome(id)
    first = here.error(id)[2].splitlines()[1]
    assert Path(__file__).name in first


async def test_run_with_wrong_inputs_is_rejected_without_a_traceback(
    here: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    here.worker(failing())
    id = await here.enqueue("raises", {"unknown": 1})

    def found() -> list[logging.LogRecord]:
        return [record for record in caplog.records if f"run {id} could not be started" in record.getMessage()]

    await eventually(found, "the log line")
    assert found()[0].exc_info is None
    assert here.error(id)[0] == "BadInputs"
    assert here.error(id)[2] == ""


async def test_request_for_a_later_retry_is_logged_without_a_traceback(
    here: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    here.worker(noting())
    id = await here.enqueue("retries")
    await here.outcome(id)

    def found() -> list[logging.LogRecord]:
        return [record for record in caplog.records if f"run {id} is retried" in record.getMessage()]

    await eventually(found, "the log line")
    assert [record.exc_info for record in found()] == [None]
