"""The run object of a handler, without a server: turns, phases, cuts, and where a stop is raised. For sync and async handlers."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime
from typing import Any

import pytest

from coordinator.errors import NotPlain, Refused
from coordinator.model.enqueue import Inputs
from coordinator.model.policies.budget import Amount
from coordinator.model.run import Note
from coordinator.store.plans.attempts import Collected, Condition, Received
from coordinator.store.plans.clients import NewRun
from workers.handlers.async_run import AsyncRun
from workers.handlers.checkpoint.draft import Cut, Draft
from workers.handlers.facts import Facts, Stopped
from workers.handlers.operations.children import Child
from workers.handlers.operations.enqueues import Enqueued
from workers.handlers.operations.limits import OpenCall
from workers.handlers.run import Run


class Backing:
    """A backing that accepts every cut. The awaits of a sync run go through its event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stopping: Stopped | None = None
        self.delivered = False
        self.loop = loop
        self.threads: Executor | None = None
        self.cuts: list[Cut] = []
        self.flushed: list[Cut] = []
        self.notes: list[Note] = []
        self.events: list[tuple[bytes, bytes]] = []
        self.waits = 0

    def offer(self, cut: Cut) -> None:
        self.cuts.append(cut)

    async def flush(self, cut: Cut, may_drain: Callable[[], bool]) -> None:
        self.cuts.append(cut)
        self.flushed.append(cut)

    async def wait_until_confirmed(self, may_drain: Callable[[], bool]) -> None:
        self.waits += 1

    def may_call(self) -> bool:
        return True

    def check_wait(self, cut: Callable[[], Cut]) -> None:
        return

    life = 1

    def start_lingering(self, cut: Callable[[], Cut]) -> None:
        return

    def check_task(self) -> None:
        return

    def make_run_id(self, key: str) -> str:
        raise NotImplementedError

    async def enqueue(
        self, run: NewRun, inputs: Inputs[Any], options: Mapping[str, Any], may_drain: Callable[[], bool]
    ) -> Enqueued | None:
        raise NotImplementedError

    def call_at_end(self, close: Callable[[], object]) -> None:
        raise NotImplementedError

    def make_child_base(self) -> str:
        raise NotImplementedError

    async def join_children(self, base: str, count: int, old: str) -> None:
        raise NotImplementedError

    async def drop_steps(self, bases: Sequence[str]) -> bool:
        raise NotImplementedError

    async def spawn(self, children: Sequence[Child]) -> None:
        raise NotImplementedError

    async def collect(self, base: str, by: str, start: int) -> Collected:
        raise NotImplementedError

    async def look(
        self, condition: Condition, timeout_ms: int | None, may_drain: Callable[[], bool] = lambda: True
    ) -> Received:
        raise NotImplementedError

    async def linger(self, condition: Condition, now: int) -> None:
        raise NotImplementedError

    async def acquire(self, call: OpenCall, may_drain: Callable[[], bool]) -> None:
        raise NotImplementedError

    def finish(self, call: OpenCall, cost: int | None) -> None:
        raise NotImplementedError

    def back_off(self, call: OpenCall, seconds: float) -> None:
        raise NotImplementedError

    def set_spend(self, amount: Amount) -> None:
        raise NotImplementedError

    async def report_spend(self, amount: Amount) -> Amount:
        raise NotImplementedError

    def set_note(self, note: Note) -> None:
        self.notes.append(note)

    def emit(self, letter: bytes, data: bytes) -> int:
        self.events.append((letter, data))
        return len(self.events)

    def raise_stop(self, may_drain: Callable[[], bool]) -> None:
        if self.stopping is not None and not self.delivered and (self.stopping.why != "drain" or may_drain()):
            self.delivered = True
            raise self.stopping


FACTS = Facts("id", "kind", {"a": 1}, {"m": 2}, 1, "17-3-w1", None)
Handler = Callable[[Any], Any]


