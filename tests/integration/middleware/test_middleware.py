"""Middleware of clients and registries, with real workers on a real server."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from coordinator import AsyncClient, AttemptEnding, AttemptInfo, BadOption, Client, EnqueueInfo, Middleware, StepInfo
from coordinator.encoding.codec import encode
from coordinator.middleware import CHECKSUMS, MiddlewareChain, SamplingMiddleware
from coordinator.store.plans.workers import Claimed
from tests.integration.worker_harness import Bench, bench, performing
from tests.servers import Server
from workers import AsyncRun, Budget, Registry, RetryLater, Run, Spending
from workers.process.claiming.middleware import ClaimedMiddleware

tenant: ContextVar[str] = ContextVar("tenant", default="")


class Recording(Middleware):
    """Add a header, pass a context variable to the handler, and record all calls."""

    def __init__(self, name: str = "one") -> None:
        self.name, self.calls = name, list[Any]()
        self.endings: list[AttemptEnding] = []

    def on_enqueue(self, run: EnqueueInfo) -> None:
        self.calls.append(("enqueue", run))
        run.headers.setdefault("tenant", tenant.get() or "nobody")

    @contextmanager
    def around_attempt(self, attempt: AttemptInfo) -> Iterator[None]:
        token = tenant.set(attempt.headers.get("tenant", ""))
        self.calls.append(("enter", attempt, threading.get_ident()))
        try:
            yield
        except BaseException as error:
            self.calls.append(("error", error))
            raise
        finally:
            self.calls.append(("leave", attempt))
            tenant.reset(token)

    def on_ending(self, ending: AttemptEnding) -> None:
        self.endings.append(ending)

    def outcomes(self) -> list[str]:
        return [ending.outcome for ending in self.endings]


class Broken(Middleware):
    """Raise in every method."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _raise(self, where: str) -> None:
        if where == self.where:
            raise SystemExit("a broken middleware") if where in ("enter", "exit") else ValueError("a broken middleware")

    def on_enqueue(self, run: EnqueueInfo) -> None:
        run.headers["half"] = "written"
        self._raise("on_enqueue")

    def selects(self, run: str) -> bool:
        self._raise("selects")
        return True

    def around_attempt(self, attempt: AttemptInfo) -> Any:
        self._raise("around_attempt")
        return self

    def around_step(self, step: StepInfo) -> Any:
        self._raise("around_step")
        return None

    def __enter__(self) -> None:
        self._raise("enter")

    def __exit__(self, *_: object) -> bool:
        self._raise("exit")
        return True  # asks to suppress the handler's exception

    def on_ending(self, ending: AttemptEnding) -> None:
        self._raise("on_ending")


