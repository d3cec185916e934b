"""Checkpoints for a program with its own executor: the guarantees of saves, endings and recovery."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from coordinator.errors import BadName, BadOption, NotPlain, Refused, ServerFull, TooLarge, Unreachable
from tests.waiting import eventually, wait_until
from workers import durable
from workers.durable import (
    AsyncCheckpointer,
    AsyncCheckpointerFactory,
    Checkpoint,
    Checkpointer,
    CheckpointerFactory,
    CheckpointStore,
    Fenced,
    Finish,
    Meta,
    Phase,
    Phases,
    begin,
    finalise,
    finalise_async,
    finish,
    recover,
    recover_async,
)
from workers.durable.save_pace import SavePace
from workers.durable.stores.memory_store import AsyncMemoryStore, MemoryStore
from workers.durable.stores.redis_store import AsyncRedisStore, RedisStore

META = Meta("r1")


class FakeClock:
    """A clock that only the test moves. It wakes sleeping threads."""

    def __init__(self) -> None:
        self._time = 1_000_000.0
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, asyncio.Future[None]]] = []
        self.sleepers = 0

    def now(self) -> float:
        return self._time

    def monotonic(self) -> float:
        return self._time

    def sleep(self, seconds: float) -> None:
        with self._changed:
            until = self._time + seconds
            self.sleepers += 1
            self._changed.wait_for(lambda: self._time >= until, timeout=60)
            self.sleepers -= 1

    async def asleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._time + seconds, future))
        self.sleepers += 1
        try:
            await future
        finally:
            self.sleepers -= 1

    def advance(self, seconds: float) -> None:
        """Advance the time as soon as a thread waits for it."""
        if not self._waiting:
            wait_until(lambda: self.sleepers, "somebody who waits for the window's end")
        with self._changed:
            self._time += seconds
            self._changed.notify_all()
        for until, future in self._waiting:
            if until <= self._time and not future.done():
                future.set_result(None)
        self._waiting = [(until, future) for until, future in self._waiting if not future.done()]

    def pass_by(self, seconds: float) -> None:
        """Advance the time, whether or not a thread waits for it."""
        with self._changed:
            self._time += seconds
            self._changed.notify_all()


@dataclass
class Recording:
    """A store that records its calls, and fails if the test says so."""

    inner: MemoryStore = field(default_factory=MemoryStore)
    saves: list[Checkpoint] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def save(self, checkpoint: Checkpoint) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.inner.save(checkpoint)
        self.saves.append(checkpoint)

    def load(self, run_id: str) -> Checkpoint | None:
        return self.inner.load(run_id)

    def delete(self, run_id: str) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.inner.delete(run_id)
        self.deleted.append(run_id)

    def list_interrupted(self) -> list[Checkpoint]:
        return self.inner.list_interrupted()

    @property
    def iterations(self) -> list[int]:
        return [one.iteration for one in self.saves]


class AsyncRecording:
    """The same in an event loop."""

    def __init__(self, store: Recording) -> None:
        self.store = store

    async def save(self, checkpoint: Checkpoint) -> None:
        self.store.save(checkpoint)

    async def load(self, run_id: str) -> Checkpoint | None:
        return self.store.load(run_id)

    async def delete(self, run_id: str) -> None:
        self.store.delete(run_id)

    async def list_interrupted(self) -> list[Checkpoint]:
        return self.store.list_interrupted()


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    clock = FakeClock()
    yield clock
    clock.pass_by(1e6)  # wake the threads that still sleep


@pytest.fixture
def store() -> Recording:
    return Recording()


@pytest.fixture
def checkpointer(store: Recording, clock: FakeClock) -> Checkpointer:
    return Checkpointer(store, META, throttle=10, clock=clock)


# ---- saving ------------------------------------------------------------------------------------------------------------


def test_completed_run_is_no_longer_a_recovery_candidate(store, checkpointer):
    checkpointer.save([{"role": "user", "content": "why?"}], iteration=1)
    (candidate,) = store.list_interrupted()
    assert (candidate.meta, candidate.iteration) == (META, 1)
    assert candidate.messages == [{"role": "user", "content": "why?"}]
    checkpointer.complete()
    assert store.list_interrupted() == []


def test_failed_run_is_no_longer_a_recovery_candidate(store, checkpointer):
    checkpointer.save()
    checkpointer.fail(RuntimeError("the model is gone"))
    assert store.list_interrupted() == []


def test_checkpoint_survives_a_shutdown_that_calls_neither_complete_nor_fail(store, checkpointer):
    checkpointer.save(["a"])
    del checkpointer
    assert [one.meta.run_id for one in store.list_interrupted()] == ["r1"]


def test_checkpoint_carries_its_attribution_and_save_time(store, clock):
    meta = Meta("r1", "a1", "Ada", "c1", "ch1", "g1", "why?", "large", "r0")
    Checkpointer(store, meta, clock=clock).save(state={"n": 1}, schema=2)
    (saved,) = store.saves
    assert (saved.meta, saved.state, saved.schema) == (meta, {"n": 1}, 2)
    assert saved.updated_at.timestamp() == clock.now()


def test_throttle_skips_saves_in_the_window_and_saves_the_newest_at_its_end(store, checkpointer, clock):
    for iteration in range(5):
        checkpointer.save(["m"] * iteration, iteration)
    assert store.iterations == [0], "the first goes at once"
    clock.advance(9.9)
    assert store.iterations == [0]
    clock.advance(0.2)
    wait_until(lambda: store.iterations == [0, 4], "the newest")
    assert store.saves[-1].messages == ["m"] * 4
    wait_until(lambda: not checkpointer._timer_running, "the end of the waiting")
    clock.pass_by(10)
    checkpointer.save(iteration=5)
    assert store.iterations == [0, 4, 5], "the window is over"


def test_window_starts_when_the_deferred_save_is_written(store, checkpointer, clock):
    checkpointer.save(iteration=0)
    checkpointer.save(iteration=1)
    clock.advance(10)
    wait_until(lambda: store.iterations == [0, 1], "the held one")
    wait_until(lambda: not checkpointer._timer_running, "the end of the waiting")
    checkpointer.save(iteration=2)
    clock.advance(9.9)
    assert store.iterations == [0, 1]
    clock.advance(0.1)
    wait_until(lambda: store.iterations == [0, 1, 2], "the next window's end")


def test_deferred_save_contains_what_was_passed_at_the_call(store, checkpointer, clock):
    checkpointer.save()
    messages = [{"content": "a"}]
    checkpointer.save(messages, iteration=1)
    messages.append({"content": "half a turn"})
    messages[0]["content"] = "edited"
    clock.advance(10)
    wait_until(lambda: store.iterations == [0, 1], "the held one")
    assert store.saves[-1].messages == [{"content": "a"}]


@pytest.mark.parametrize("window", [0, -1])
def test_without_a_window_every_call_saves(store, clock, window):
    checkpointer = Checkpointer(store, META, throttle=window, clock=clock)
    for iteration in range(5):
        checkpointer.save(iteration=iteration)
    assert store.iterations == [0, 1, 2, 3, 4]


def test_failed_save_is_not_lost_to_the_throttle(store, checkpointer):
    store.failures = [Unreachable("gone")]
    with pytest.raises(Unreachable):
        checkpointer.save(iteration=1)
    checkpointer.save(iteration=2)
    assert store.iterations == [2], "the clock advances only after a success"


def test_failed_save_is_retried_automatically_with_back_off(store, checkpointer, clock):
    store.failures = [Unreachable("gone"), ServerFull("full")]
    with pytest.raises(Unreachable):
        checkpointer.save(iteration=1)
    clock.advance(0.2)
    wait_until(lambda: not store.failures, "the second try")
    clock.advance(0.3)
    assert store.iterations == []
    clock.advance(0.1)
    wait_until(lambda: store.iterations == [1], "the third try")


def test_deferred_save_that_fails_is_retried_and_logged(store, checkpointer, clock, caplog):
    checkpointer.save(iteration=0)
    checkpointer.save(iteration=1)
    store.failures = [Unreachable("gone")]
    clock.advance(10)
    wait_until(lambda: not store.failures, "the first try")
    checkpointer.save(iteration=2)
    wait_until(lambda: store.iterations == [0, 2], "the newest, which found the window over")
    assert "record not saved: run r1: gone" in caplog.text


def test_value_that_cannot_be_stored_is_refused_at_once_even_inside_the_window(store, checkpointer):
    checkpointer.save(iteration=0)
    with pytest.raises(NotPlain, match=r"messages\[0\]"):
        checkpointer.save([object()])


def test_checkpoint_that_is_too_large_is_not_retried(store, checkpointer):
    store.failures = [TooLarge("too large")]
    with pytest.raises(TooLarge):
        checkpointer.save(iteration=1)
    assert not checkpointer._timer_running
    checkpointer.flush()
    assert store.saves == []


def test_flush_writes_the_deferred_save_at_once(store, checkpointer):
    checkpointer.save(iteration=0)
    checkpointer.save(iteration=1)
    checkpointer.flush()
    assert store.iterations == [0, 1]
    checkpointer.flush()
    assert store.iterations == [0, 1]


def test_deferred_save_is_dropped_after_the_run_ended(store, checkpointer, clock):
    checkpointer.save(iteration=0)
    checkpointer.save(iteration=1)
    wait_until(lambda: clock.sleepers, "somebody who waits for the window's end")
    checkpointer.complete()
    clock.advance(100)
    wait_until(lambda: not checkpointer._timer_running, "the end of the waiting")
    assert store.iterations == [0]
    assert store.list_interrupted() == []
    with pytest.raises(Refused, match="run r1 has completed"):
        checkpointer.save()


def test_failed_ending_can_be_retried(store, checkpointer):
    checkpointer.save()
    store.failures = [Unreachable("gone")]
    with pytest.raises(Unreachable):
        checkpointer.complete()
    checkpointer.complete()
    assert store.list_interrupted() == []


def test_ending_waits_for_a_save_in_flight(clock):
    entered, go_on, order = threading.Event(), threading.Event(), []

    class Slow(Recording):
        def save(self, checkpoint: Checkpoint) -> None:
            entered.set()
            go_on.wait(30)
            order.append("save")

        def delete(self, run_id: str) -> None:
            order.append("delete")

    checkpointer = Checkpointer(Slow(), META, clock=clock)
    saving = threading.Thread(target=checkpointer.save)
    saving.start()
    entered.wait(30)
    ending = threading.Thread(target=checkpointer.complete)
    ending.start()
    go_on.set()
    saving.join()
    ending.join()
    assert order == ["save", "delete"]


def test_save_that_fails_after_the_ending_is_not_retried(clock):
    entered, go_on = threading.Event(), threading.Event()

    class Slow(Recording):
        def save(self, checkpoint: Checkpoint) -> None:
            entered.set()
            go_on.wait(30)
            raise Unreachable("gone")

    checkpointer = Checkpointer(Slow(), META, clock=clock)

    def save() -> None:
        with suppress(Unreachable):
            checkpointer.save()

    saving = threading.Thread(target=save)
    saving.start()
    entered.wait(30)
    ending = threading.Thread(target=checkpointer.complete)
    ending.start()
    wait_until(lambda: checkpointer._pace._ended, "the end")
    go_on.set()
    saving.join()
    ending.join()
    assert checkpointer._pace.wait() is None
    assert not checkpointer._timer_running


def test_failed_save_does_not_replace_a_newer_one(clock):
    pace = SavePace(META, 10, clock)
    pace.submit([], 1, (), {}, 1)
    begun = pace.begin()
    assert begun is not None
    pace.submit([], 2, (), {}, 1)
    pace.failed(begun[0], Unreachable("gone"))
    newest = pace.begin()
    assert newest is not None
    assert newest[0].iteration == 2


def test_handle_that_lost_its_run_raises_at_every_save(store, checkpointer, clock):
    store.failures = [Fenced("taken over")]
    with pytest.raises(Fenced):
        checkpointer.save(iteration=0)
    clock.pass_by(100)
    with pytest.raises(Fenced):
        checkpointer.save(iteration=1)
    assert store.saves == []


def test_phase_boundary_does_not_wait_for_the_window(store, checkpointer):
    checkpointer.save(iteration=0)
    checkpointer.save(phases=[Phase("plan", "p")])
    checkpointer.save(iteration=1, phases=[Phase("plan", "p")])
    checkpointer.save(iteration=1, phases=[Phase("plan", "p"), Phase("act", "a")])
    assert [[phase.name for phase in one.phases] for one in store.saves] == [[], ["plan"], ["plan", "act"]]


# ---- no store ----------------------------------------------------------------------------------------------------------


async def test_without_a_store_every_call_succeeds_and_does_nothing():
    checkpointer, other = Checkpointer(None, META), AsyncCheckpointer(None, META)
    for _ in range(2):
        checkpointer.save([object()])
        await other.save([object()])
        for call in (checkpointer.flush, checkpointer.complete, checkpointer.fail):
            call()
        for wait in (other.flush, other.complete, other.fail):
            await wait()
    assert begin(CheckpointerFactory(None), META) is not None


# ---- in an event loop --------------------------------------------------------------------------------------------------


async def test_in_an_event_loop_the_newest_save_is_written_at_the_end_of_the_window(store, clock):
    checkpointer = AsyncCheckpointer(AsyncRecording(store), META, throttle=10, clock=clock)
    for iteration in range(5):
        await checkpointer.save(iteration=iteration)
    assert store.iterations == [0]
    await eventually(lambda: clock.sleepers, "the wait")
    clock.advance(10)
    await eventually(lambda: store.iterations == [0, 4], "the newest")
    await checkpointer.complete()
    assert store.list_interrupted() == []
    with pytest.raises(Refused, match="has completed"):
        await checkpointer.save()


async def test_in_an_event_loop_a_failed_save_is_retried_automatically(store, clock, caplog):
    checkpointer = AsyncCheckpointer(AsyncRecording(store), META, throttle=10, clock=clock)
    store.failures = [Unreachable("gone"), Unreachable("still gone")]
    with pytest.raises(Unreachable):
        await checkpointer.save(iteration=1)
    await eventually(lambda: clock.sleepers, "the back-off")
    clock.advance(0.2)
    await eventually(lambda: not store.failures and clock.sleepers, "the second try")
    assert "still gone" in caplog.text
    clock.advance(0.4)
    await eventually(lambda: store.iterations == [1], "the third try")


async def test_in_an_event_loop_a_cancelled_save_is_still_pending_at_shutdown(store, clock):
    class Stuck(AsyncRecording):
        async def save(self, checkpoint: Checkpoint) -> None:
            if not stuck.is_set():
                stuck.set()
                await asyncio.Event().wait()
            await super().save(checkpoint)

    stuck = asyncio.Event()
    checkpointer = AsyncCheckpointer(Stuck(store), META, throttle=10, clock=clock)
    task = asyncio.create_task(checkpointer.save(iteration=3))
    await stuck.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert await finalise_async(checkpointer, asyncio.CancelledError(), stopping=True) is Finish.LEAVE
    assert store.iterations == [3]


async def test_in_an_event_loop_the_run_ends_even_if_it_is_cancelled_again(store, clock):
    entered, go_on = asyncio.Event(), asyncio.Event()

    class Slow(AsyncRecording):
        async def delete(self, run_id: str) -> None:
            entered.set()
            await go_on.wait()
            await super().delete(run_id)

    checkpointer = AsyncCheckpointer(Slow(store), META, clock=clock)
    await checkpointer.save()
    task = asyncio.create_task(finalise_async(checkpointer))
    await entered.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    go_on.set()
    await eventually(lambda: store.deleted == ["r1"], "the end")


# ---- beginning ---------------------------------------------------------------------------------------------------------


def test_factory_gives_each_run_its_own_handle(store, clock):
    factory = CheckpointerFactory(store, throttle=10, clock=clock)
    one, two = begin(factory, Meta("r1")), begin(factory, Meta("r2"))
    assert one is not None
    assert two is not None
    one.save(iteration=1)
    two.save(iteration=2)
    assert [(saved.meta.run_id, saved.iteration) for saved in store.saves] == [("r1", 1), ("r2", 2)]


def test_run_that_is_not_durable_gets_no_handle(store):
    factory = CheckpointerFactory(store, durable=lambda meta: meta.model_tier == "large")
    assert begin(factory, Meta("r1")) is None
    assert begin(factory, Meta("r2", model_tier="large")) is not None
    assert begin(None, Meta("r3")) is None


@pytest.mark.parametrize("made", [CheckpointerFactory, AsyncCheckpointerFactory])
def test_begin_that_fails_is_logged_and_the_run_continues_without_checkpoints(made, caplog):
    def raises(meta: Meta) -> bool:
        raise RuntimeError("the table is locked")

    with caplog.at_level(logging.WARNING):
        assert begin(made(None, durable=raises), META) is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "run is not durable" in record.message
    assert "the table is locked" in caplog.text


def test_existing_handle_is_used_without_calling_begin(checkpointer):
    def never(meta: Meta) -> bool:
        raise AssertionError

    assert begin(CheckpointerFactory(None, durable=never), META, existing=checkpointer) is checkpointer


def test_metadata_is_taken_from_the_mapping_of_the_executor():
    info = {"run_id": "r1", "caller_id": 7, "guild_id": None, "inputs": {"prompt": "why?"}, "more": object()}
    assert Meta.of(info) == Meta("r1", caller_id="7", prompt="why?")
    assert Meta.of({"run_id": "r1", "prompt": "given", "inputs": {"prompt": 3}}).prompt == "given"
    assert Meta.of(META) is META
    with pytest.raises(BadOption, match="run_id"):
        Meta.of({})
    with pytest.raises(BadName):
        Meta.of({"run_id": ""})


# ---- ending ------------------------------------------------------------------------------------------------------------

MATRIX = [
    (None, False, Finish.COMPLETE),
    (None, True, Finish.COMPLETE),
    (RuntimeError("stopped"), True, Finish.LEAVE),
    (KeyboardInterrupt(), True, Finish.LEAVE),
    (RuntimeError("the model is gone"), False, Finish.FAIL),
    (TimeoutError("its own deadline"), False, Finish.FAIL),
    (asyncio.CancelledError("a caller"), False, Finish.FAIL),
]


@pytest.mark.parametrize(("error", "stopping", "how"), MATRIX)
async def test_success_completes_shutdown_keeps_the_checkpoint_and_other_endings_fail(
    store, clock, error, stopping, how
):
    assert finish(error, stopping=stopping) is how
    checkpointer = Checkpointer(store, META, throttle=10, clock=clock)
    other = AsyncCheckpointer(AsyncRecording(store), Meta("r2"), throttle=10, clock=clock)
    for iteration in (1, 2):
        checkpointer.save(iteration=iteration)
        await other.save(iteration=iteration)
    assert finalise(checkpointer, error, stopping=stopping) is how
    assert await finalise_async(other, error, stopping=stopping) is how
    left = [(one.meta.run_id, one.iteration) for one in store.list_interrupted()]
    assert left == ([("r1", 2), ("r2", 2)] if how is Finish.LEAVE else []), "with what was held"


@pytest.mark.parametrize(("error", "stopping", "how"), MATRIX)
async def test_store_error_does_not_hide_how_the_run_ended(store, clock, caplog, error, stopping, how):
    checkpointer = Checkpointer(store, META, throttle=10, clock=clock)
    other = AsyncCheckpointer(AsyncRecording(store), Meta("r2"), throttle=10, clock=clock)
    for iteration in (1, 2):
        checkpointer.save(iteration=iteration)
        await other.save(iteration=iteration)
    store.failures = [Unreachable("gone"), Unreachable("gone")]
    assert finalise(checkpointer, error, stopping=stopping) is how
    assert await finalise_async(other, error, stopping=stopping) is how
    for run in ("r1", "r2"):
        assert f"record not finalised: run {run} ({how})" in caplog.text


async def test_run_without_a_handle_is_finalised_too():
    assert finalise(None, RuntimeError()) is Finish.FAIL
    assert await finalise_async(None) is Finish.COMPLETE


# ---- phases ------------------------------------------------------------------------------------------------------------


def test_in_a_fresh_run_both_phases_of_one_name_must_run():
    phases = Phases()
    assert phases.earlier("draft") is None
    phases.complete("draft", 1)
    assert phases.earlier("draft") is None
    phases.complete("draft", 2)
    assert phases.completed == (Phase("draft", 1), Phase("draft", 2))


def test_resumed_run_skips_completed_phases_and_matches_equal_names_by_order():
    phases = Phases((Phase("draft", 1), Phase("check", "ok"), Phase("draft", 2)))
    assert [phases.earlier(name) for name in ("draft", "check", "draft", "draft", "publish")] == [
        Phase("draft", 1),
        Phase("check", "ok"),
        Phase("draft", 2),
        None,
        None,
    ]


def test_resumed_run_that_is_interrupted_again_keeps_phases_it_had_not_reached():
    phases = Phases((Phase("a", 1), Phase("b", 2), Phase("c", 3)))
    phases.earlier("a")
    assert phases.completed == (Phase("a", 1), Phase("b", 2), Phase("c", 3))


# ---- a program with its own executor -----------------------------------------------------------------------------------


class Stop(Exception):
    """The program shuts down."""


@dataclass
class Program:
    """An agent loop or a list of phases, as a host program would write them."""

    store: Any
    asked: list[list[Any]] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)

    def run(
        self,
        info: dict[str, Any],
        work: Callable[[Checkpointer | None, Checkpoint], Any],
        resumed: durable.Interrupted[Checkpointer] | None = None,
    ) -> Any:
        factory = CheckpointerFactory(self.store, throttle=0)
        checkpointer = begin(factory, info, resumed.checkpointer if resumed else None)
        error: BaseException | None = None
        try:
            return work(checkpointer, resumed.checkpoint if resumed else Checkpoint(Meta.of(info)))
        except BaseException as caught:
            error = caught
            raise
        finally:
            finalise(checkpointer, error, stopping=isinstance(error, Stop))

    def loop(self, turns: int, stop_at: int | None = None) -> Callable[..., Any]:
        def work(checkpointer: Checkpointer, start: Checkpoint) -> Any:
            messages = [*start.messages] or [{"role": "user", "content": start.meta.prompt}]
            for turn in range(start.iteration, turns):
                if turn == stop_at:
                    raise Stop
                self.asked.append([message["content"] for message in messages])
                messages.append({"role": "assistant", "content": f"answer {turn}"})
                checkpointer.save(messages, turn + 1)
            return messages[-1]["content"]

        return work

    def phases(self, *names: str, stop_in: str = "", fail_in: str = "") -> Callable[..., Any]:
        def work(checkpointer: Checkpointer, start: Checkpoint) -> Any:
            phases = Phases(start.phases)
            for number, name in enumerate(names):
                if phases.earlier(name):
                    continue
                self.ran.append(name)
                if name == stop_in:
                    raise Stop
                if name == fail_in:
                    raise RuntimeError("the model is gone")
                phases.complete(name, f"{name} {number}")
                checkpointer.save(phases=phases.completed)
            return [phase.output for phase in phases.completed]

        return work


INFO = {"run_id": "r1", "inputs": {"prompt": "why?"}}


def test_loop_saves_each_turn_and_completes(store):
    program = Program(store)
    assert program.run(INFO, program.loop(3)) == "answer 2"
    assert store.iterations == [1, 2, 3]
    assert store.deleted == ["r1"]


def test_resumed_loop_continues_from_the_saved_history():
    store = MemoryStore()
    program = Program(store)
    with pytest.raises(Stop):
        program.run(INFO, program.loop(4, stop_at=2))
    store.close()
    (left,) = recover(store)
    assert left.checkpoint.iteration == 2
    program.asked.clear()
    assert program.run(INFO, program.loop(4), left) == "answer 3"
    assert program.asked == [["why?", "answer 0", "answer 1"], ["why?", "answer 0", "answer 1", "answer 2"]]
    assert store.list_interrupted() == [], "the same record went on, and is gone"


def test_final_error_fails_the_run_and_no_restart_retries_it(store):
    program = Program(store)
    with pytest.raises(RuntimeError):
        program.run(INFO, program.phases("plan", "act", fail_in="act"))
    assert len(store.saves) == 1
    assert store.deleted == ["r1"]


def test_error_before_the_first_line_of_a_recovered_run_finalises_it():
    """Otherwise every start would retry it forever."""
    store = MemoryStore()
    program = Program(store)
    with pytest.raises(Stop):
        program.run(INFO, program.loop(4, stop_at=2))
    store.close()
    (left,) = recover(store)

    def cannot_be_built(checkpointer: Any, start: Any) -> Any:
        raise RuntimeError("no such agent")

    with pytest.raises(RuntimeError):
        program.run(INFO, cannot_be_built, left)
    store.close()
    assert list(recover(store)) == []


def test_each_phase_boundary_saves_the_completed_phases(store):
    program = Program(store)
    program.run(INFO, program.phases("plan", "act", "check"))
    assert [[phase.name for phase in one.phases] for one in store.saves] == [
        ["plan"],
        ["plan", "act"],
        ["plan", "act", "check"],
    ]


def test_resumed_run_skips_completed_phases_and_repeats_the_interrupted_one():
    store = MemoryStore()
    program = Program(store)
    with pytest.raises(Stop):
        program.run(INFO, program.phases("plan", "act", "check", stop_in="act"))
    store.close()
    (left,) = recover(store)
    assert program.run(INFO, program.phases("plan", "act", "check"), left) == ["plan 0", "act 1", "check 2"]
    assert program.ran == ["plan", "act", "act", "check"]


def test_duplicate_phase_names_both_run_in_a_fresh_run():
    program = Program(MemoryStore())
    assert program.run(INFO, program.phases("draft", "draft")) == ["draft 0", "draft 1"]
    assert program.ran == ["draft", "draft"]


# ---- recovering --------------------------------------------------------------------------------------------------------


def test_store_with_only_the_four_required_methods_supports_recovery(store):
    Checkpointer(store, META).save(["a"])
    plain: CheckpointStore = store
    (left,) = recover(plain)
    assert left.checkpoint.messages == ["a"]
    left.checkpointer.complete()
    assert store.list_interrupted() == []


async def test_recovery_in_an_event_loop():
    store = AsyncMemoryStore()
    await AsyncCheckpointer(store, META).save(["a"])
    await store.close()
    (left,) = [one async for one in recover_async(store)]
    assert left.checkpoint.messages == ["a"]
    assert [one async for one in recover_async(store)] == []
    await left.checkpointer.save(["a", "b"])
    await left.checkpointer.complete()
    assert await store.list_interrupted() == []
    await AsyncCheckpointer(AsyncRecording(Recording()), META).save()


async def test_recovery_in_an_event_loop_from_a_store_with_only_the_four_required_methods(store):
    await AsyncCheckpointer(AsyncRecording(store), META).save(["a"])
    (left,) = [one async for one in recover_async(AsyncRecording(store))]
    await left.checkpointer.complete()
    assert store.list_interrupted() == []


def test_recovery_that_stops_halfway_leaves_the_rest_to_other_processes():
    store = MemoryStore()
    for number in range(3):
        Checkpointer(store, Meta(f"r{number}")).save()
    store.close()
    one, two = MemoryStore(store), MemoryStore(store)
    first = next(iter(recover(one)))
    assert {left.checkpoint.meta.run_id for left in recover(two)} == {"r0", "r1", "r2"} - {first.checkpoint.meta.run_id}


# ---- the surface -------------------------------------------------------------------------------------------------------


def public(kind: type) -> dict[str, Any]:
    return {name: member for name, member in vars(kind).items() if not name.startswith("_") and callable(member)}


@pytest.mark.parametrize(
    ("plain", "other"),
    [(Checkpointer, AsyncCheckpointer), (RedisStore, AsyncRedisStore), (MemoryStore, AsyncMemoryStore)],
)
def test_sync_and_async_classes_have_the_same_methods_and_parameters(plain, other):
    assert public(plain).keys() == public(other).keys()
    for name, method in public(plain).items():
        twin = public(other)[name]
        assert list(inspect.signature(method).parameters.values()) == list(inspect.signature(twin).parameters.values())
        assert method.__doc__ == twin.__doc__, name
        assert inspect.iscoroutinefunction(twin) or inspect.isasyncgenfunction(twin), name


def test_public_names_are_listed_and_exist():
    assert sorted(durable.__all__) == durable.__all__
    assert all(hasattr(durable, name) for name in durable.__all__)


def test_memory_store_states_that_it_does_not_survive_the_process():
    for kind in (MemoryStore, AsyncMemoryStore):
        assert "do NOT survive a restart" in (kind.__doc__ or "")


@pytest.mark.parametrize("options", [{"lease": 0}, {"lease": 1e4}, {"ttl": 1, "lease": 2}])
def test_store_refuses_invalid_durations(options):
    for kind in (RedisStore, AsyncRedisStore):
        with pytest.raises(BadOption):
            kind("memory://x", "t", **options)


@pytest.mark.parametrize("values", [{"iteration": -1}, {"seq": -1}, {"schema": 0}, {"schema": 100}])
def test_checkpoint_refuses_invalid_numbers(values):
    with pytest.raises(BadOption):
        Checkpoint(META, **values)