class Bench:
    """One run over several attempts, as an async or a sync handler sees it."""

    def __init__(self, plain: bool) -> None:
        self.plain = plain
        self.draft = Draft()
        self.backing = Backing(asyncio.get_running_loop())

    async def attempt(self, plain: Callable[[Run[Any]], Any], in_async: Callable[[AsyncRun[Any]], Any]) -> Any:
        if self.plain:
            return await asyncio.to_thread(plain, Run(FACTS, None, self.draft, self.backing))
        return await in_async(AsyncRun(FACTS, None, self.draft, self.backing))

    def resume(self) -> None:
        """Start the next attempt from the last cut alone."""
        cut = self.backing.cuts[-1]
        draft = Draft(iteration=cut.iteration, phases=dict(cut.phases))
        draft.messages = self.draft.messages
        self.draft, self.backing = draft, Backing(asyncio.get_running_loop())

    def stop(self, why: Any = "drain") -> None:
        self.backing.stopping = Stopped(why)


@pytest.fixture(params=[False, True], ids=["async", "plain"])
async def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param)


# ---- turns


async def test_loop_continues_at_the_saved_turn_and_ends_at_its_limit(bench):
    turns: list[int] = []

    def plain(run: Run[Any]) -> None:
        for turn in run.loop(limit=5):
            turns.append(turn)
            if turn == 2 and len(turns) == 3:
                raise ValueError("cut short")
            assert run.iteration == turn

    async def in_async(run: AsyncRun[Any]) -> None:
        async for turn in run.loop(limit=5):
            turns.append(turn)
            if turn == 2 and len(turns) == 3:
                raise ValueError("cut short")
            assert run.iteration == turn

    with pytest.raises(ValueError, match="cut short"):
        await bench.attempt(plain, in_async)
    assert [cut.iteration for cut in bench.backing.cuts] == [1, 2]
    bench.resume()
    await bench.attempt(plain, in_async)
    assert turns == [0, 1, 2, 2, 3, 4]
    assert bench.draft.iteration == 5
    bench.resume()
    await bench.attempt(plain, in_async)
    assert len(turns) == 6


async def test_run_has_one_loop_and_none_inside_a_phase(bench):
    def twice(run: Run[Any]) -> None:
        for _ in run.loop(1):
            pass
        for _ in run.loop(1):
            pass

    async def twice_async(run: AsyncRun[Any]) -> None:
        async for _ in run.loop(1):
            pass
        async for _ in run.loop(1):
            pass

    with pytest.raises(Refused, match="one loop"):
        await bench.attempt(twice, twice_async)

    bench.draft, bench.backing.delivered = Draft(), False

    def inside(run: Run[Any]) -> None:
        run.phase("p", lambda: list(run.loop(1)))

    async def inside_async(run: AsyncRun[Any]) -> None:
        async def body() -> None:
            async for _ in run.loop(1):
                pass

        await run.phase("p", body)

    with pytest.raises(Refused, match="inside a phase"):
        await bench.attempt(inside, inside_async)


# ---- phases


VALUES = [None, (1, (2, "x")), [1, (2,)], {"k": b"\x00", 3: 1.5}, datetime(2020, 1, 1, tzinfo=UTC), "text", True]


@pytest.mark.parametrize("value", VALUES, ids=repr)
async def test_output_is_the_same_on_the_first_attempt_and_after_a_resume(bench, value):
    ran: list[int] = []

    def work() -> Any:
        ran.append(1)
        return value

    async def work_async() -> Any:
        return work()

    for _ in range(2):
        out = await bench.attempt(lambda run: run.phase("p", work), lambda run: run.phase("p", work_async))
        assert out == value
        assert type(out) is type(value)
        assert repr(out) == repr(value)
        bench.backing.cuts.append(bench.draft.cut())
        bench.resume()
    assert ran == [1]


async def test_phases_of_equal_names_are_identified_by_order(bench):
    def plain(run: Run[Any]) -> list[int]:
        return [run.phase("p", int, n) for n in range(3)]

    async def in_async(run: AsyncRun[Any]) -> list[int]:
        return [await run.phase("p", int, n) for n in range(3)]

    assert await bench.attempt(plain, in_async) == [0, 1, 2]
    bench.resume()
    assert await bench.attempt(
        lambda run: [run.phase("p", int, 9) for _ in range(4)],
        lambda run: _gathered([functools.partial(run.phase, "p", int, 9) for _ in range(4)]),
    ) == [0, 1, 2, 9]