@pytest.fixture
async def here(valkey_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(valkey_server.url, namespace) as made:
        yield made


def client(here: Bench, *middleware: Middleware) -> AsyncClient:
    return AsyncClient(here.url, here.namespace.name, middleware=middleware)


async def test_headers_of_the_producer_reach_plain_and_async_handlers(here):
    seen, around = Recording(), Recording()
    runs = Registry(middleware=[around])

    @runs.handler
    async def work(run: AsyncRun, n: int) -> str:
        return tenant.get()

    @runs.handler
    def plain(run: Run, n: int) -> str:
        return tenant.get()

    tenant.set("acme")
    async with client(here, seen) as producer:
        handles = [await producer.enqueue("work", {"n": 1}, key="k", meta={"m": 1}, queue="default")]
        handles += await producer.enqueue_many([("plain", {"n": 2}), ("plain", {"n": 3})])
        worker, task = here.worker(runs)
        assert [await handle.result() for handle in handles] == ["acme"] * 3
        assert (await handles[0].view()).meta == {"m": 1}  # views do not show headers
    await here.end(worker, task)
    first = seen.calls[0][1]
    assert (first.kind, first.queue, first.inputs, first.meta, first.key) == (
        "work", "default", {"n": 1}, {"m": 1}, "k",
    )  # fmt: skip
    assert around.outcomes() == ["completed"] * 3
    entered = {info.kind: thread for word, info, thread in (c for c in around.calls if c[0] == "enter")}
    assert entered["work"] == threading.get_ident()
    assert entered["plain"] != threading.get_ident()


def test_plain_client_calls_its_middleware(valkey_server: Server, namespace: str):
    seen = Recording()
    with Client(valkey_server.url, namespace, middleware=[seen]) as producer:
        producer.enqueue("work")
        producer.schedule("often", "every 1h", "work")
    assert [call[0] for call in seen.calls] == ["enqueue"]  # a schedule enqueues its runs in a coordinator


def test_object_that_is_not_a_middleware_is_refused():
    with pytest.raises(BadOption, match="derive its class"):
        Client(middleware=[object()])  # type: ignore[list-item]
    with pytest.raises(BadOption, match="derive its class"):
        Registry(middleware=[object()])  # type: ignore[list-item]


async def test_runs_that_a_handler_enqueues_get_headers_of_the_registry(here):
    around = Recording()
    runs = Registry(middleware=[around])

    @runs.handler
    async def leaf(run: AsyncRun) -> str:
        return tenant.get()

    @runs.handler
    async def parent(run: AsyncRun) -> list[str]:
        joined = await run.gather("leaves", [leaf.inputs(), leaf.inputs()])
        other = await run.enqueue(leaf.inputs())
        async with client(here) as inside:
            third = await inside.enqueue("leaf")
            return [*joined, await inside.handle(other.id).result(), await third.result()]

    tenant.set("acme")
    async with client(here, Recording()) as producer:
        handle = await producer.enqueue("parent")
        worker, task = here.worker(runs)
        assert await handle.result() == ["acme"] * 4
    await here.end(worker, task)
    assert {run.parent for word, run in (c for c in around.calls if c[0] == "enqueue")} == {handle.id}


async def test_every_way_to_end_an_attempt_is_told(here):
    around = Recording()
    runs = Registry(middleware=[around])

    @runs.handler
    async def fails(run: AsyncRun) -> None:
        raise ValueError("no")

    @runs.handler
    async def later(run: AsyncRun) -> None:
        raise RetryLater(after=3600)

    @runs.handler
    async def sleeps(run: AsyncRun) -> None:
        await run.sleep(3600)

    @runs.handler
    async def needs(run: AsyncRun, what: str) -> None: ...

    @runs.handler
    async def hangs(run: AsyncRun) -> None:
        async for _ in run.loop(limit=1_000_000):
            await asyncio.sleep(0.01)  # the work of a turn

    worker, task = here.worker(runs)
    for kind, status in (("fails", "failed"), ("later", "delayed"), ("sleeps", "waiting"), ("needs", "delayed")):
        await here.until(await here.enqueue(kind), status)
    cancelled = await here.enqueue("hangs")
    await performing(worker)
    await here.cancel(cancelled)
    await here.until(cancelled, "cancelled")
    released = await here.enqueue("hangs")
    await performing(worker)
    await here.end(worker, task)
    assert here.status(released) == "queued"
    told = {(ending.attempt.kind, ending.outcome): ending for ending in around.endings}
    assert set(told) == {
        ("fails", "failed"), ("later", "retried"), ("sleeps", "waiting"), ("needs", "rejected"), ("hangs", "cancelled"),
        ("hangs", "released"),
    }  # fmt: skip
    assert repr(told["fails", "failed"].error) == "ValueError('no')"
    assert told["fails", "failed"].status == "failed"
    assert told["hangs", "released"].status is None


async def test_lost_attempt_is_told_as_lost(here):
    around, go = Recording(), asyncio.Event()
    runs = Registry(middleware=[around])

    @runs.handler
    async def work(run: AsyncRun) -> int:
        if run.attempt == 1:
            await go.wait()
        return run.attempt

    first, task = here.worker(runs)
    id = await here.enqueue("work")
    await performing(first)
    await here.abandon(first)
    second, other = here.worker(runs)
    await here.until(id, "completed")
    go.set()
    await here.end(first, task)
    await here.end(second, other)
    assert sorted(around.outcomes()) == ["completed", "lost"]
    resumed = next(ending.attempt for ending in around.endings if ending.outcome == "completed")
    assert (resumed.cause, resumed.attempt) == ("recover", 2)
    assert resumed.previous


@pytest.mark.parametrize(
    "where", ["on_enqueue", "selects", "around_attempt", "enter", "exit", "around_step", "on_ending"]
)
async def test_broken_middleware_is_logged_and_changes_no_outcome(here, caplog, where):
    inner = Recording()
    broken = Broken(where)
    runs = Registry(middleware=[broken, inner])

    @runs.handler
    async def work(run: AsyncRun) -> str:
        return await run.phase("think", lambda: "fine")

    @runs.handler
    def plain(run: Run) -> str:
        return run.phase("think", lambda: "fine")

    @runs.handler
    async def fails(run: AsyncRun) -> str:
        raise ValueError("no")

    worker, task = here.worker(runs)
    with caplog.at_level(logging.ERROR, "coordinator.middleware"):
        async with client(here, broken, inner) as producer:
            handles = [await producer.enqueue(kind) for kind in ("work", "plain", "fails")]
            assert [await handle.result() for handle in handles[:2]] == ["fine", "fine"]
            await here.until(handles[2].id, "failed")
            await here.end(worker, task)
    assert sorted(inner.outcomes()) == ["completed", "completed", "failed"]
    logged = [record.getMessage() for record in caplog.records if record.name == "coordinator.middleware"]
    assert logged
    assert all("middleware Broken failed" in line for line in logged)
    if where == "on_enqueue":
        assert all("half" not in call[1].headers for call in inner.calls if call[0] == "enqueue")


async def test_steps_of_plain_and_async_handlers_are_seen(here):
    class Steps(Middleware):
        def __init__(self) -> None:
            self.seen: list[tuple[str, str, str]] = []

        @contextmanager
        def around_step(self, step: StepInfo) -> Iterator[None]:
            yield
            self.seen.append((step.attempt.kind, step.what, step.name))

    around = Steps()
    runs = Registry(middleware=[around])

    @runs.handler(throttle=0)
    async def work(run: AsyncRun) -> None:
        await run.phase("think", int)
        await run.phase("think more", int)
        await run.sleep(0.01)
        await run.receive("a", "b", timeout=0, default=None)

    @runs.handler(throttle=0)
    def plain(run: Run) -> None:
        run.phase("think", int)
        run.sleep(0.01)
        run.receive("a", timeout=0, default=None)

    worker, task = here.worker(runs)
    for kind in ("work", "plain"):
        await here.until(await here.enqueue(kind), "completed")
    await here.end(worker, task)
    steps = [step for step in around.seen if step[1] != "save"]
    assert steps == [
        ("work", "phase", "think"), ("work", "phase", "think more"), ("work", "sleep", ""), ("work", "receive", "a, b"),
        ("plain", "phase", "think"), ("plain", "sleep", ""), ("plain", "receive", "a"),
    ]  # fmt: skip
    assert {step[0] for step in around.seen if step[1] == "save"} == {"work", "plain"}


async def test_effects_and_spending_are_seen(here):
    class Seen(Middleware):
        def __init__(self) -> None:
            self.steps: list[tuple[str, str]] = []
            self.endings: list[tuple[str, Spending, str]] = []

        @contextmanager
        def around_step(self, step: StepInfo) -> Iterator[None]:
            yield
            if step.what != "save":
                self.steps.append((step.what, step.name))

        def on_ending(self, ending: AttemptEnding) -> None:
            self.endings.append((ending.attempt.kind, ending.spent, type(ending.error).__name__))

    seen = Seen()
    runs = Registry(middleware=[seen])

    @runs.handler
    async def work(run: AsyncRun) -> None:
        for _ in range(2):  # the second call returns the stored output
            await run.once("charge", int)
        run.spend(usd=0.5, requests=1)

    @runs.handler(budget=Budget(tokens=10))
    def plain(run: Run) -> None:
        run.once("mail", int)
        run.spend(tokens=11)
        run.once("never", int)

    @runs.handler
    async def frugal(run: AsyncRun) -> None: ...

    worker, task = here.worker(runs)
    for kind, status in (("work", "completed"), ("plain", "failed"), ("frugal", "completed")):
        await here.until(await here.enqueue(kind), status)
    await here.end(worker, task)
    assert seen.steps == [("once", "charge"), ("once", "mail")]
    assert seen.endings == [
        ("work", Spending(0.5, 0, 1), "NoneType"),
        ("plain", Spending(0.0, 11, 0), "BudgetExceeded"),
        ("frugal", Spending(0.0, 0, 0), "NoneType"),
    ]


async def test_middleware_that_leaves_out_a_run_is_not_called_for_it(here):
    chosen: list[str] = []

    class Choosy(Recording):
        def selects(self, run: str) -> bool:
            return run in chosen

    some, every = Choosy(), Recording()
    runs = Registry(middleware=[some, every])

    @runs.handler
    async def work(run: AsyncRun) -> None: ...

    ids = [await here.enqueue("work") for _ in range(4)]
    chosen += ids[1:3]
    worker, task = here.worker(runs)
    for id in ids:
        await here.until(id, "completed")
    await here.end(worker, task)
    assert {ending.attempt.run for ending in some.endings} == set(chosen)
    assert {call[1].run for call in some.calls if call[0] == "enter"} == set(chosen)
    assert {ending.attempt.run for ending in every.endings} == set(ids)


async def test_headers_that_cannot_be_stored_are_left_out(here, caplog):
    class Wrong(Middleware):
        def on_enqueue(self, run: EnqueueInfo) -> None:
            run.headers["large"] = "x" * 10_000

    class Odd(Middleware):
        def on_enqueue(self, run: EnqueueInfo) -> None:
            run.headers["number"] = 7  # type: ignore[assignment]

    around = Recording()
    runs = Registry(middleware=[around])

    @runs.handler
    async def work(run: AsyncRun) -> None: ...

    worker, task = here.worker(runs)
    async with client(here, Wrong(), Recording(), Odd()) as producer:
        await (await producer.enqueue("work")).result()
    await here.end(worker, task)
    assert around.endings[0].attempt.headers == {"tenant": "nobody"}
    assert len(caplog.records) == 2


async def test_run_of_an_older_producer_has_no_headers(here):
    around = Recording()
    runs = Registry(middleware=[around])

    @runs.handler
    async def work(run: AsyncRun) -> None: ...

    worker, task = here.worker(runs)
    ids = [await here.enqueue("work", spec=encode([{}, {}, extra], "spec")) for extra in ({}, {"headers": [1]})]
    for id in ids:
        await here.until(id, "completed")
    await here.end(worker, task)
    assert [ending.attempt.headers for ending in around.endings] == [{}, {}]


async def test_merged_registries_keep_their_own_middleware(here):
    one, other = Recording(), Recording()
    first, second = Registry(middleware=[one]), Registry(middleware=[other])

    @first.handler
    async def a(run: AsyncRun) -> None: ...

    @second.handler
    async def b(run: AsyncRun) -> None: ...

    worker, task = here.worker(Registry.merged(first, second))
    for kind in ("a", "b", "b"):
        await here.until(await here.enqueue(kind), "completed")
    await here.end(worker, task)
    assert [ending.attempt.kind for ending in one.endings] == ["a"]
    assert [ending.attempt.kind for ending in other.endings] == ["b", "b"]


async def test_end_of_a_worker_is_told_once_before_the_lifespan_closes(here, caplog):
    calls: list[str] = []

    class Ending(Recording):
        def on_ending(self, ending: AttemptEnding) -> None:
            calls.append(ending.outcome)

        def on_worker_end(self) -> None:
            calls.append("worker")
            raise ValueError("a broken middleware")

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield
        calls.append("lifespan")

    runs = Registry(middleware=[Ending()], lifespan=lifespan)

    @runs.handler
    async def one(run: AsyncRun) -> None: ...

    @runs.handler
    async def other(run: AsyncRun) -> None:
        async for _ in run.loop(limit=1_000_000):
            await asyncio.sleep(0.01)  # the work of a turn

    worker, task = here.worker(runs)
    await here.until(await here.enqueue("one"), "completed")
    await here.enqueue("other")
    await performing(worker)
    assert await here.end(worker, task) == 0
    assert calls == ["completed", "released", "worker", "lifespan"]
    assert "Ending failed in on_worker_end" in caplog.text


def test_selection_of_a_subclass_counts():
    class Half(SamplingMiddleware):
        limit = CHECKSUMS

    class Nothing(Half):
        def selects(self, run: str) -> bool:
            return False

    assert MiddlewareChain([Half()]).of_runs(["a", "b"]).keys() == {"a", "b"}
    assert MiddlewareChain([Nothing()]).of_runs(["a", "b"]) == {}


def test_each_run_of_a_claim_has_the_middleware_of_its_kind():
    class Half(SamplingMiddleware):
        limit = CHECKSUMS // 2

    def of_claim(**chains: MiddlewareChain) -> dict[str, tuple[Middleware, ...]]:
        found = ClaimedMiddleware(chains, 2).of([(claimed(id), handlers[id in odd]) for id in ids])
        return {id: chain.members for id, chain in found.items()}

    def claimed(id: str) -> Claimed:
        return Claimed(id, "1-2-w1", "default:one@1", b"", "", "", "", None, False)

    runs = Registry()

    @runs.handler
    async def one(run: AsyncRun) -> None: ...

    @runs.handler
    async def other(run: AsyncRun) -> None: ...

    handlers = [runs.handlers["one"], runs.handlers["other"]]
    half, every = Half(), Middleware()
    ids = [f"run-{number}" for number in range(100)]
    odd, sampled = set(ids[1::2]), {id for id in ids if half.selects(id)}
    assert 30 < len(sampled) < 70
    assert of_claim() == {}
    shared = MiddlewareChain([half])
    assert of_claim(one=shared, other=shared) == {id: (half,) for id in ids if id in sampled}
    assert of_claim(other=shared) == {id: (half,) for id in ids if id in sampled & odd}
    both = MiddlewareChain([half, every])
    assert of_claim(one=both, other=both) == {id: ((half, every) if id in sampled else (every,)) for id in ids}
    assert of_claim(one=both, other=shared) == {
        id: ((half,) if id in odd else (half, every)) if id in sampled else (every,)
        for id in ids
        if id in sampled or id not in odd
    }
