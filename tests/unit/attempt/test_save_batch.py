"""The batch of saves: what shares a request, when it is sent, and that one run does not disturb the others."""

from __future__ import annotations

import asyncio
import contextvars
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.errors import Unconfirmed
from coordinator.store.keys import Keys
from coordinator.store.transport.wire import AsyncWire
from tests.waiting import eventually, next_turn
from workers.attempt.save_batch import MOST_BYTES, MOST_SAVES, SaveBatch


class Server:
    """A wire whose server answers each save, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, list[str]]] = []
        self.error: Exception | None = None

    async def ask(self, requests: Any, timeout: Any = None, give_up: Any = None) -> list[Any]:
        [call] = requests
        self.requests.append((call.at, [id for id, _, _ in call.items]))
        if self.error is not None:
            return [self.error]
        return [[[b"ok", b"%d" % number] for number, _ in enumerate(call.items, 1)]]


class Run:
    """A saver and its save."""

    def __init__(self, id: str, at: str = "{1}", size: int = 10) -> None:
        self.keys = cast("Keys", SimpleNamespace(at=at))
        self.item = (id, "token", b"x" * size)
        self.answers: list[Any] = []
        self.closed = False

    def take_save(self) -> Run | None:
        return None if self.closed else self

    def answered(self, word: str, progress: int) -> None:
        self.answers.append((word, progress))

    def failed(self, error: Exception) -> None:
        self.answers.append(error)


@pytest.fixture
def server() -> Server:
    return Server()


def make_batch(server: Server, gather_seconds: float = 60.0) -> SaveBatch:
    return SaveBatch(cast("AsyncWire", server), gather_seconds)


async def test_saves_of_one_turn_of_the_loop_share_a_request(server):
    batch, runs = make_batch(server), [Run(f"r{n}") for n in range(5)]
    for run in runs:
        batch.add(run, at_once=False)
    await next_turn(5)
    assert server.requests == [("{1}", ["r0", "r1", "r2", "r3", "r4"])]
    assert [run.answers for run in runs] == [[("ok", number)] for number in range(1, 6)]


async def test_save_whose_run_was_closed_before_its_request_is_not_sent(server):
    batch, closed, other = make_batch(server), Run("r0"), Run("r1")

    class Closing(Run):
        def take_save(self) -> Run | None:
            closed.item = ("r0", "", b"")  # closed after its save was taken
            return super().take_save()

    for run in (closed, other, Closing("r2")):
        batch.add(run, at_once=False)
    await next_turn(5)
    assert server.requests == [("{1}", ["r1", "r2"])]


async def test_later_hurries_do_not_postpone_a_batch(server):
    batch, loop = make_batch(server), asyncio.get_running_loop()

    def flush_in_each_turn(number: int) -> None:
        if number < 100:
            loop.call_soon(flush_in_each_turn, number + 1)  # runs before the batch that the next line schedules
        batch.add(Run(f"r{number}"), at_once=True)

    flush_in_each_turn(0)
    await next_turn(10)
    assert "r0" in server.requests[0][1]


async def test_batch_works_with_eager_tasks(server):
    factory = getattr(asyncio, "eager_task_factory", None)
    if factory is not None:  # Python 3.12
        asyncio.get_running_loop().set_task_factory(factory)
    batch, run = make_batch(server), Run("r0")
    batch.add(run, at_once=False)
    await next_turn(5)
    assert run.answers == [("ok", 1)]


async def test_batch_runs_in_the_context_of_its_worker(server):
    of_worker: contextvars.ContextVar[str] = contextvars.ContextVar("of_worker")
    of_worker.set("worker 1")
    batch = make_batch(server)
    seen: list[str] = []

    class Listener(Run):
        def take_save(self) -> Run | None:
            seen.append(of_worker.get("nothing"))
            return super().take_save()

    contextvars.Context().run(batch.add, Listener("r0"), at_once=True)
    await next_turn(5)
    assert seen == ["worker 1"]


async def test_run_that_cannot_be_saved_does_not_disturb_the_others(server):
    class Broken(Run):
        def take_save(self) -> Run | None:
            raise RuntimeError("can't be saved")

        def failed(self, error: Exception) -> None:
            raise RuntimeError("can't fail")

    batch, broken, good = make_batch(server), Broken("r0"), Run("r1")
    batch.add(broken, at_once=False)
    batch.add(good, at_once=False)
    await next_turn(5)
    assert good.answers == [("ok", 1)]


async def test_every_saver_is_told_that_its_batch_failed_whatever_the_error_is(server):
    class Broken(Run):
        def failed(self, error: Exception) -> None:
            raise RuntimeError("can't fail")

    batch, broken, good = make_batch(server), Broken("r0"), Run("r1")
    server.error = ValueError("an answer that can't be read")
    batch.add(broken, at_once=False)
    batch.add(good, at_once=False)
    await next_turn(5)
    assert isinstance(good.answers[0], ValueError)


async def test_saves_after_a_batch_wait_for_the_next_one(server):
    batch = make_batch(server, gather_seconds=0.05)
    batch.add(Run("r0"), at_once=False)
    await next_turn(5)
    begun = asyncio.get_running_loop().time()
    late = [Run("r1"), Run("r2")]
    for run in late:
        batch.add(run, at_once=False)
        await next_turn(5)
    assert len(server.requests) == 1
    await eventually(lambda: late[1].answers, "the next batch")
    assert server.requests[1:] == [("{1}", ["r1", "r2"])]
    assert asyncio.get_running_loop().time() - begun > 0.02


async def test_save_that_a_handler_waits_for_is_sent_at_once_with_all_others(server):
    batch = make_batch(server)
    batch.add(Run("r0"), at_once=False)
    await next_turn(5)
    batch.add(Run("r1"), at_once=False)
    await next_turn(5)
    batch.add(Run("r2"), at_once=True)
    await next_turn(5)
    assert server.requests[1:] == [("{1}", ["r1", "r2"])]


async def test_each_partition_has_its_own_request(server):
    batch = make_batch(server)
    for run in (Run("r0", "{1}"), Run("r1", "{2}"), Run("r2", "{1}")):
        batch.add(run, at_once=False)
    await next_turn(5)
    assert server.requests == [("{1}", ["r0", "r2"]), ("{2}", ["r1"])]


async def test_large_batches_are_divided(server):
    batch = make_batch(server)
    for number in range(MOST_SAVES + 1):
        batch.add(Run(f"r{number}"), at_once=False)
    batch.add(Run("large", size=MOST_BYTES), at_once=False)
    await next_turn(5)
    assert [len(ids) for _, ids in server.requests] == [MOST_SAVES, 1, 1]


async def test_saver_that_was_closed_meanwhile_sends_nothing(server):
    batch, open_run, closed = make_batch(server), Run("r0"), Run("r1")
    batch.add(closed, at_once=False)
    batch.add(open_run, at_once=False)
    closed.closed = True
    await next_turn(5)
    assert server.requests == [("{1}", ["r0"])]
    assert not closed.answers


async def test_error_of_the_request_reaches_every_saver(server):
    batch, runs = make_batch(server), [Run("r0"), Run("r1")]
    server.error = Unconfirmed("no answer")
    for run in runs:
        batch.add(run, at_once=False)
    await next_turn(5)
    assert [run.answers for run in runs] == [[server.error], [server.error]]


async def test_saver_that_fails_over_its_answer_does_not_disturb_the_others(server, caplog):
    class Broken(Run):
        def answered(self, word: str, progress: int) -> None:
            raise RuntimeError("broken")

    batch, other = make_batch(server), Run("r1")
    batch.add(Broken("r0"), at_once=False)
    batch.add(other, at_once=False)
    await next_turn(5)
    assert other.answers == [("ok", 2)]
    assert "r0" in caplog.text