async def _gathered(calls: list[Callable[[], Any]]) -> list[Any]:
    return [await call() for call in calls]


async def test_concurrent_phases_of_one_name_are_refused():
    bench = Bench(plain=False)
    run: AsyncRun[Any] = AsyncRun(FACTS, None, bench.draft, bench.backing)
    first, second = await asyncio.gather(
        run.phase("p", asyncio.sleep, 0), run.phase("p", asyncio.sleep, 0), return_exceptions=True
    )
    assert first is None
    assert isinstance(second, Refused)
    assert list(await asyncio.gather(run.phase("a", int, 1), run.phase("b", int, 2))) == [1, 2]


async def test_phases_of_a_turn_are_saved_with_its_cut_and_never_used_for_another_turn(bench):
    ran: list[int] = []

    def work(n: int) -> int:
        ran.append(n)
        return n

    def plain(run: Run[Any]) -> list[int]:
        found = []
        for turn in run.loop(3):
            found.append(run.phase("tool", work, turn))
            if turn == 1 and ran.count(1) == 1 and len(found) == 2:
                raise ValueError("cut short")
        return found

    async def in_async(run: AsyncRun[Any]) -> list[int]:
        found = []
        async for turn in run.loop(3):
            found.append(await run.phase("tool", work, turn))
            if turn == 1 and ran.count(1) == 1 and len(found) == 2:
                raise ValueError("cut short")
        return found

    with pytest.raises(ValueError, match="cut short"):
        await bench.attempt(plain, in_async)
    assert list(bench.backing.cuts[-1].phases) == ["phase:1:tool#0"]
    bench.resume()
    assert await bench.attempt(plain, in_async) == [1, 2]
    assert ran == [0, 1, 2], "the finished phase of the turn that was cut short did not run again"
    assert bench.draft.phases == {}


async def test_output_that_cannot_be_stored_is_refused_at_once_with_its_path(bench):
    def outline() -> Any:
        return [1, 2, {"url": {3}}]

    with pytest.raises(NotPlain, match=r"phase 'outline'\[2\].*url.* is a set"):
        await bench.attempt(lambda run: run.phase("outline", outline), lambda run: run.phase("outline", outline))
    assert bench.draft.phases == {}
    assert await bench.attempt(lambda run: run.phase("outline", int), lambda run: run.phase("outline", int)) == 0


async def test_sync_function_of_an_async_handler_runs_in_a_thread_and_its_errors_propagate():

    bench = Bench(plain=False)
    run: AsyncRun[Any] = AsyncRun(FACTS, None, bench.draft, bench.backing)
    here = threading.get_ident()
    assert await run.phase("ident", threading.get_ident) != here
    with pytest.raises(RuntimeError, match="StopIteration"):
        async with asyncio.timeout(30):
            await run.phase("next", lambda: next(iter([])))
    with pytest.raises(ZeroDivisionError):
        await run.phase("zero", lambda: 1 / 0)

    async def coroutine(n: int) -> int:
        return n

    class Callable_:  # noqa: N801  # an object that is called, and answers with a coroutine
        async def __call__(self) -> int:
            return 3

    assert await run.phase("partial", functools.partial(coroutine, 1)) == 1
    assert await run.phase("lambda", lambda: coroutine(2)) == 2
    assert await run.phase("object", Callable_()) == 3


# ---- stops


async def _async(call: Callable[[], None]) -> None:
    call()


async def _turns(run: AsyncRun[Any]) -> list[int]:
    return [turn async for turn in run.loop(3)]


CUTS: dict[str, tuple[Handler, Handler]] = {
    "checkpoint": (lambda run: run.checkpoint(), lambda run: _async(run.checkpoint)),
    "flush": (lambda run: run.flush(), lambda run: run.flush()),
    "phase": (lambda run: run.phase("p", int), lambda run: run.phase("p", int)),
    "loop": (lambda run: list(run.loop(3)), _turns),
}


@pytest.mark.parametrize("cut", CUTS)
async def test_stop_is_raised_once_at_every_kind_of_cut(bench, cut):
    plain, in_async = CUTS[cut]
    bench.stop()
    with pytest.raises(Stopped) as caught:
        await bench.attempt(plain, in_async)
    assert caught.value is bench.backing.stopping
    assert caught.value.why == "drain"
    assert bench.backing.delivered
    bench.draft._seen.clear()
    await bench.attempt(plain, in_async)  # a handler that cleans up may still save


