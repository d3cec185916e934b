"""Waits in tests without a server: runs in memory with signals and a clock, and the matrices with signals."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from coordinator.errors import BadName, NotPlain, Refused, Unreadable
from workers import AsyncRun, Registry, Run, Stopped, WaitTimeout, testing

runs: Registry[Any] = Registry()
BOTH_MATRICES = pytest.mark.parametrize("matrix", [testing.crash_matrix, testing.drain_matrix], ids=["crash", "drain"])


@dataclass
class World:
    """Records the external effects of a handler."""

    done: list[Any] = field(default_factory=list)

    def do(self, what: Any) -> Any:
        self.done.append(what)
        return what


@dataclass
class Approval:
    """A payload that is not plain data."""

    by: str
    granted: bool


def effects(world: World) -> list[Any]:
    return world.done


# ---- runs in memory ----------------------------------------------------------------------------------------------------


@runs.handler
async def ask(run: AsyncRun[World]) -> Any:
    run.messages.append("question")
    return (await run.receive("answer")).payload


@runs.handler
def plain_ask(run: Run[World]) -> Any:
    run.messages.append("question")
    return run.receive("answer").payload


async def test_signal_that_was_sent_before_the_handler_is_called_is_received() -> None:
    run = testing.AsyncRun()
    assert run.send("answer", 42)
    assert await ask(run) == 42
    assert not run.suspended
    plain = testing.Run()
    plain.send("answer", 42)
    assert plain_ask(plain) == 42


async def test_run_is_suspended_woken_and_called_again() -> None:
    run = testing.AsyncRun()
    with pytest.raises(Stopped) as stop:
        await ask(run)
    assert (stop.value.why, run.suspended, run.waits_for, run.waits_until) == ("wait", True, ("answer",), None)
    run.send("answer", 42)
    run = run.after_wake()
    assert run.resumed is not None
    assert (run.resumed.cause, run.resumed.reason) == ("wake", "signal answer")
    assert run.messages == ["question"]
    assert await ask(run) == 42


def test_plain_run_is_suspended_woken_and_called_again() -> None:
    run = testing.Run()
    with pytest.raises(Stopped, match="wait"):
        plain_ask(run)
    assert run.waits_for == ("answer",)
    run.send("answer", 42)
    assert plain_ask(run.after_wake()) == 42


async def test_run_that_nothing_wakes_is_refused() -> None:
    run = testing.AsyncRun()
    with pytest.raises(Refused, match="was not stopped at a wait"):
        run.after_wake()
    with pytest.raises(Stopped):
        await ask(run)
    run.send("question")
    with pytest.raises(Refused, match=r"waits for a signal of topic 'answer', so call run.send first"):
        run.after_wake()


async def test_received_signal_survives_a_crash() -> None:
    run = testing.AsyncRun(backing=testing.MemoryBacking(crash_at=1))
    run.send("answer", 1)
    run.send("answer", 2)
    with pytest.raises(testing.Crash):
        await ask(run)
    assert await ask(run.after_crash()) == 1


async def test_second_signal_with_the_same_key_is_not_stored() -> None:
    run = testing.AsyncRun()
    assert [run.send("answer", 1, key="k"), run.send("answer", 2, key="k"), run.send("answer", 3)] == [
        True,
        False,
        True,
    ]
    assert await ask(run) == 1
    assert (await run.receive("answer")).payload == 3


def test_signal_with_a_bad_topic_or_payload_is_refused() -> None:
    run = testing.Run()
    with pytest.raises(BadName):
        run.send("not valid")
    with pytest.raises(NotPlain):
        run.send("answer", object())
    assert run.send("answer", 1, key="k"), "a refused signal leaves nothing behind"


@runs.handler(topics={"approval": Approval})
async def typed(run: AsyncRun[World]) -> Any:
    return (await run.receive("approval")).payload


async def test_handler_that_is_called_directly_gets_typed_payloads() -> None:
    run = testing.AsyncRun()
    run.send("approval", Approval("ada", True))
    run.send("approval", "nonsense")
    assert await typed(run) == Approval("ada", True)
    with pytest.raises(Unreadable):
        await run.receive("approval")


@runs.handler
async def patient(run: AsyncRun[World]) -> list[Any]:
    await run.sleep(timedelta(days=7))
    first = await run.receive("answer", timeout=3600, default="nothing")
    await run.sleep(until=datetime(2100, 1, 1, tzinfo=UTC))
    return [first]


async def test_time_jumps_to_the_end_of_sleeps_and_timeouts() -> None:
    run = testing.AsyncRun()
    before = run.now
    assert await patient(run) == ["nothing"]
    assert run.now == datetime(2100, 1, 1, tzinfo=UTC)
    assert abs(before - datetime.now(UTC)) < timedelta(hours=1), "the clock begins with the time of the machine"


async def test_run_with_suspends_is_stopped_at_sleeps_and_timeouts_too() -> None:
    run = testing.AsyncRun(suspends=True)
    before = run.now
    with pytest.raises(Stopped):
        await patient(run)
    assert (run.waits_for, run.waits_until, run.now) == ((), before + timedelta(days=7), before)
    run = run.after_wake()
    assert run.now == before + timedelta(days=7)
    assert run.resumed is not None
    assert run.resumed.reason == "time"
    with pytest.raises(Stopped):
        await patient(run)
    assert (run.waits_for, run.waits_until) == (("answer",), before + timedelta(days=7, hours=1))
    run.advance(1800)
    run.send("answer", "late")
    run = run.after_wake()
    with pytest.raises(Stopped):
        await patient(run)
    assert run.now == before + timedelta(days=7, minutes=30)
    run = run.after_wake()
    (received,) = await patient(run)
    assert received.payload == "late"
    run.advance(timedelta(days=1))
    assert run.now > datetime(2100, 1, 1, tzinfo=UTC)


async def test_interrupted_sleep_in_memory_continues() -> None:
    run = testing.AsyncRun(backing=testing.MemoryBacking(crash_at=1))
    before = run.now
    with pytest.raises(testing.Crash):
        await patient(run)
    run.advance(timedelta(days=3))
    again = run.after_crash(testing.MemoryBacking(suspends=True))
    with pytest.raises(Stopped):
        await patient(again)
    assert again.waits_until == before + timedelta(days=7)


# ---- matrices ------------------------------------------------------------------------------------------------------------


@runs.handler(topics={"approval": Approval})
async def pay(run: AsyncRun[World], amount: int) -> list[Any]:
    order = await run.phase("order", run.resources.do, f"order of {amount}")
    approval = await run.receive("approval", timeout=timedelta(days=3), default=None)
    if approval is None:
        return [order, "nobody answered"]
    await run.sleep(60)
    paid = await run.phase("pay", run.resources.do, f"pay {amount} for {approval.payload.by}")
    return [order, paid, (await run.receive("receipt", "refusal")).topic]


@runs.handler(topics={"approval": Approval})
def plain_pay(run: Run[World], amount: int) -> list[Any]:
    order = run.phase("order", run.resources.do, f"order of {amount}")
    approval = run.receive("approval", timeout=timedelta(days=3), default=None)
    if approval is None:
        return [order, "nobody answered"]
    run.sleep(60)
    paid = run.phase("pay", run.resources.do, f"pay {amount} for {approval.payload.by}")
    return [order, paid, run.receive("receipt", "refusal").topic]


BOTH_PAY = pytest.mark.parametrize("handler", [pay, plain_pay], ids=["async", "plain"])


@BOTH_MATRICES
@BOTH_PAY
def test_handler_that_waits_reaches_the_same_end_for_every_fault(handler: Any, matrix: Any) -> None:
    signals = [("approval", Approval("ada", True)), ("refusal", None)]
    found = matrix(handler.inputs(5), resources=World, effects=effects, signals=signals)
    assert found.result == ["order of 5", "pay 5 for ada", "refusal"]
    assert found.effects == ["order of 5", "pay 5 for ada"]
    assert found.waits == 3, "two signals and a sleep"
    assert found.cuts == 5, "two phases, two signals, and the deadline of the sleep"


@BOTH_MATRICES
@BOTH_PAY
def test_wait_without_a_signal_ends_with_its_timeout(handler: Any, matrix: Any) -> None:
    found = matrix(handler.inputs(5), resources=World, effects=effects)
    assert (found.result, found.waits) == (["order of 5", "nobody answered"], 1)


@BOTH_MATRICES
@BOTH_PAY
def test_missing_signal_fails_the_matrix_with_its_topics(handler: Any, matrix: Any) -> None:
    with pytest.raises(
        AssertionError,
        match=r"'(plain_)?pay' waits for a signal of topic 'receipt' or 'refusal', and no signal is left",
    ):
        matrix(handler.inputs(5), resources=World, signals=[("approval", Approval("ada", True))])


def test_signal_that_does_not_fit_its_declared_type_is_refused() -> None:
    with pytest.raises(Refused, match="approval"):
        testing.crash_matrix(pay.inputs(5), resources=World, signals=[("approval", "nonsense")])


@runs.handler
async def chat(run: AsyncRun[World]) -> list[Any]:
    async for _ in run.loop(limit=100):
        said = await run.receive("word", "end")
        if said.topic == "end":
            break
        run.messages.append(said.payload)
        run.messages.append(await run.phase("reply", run.resources.do, f"re: {said.payload}"))
    return list(run.messages)


@runs.handler
def plain_chat(run: Run[World]) -> list[Any]:
    for _ in run.loop(limit=100):
        said = run.receive("word", "end")
        if said.topic == "end":
            break
        reply = run.phase("reply", run.resources.do, f"re: {said.payload}")
        run.messages.extend([said.payload, reply])
    return list(run.messages)


@BOTH_MATRICES
def test_chat_loop_receives_each_word_once_for_every_fault(matrix: Any) -> None:
    signals = [("word", 1), ("word", 1), ("word", 2), ("end", None)]
    found = matrix(plain_chat.inputs(), resources=World, effects=effects, signals=signals)
    assert found.result == [1, "re: 1", 1, "re: 1", 2, "re: 2"]
    assert found.effects == ["re: 1", "re: 1", "re: 2"]
    assert found.waits == 4


def test_chat_loop_that_appends_before_its_phase_repeats_the_message_after_a_crash() -> None:
    with pytest.raises(AssertionError, match="after a crash at cut 2 of"):
        testing.crash_matrix(chat.inputs(), resources=World, signals=[("word", 1), ("end", None)])


@runs.handler
async def broken(run: AsyncRun[World]) -> Any:
    run.resources.do("asked")  # not in a phase: it is done again when the handler is called again
    return (await run.receive("answer")).payload


@runs.handler
def plain_broken(run: Run[World]) -> Any:
    run.resources.do("asked")
    return run.receive("answer").payload


@pytest.mark.parametrize("handler", [broken, plain_broken], ids=["async", "plain"])
@BOTH_MATRICES
def test_effect_before_a_wait_that_is_not_in_a_phase_is_found(handler: Any, matrix: Any) -> None:
    with pytest.raises(AssertionError, match=r"the effects were \['asked', 'asked'\]; without .*: \['asked'\]"):
        matrix(handler.inputs(), resources=World, effects=effects, signals=[("answer", 1)])


@runs.handler
async def stubborn(run: AsyncRun[World]) -> Any:
    try:
        return (await run.receive("answer")).payload
    except Stopped:
        return "wrong"


@BOTH_MATRICES
def test_handler_that_swallows_the_stop_of_a_wait_is_suspended_anyway(matrix: Any) -> None:
    assert matrix(stubborn.inputs(), signals=[("answer", 1)]).result == 1


@runs.handler
async def impatient(run: AsyncRun[World]) -> Any:
    return (await run.receive("answer", timeout=5)).payload


def test_timeout_that_the_handler_does_not_catch_is_raised() -> None:
    with pytest.raises(WaitTimeout):
        testing.crash_matrix(impatient.inputs())


@runs.handler
async def asks_in_the_middle_of_a_turn(run: AsyncRun[World]) -> list[Any]:
    async for _ in run.loop(limit=2):
        run.messages.append("question")
        run.messages.append((await run.receive("answer")).payload)
    return list(run.messages)


@BOTH_MATRICES
def test_wait_in_the_middle_of_a_changed_turn_is_found(matrix: Any) -> None:
    with pytest.raises(AssertionError, match=r"the handler returned \['question', 'question'"):
        matrix(asks_in_the_middle_of_a_turn.inputs(), signals=[("answer", 1), ("answer", 2)])


def test_round_that_is_only_suspended_is_compared() -> None:
    """A fault in the same round would repeat the effect once more, so the count tells that no fault was needed."""
    with pytest.raises(AssertionError, match=r"^suspended at each wait, the effects were"):
        testing.drain_matrix(broken.inputs(), resources=World, effects=effects, signals=[("answer", 1)])