async def test_stop_during_a_phase_keeps_the_phase_output(bench):
    def work() -> int:
        bench.stop()
        return 7

    with pytest.raises(Stopped):
        await bench.attempt(lambda run: run.phase("p", work), lambda run: run.phase("p", work))
    assert list(bench.backing.cuts[-1].phases) == ["phase:-:p#0"]
    bench.resume()
    assert await bench.attempt(lambda run: run.phase("p", int), lambda run: run.phase("p", int)) == 7


async def test_stop_during_a_turn_is_raised_after_the_turns_cut(bench):
    def plain(run: Run[Any]) -> None:
        for _ in run.loop(3):
            bench.stop()

    async def in_async(run: AsyncRun[Any]) -> None:
        async for _ in run.loop(3):
            bench.stop()

    with pytest.raises(Stopped):
        await bench.attempt(plain, in_async)
    assert bench.backing.cuts[-1].iteration == 1


async def test_stop_while_waiting_for_the_lease_keeps_the_finished_phase(bench):
    """The lease comes into doubt during the phase. The stop is raised where the end of the phase waits for the lease."""

    async def wait_until_confirmed(may_drain: object) -> None:
        if bench.backing.cuts:
            raise Stopped("drain")

    bench.backing.wait_until_confirmed = wait_until_confirmed
    with pytest.raises(Stopped):
        await bench.attempt(lambda run: run.phase("p", int, 7), lambda run: run.phase("p", int, 7))
    assert list(bench.backing.flushed[-1].phases) == ["phase:-:p#0"]


async def test_code_without_cuts_can_check_for_a_stop(bench):
    bench.stop("cancel")

    def plain(run: Run[Any]) -> None:
        if run.stopping:
            raise run.stopping

    async def in_async(run: AsyncRun[Any]) -> None:
        plain(run)  # type: ignore[arg-type]

    with pytest.raises(Stopped, match="cancel"):
        await bench.attempt(plain, in_async)


def test_stop_is_neither_an_exception_nor_a_cancelled_error():
    assert not issubclass(Stopped, (Exception, asyncio.CancelledError))


# ---- state, facts, notes


async def test_state_must_be_a_dict(bench):
    run: Run[Any] = Run(FACTS, None, bench.draft, bench.backing)
    for value in ([1], None, "x"):
        with pytest.raises(Refused, match="must be a dict"):
            run.state = value  # type: ignore[assignment]
    run.state = {"x": 1}
    run.state["y"] = (2,)
    run.checkpoint()
    assert bench.backing.cuts[-1].state == bench.draft.cut().state
    run.state["z"] = {3}
    with pytest.raises(NotPlain, match=r"state.*z.* is a set"):
        run.checkpoint()


async def test_run_exposes_its_facts(bench):
    run: Run[Any] = Run(FACTS, "r", bench.draft, bench.backing)
    assert (run.id, run.kind, run.inputs, run.meta, run.attempt) == ("id", "kind", {"a": 1}, {"m": 2}, 1)
    assert (run.token, run.epoch, run.resources, run.resumed) == ("17-3-w1", 17, "r", None)


@pytest.mark.parametrize(
    ("given", "kept"), [((1, 2), (1, 2)), ((0.5, None), (0.5, None)), ((True, 2**80), (1.0, float(2**80)))]
)
async def test_note_is_limited_text_with_two_numbers(bench, given, kept):
    run: Run[Any] = Run(FACTS, None, bench.draft, bench.backing)
    run.note("x" * 5000 + "\n", *given)
    note = bench.backing.notes[-1]
    assert (len(note.text), note.done, note.total) == (1000, *kept)


async def test_note_that_cannot_be_stored_is_refused_at_the_call(bench):
    run: Run[Any] = Run(FACTS, None, bench.draft, bench.backing)
    with pytest.raises(Refused, match="done"):
        run.note("x", done=[1])  # type: ignore[arg-type]
    run.note("a \udc80 b")
    assert bench.backing.notes[-1].text == "a ? b"
