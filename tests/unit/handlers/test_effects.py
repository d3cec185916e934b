"""`run.once` without a server: an effect happens once, whatever happens between its begin, its call and its end."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.errors import NotPlain, Refused, TooLarge
from coordinator.model.outcome import Fail, Raised, classify
from tests.waiting import eventually, next_turn
from workers import AsyncRun, NotDone, OutcomeUnknown, Registry, Retry, Run, Stopped, testing
from workers.handlers.checkpoint import draft as drafts
from workers.handlers.checkpoint.migration import migrated
from workers.handlers.operations import effects as effects_module

runs: Registry[Any] = Registry()


@dataclass
class Bank:
    """An outside system that dedupes nothing."""

    charges: list[str] = field(default_factory=list)
    broken: bool = False

    def charge(self, order: str) -> str:
        self.charges.append(order)
        if self.broken:
            raise TimeoutError("no answer")
        return f"receipt {order}"

    async def charge_async(self, order: str) -> str:
        return self.charge(order)

    def find(self, order: str) -> str | type[NotDone]:
        return f"receipt {order}" if order in self.charges else NotDone


def charges(bank: Bank) -> list[str]:
    return bank.charges


@runs.handler
def pay(run: Run[Bank], order: str) -> str:
    return run.once("charge", run.resources.charge, order)


@runs.handler
async def pay_async(run: AsyncRun[Bank], order: str) -> str:
    return await run.once("charge", run.resources.charge_async, order)


@runs.handler
def pay_checked(run: Run[Bank], order: str) -> str:
    return run.once("charge", run.resources.charge, order, check=run.resources.find)


@runs.handler
async def pay_checked_async(run: AsyncRun[Bank], order: str) -> str:
    return await run.once("charge", run.resources.charge, order, check=run.resources.find)


# ---- the order of the saves ----------------------------------------------------------------------------------------------


def test_begun_is_saved_before_the_call_and_done_after_it() -> None:
    bank, seen = Bank(), list[dict[str, str]]()
    run = testing.Run(bank)

    def call() -> str:
        seen.append(saved_effects(run))
        return "ok"

    assert run.once("charge", call) == "ok"
    assert seen == [{"charge": "begun"}]
    assert (saved_effects(run), run.saved, run.effects) == ({"charge": "done"}, 2, {"charge": "done"})


def saved_effects(run: testing.Run) -> dict[str, str]:
    fields = [field.split(":", 2) for field in run._memory.cuts[-1].phases]
    return {name: state for _, state, name in fields}


def test_done_effect_returns_its_output_without_a_call_or_a_save() -> None:
    bank = Bank()
    run = testing.Run(bank)
    assert (pay(run, "1"), pay(run, "1")) == ("receipt 1", "receipt 1")
    assert (bank.charges, run.saved) == (["1"], 2)
    assert pay(run.after_crash(), "1") == "receipt 1"
    assert bank.charges == ["1"]


def test_effects_outlive_turns_and_a_replaced_transcript() -> None:
    bank = Bank()
    run = testing.Run(bank)
    for turn in run.loop(3):
        run.messages.append(f"turn {turn}")
        assert run.once("charge", bank.charge, "1") == "receipt 1"
        run.messages.replace([])
    assert (bank.charges, run.effects) == (["1"], {"charge": "done"})


# ---- begun and not done --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [{"crash_at": 1}, {"lose_at": 2}], ids=["before the call", "after the call"])
def test_effect_whose_end_is_unknown_is_not_called_again(place: dict[str, Any]) -> None:
    bank = Bank()
    first = testing.Run(bank, backing=testing.MemoryBacking(**place))
    with pytest.raises(testing.Crash):
        pay(first, "1")
    before = [*bank.charges]
    second = first.after_crash()
    with pytest.raises(OutcomeUnknown, match=r"'charge' took place: attempt 1 \(worker w-test\)") as caught:
        pay(second, "1")
    assert (caught.value.effect, bank.charges, second.effects) == ("charge", before, {"charge": "begun"})


@pytest.mark.parametrize("place", [{"crash_at": 1}, {"lose_at": 2}], ids=["before the call", "after the call"])
def test_check_finds_out_what_became_of_an_effect(place: dict[str, Any]) -> None:
    bank = Bank()
    first = testing.Run(bank, backing=testing.MemoryBacking(**place))
    with pytest.raises(testing.Crash):
        pay_checked(first, "1")
    second = first.after_crash()
    assert pay_checked(second, "1") == "receipt 1"
    assert (bank.charges, second.effects) == (["1"], {"charge": "done"})
    assert second.saved == (2 if "crash_at" in place else 1)


def test_check_may_raise_not_done() -> None:
    def find(order: str) -> str:
        raise NotDone

    bank = Bank()
    first = testing.Run(bank, backing=testing.MemoryBacking(crash_at=1))
    with pytest.raises(testing.Crash):
        pay(first, "1")
    assert first.after_crash().once("charge", bank.charge, "1", check=find) == "receipt 1"


def test_exception_of_the_function_leaves_the_effect_begun() -> None:
    bank = Bank(broken=True)
    run = testing.Run(bank)
    with pytest.raises(TimeoutError, match="no answer"):
        pay(run, "1")
    assert run.effects == {"charge": "begun"}
    bank.broken = False
    with pytest.raises(OutcomeUnknown):
        pay(run, "1")
    assert run.once("charge", bank.charge, "1", check=bank.find) == "receipt 1"
    assert bank.charges == ["1"]


def test_exception_of_the_check_is_raised_as_it_is() -> None:
    first = testing.Run(Bank(), backing=testing.MemoryBacking(crash_at=1))
    with pytest.raises(testing.Crash):
        pay(first, "1")

    def find(order: str) -> str:
        raise ConnectionError("the bank is closed")

    second = first.after_crash()
    with pytest.raises(ConnectionError):
        second.once("charge", Bank().charge, "1", check=find)
    assert second.effects == {"charge": "begun"}


@pytest.mark.parametrize("output", [object(), "x" * (effects_module.OUTPUT_LIMIT + 1)], ids=["not plain", "too large"])
def test_output_that_cannot_be_stored_leaves_the_effect_begun(output: Any) -> None:
    run = testing.Run()
    with pytest.raises((NotPlain, TooLarge)) as caught:
        run.once("charge", lambda: output)
    assert "has taken place" in caught.value.__notes__[0]
    assert run.effects == {"charge": "begun"}


def test_no_retry_policy_retries_an_unknown_outcome() -> None:
    retry = Retry(limit=10, on=(BaseException,))
    for error in (OutcomeUnknown("?"), ExceptionGroup("tasks", [ValueError(), OutcomeUnknown("?")])):
        assert classify(Raised(error), None, retry, 0) == Fail(error)


# ---- stops ---------------------------------------------------------------------------------------------------------------


def test_stop_is_raised_before_the_effect_begins() -> None:
    bank = Bank()
    run = testing.Run(bank)
    run.stop("drain")
    with pytest.raises(Stopped):
        pay(run, "1")
    assert (bank.charges, run.effects) == ([], {})


def test_drain_does_not_interrupt_an_effect_that_has_begun() -> None:
    bank = Bank()
    run = testing.Run(bank, backing=testing.MemoryBacking())
    run._memory.at_cut = lambda number: run.stop("drain")
    with pytest.raises(Stopped):
        pay(run, "1")
    assert bank.charges == ["1"]
    again = run.after_release()
    assert (pay(again, "1"), bank.charges) == ("receipt 1", ["1"])


def test_effect_that_was_not_called_because_of_a_cancel_is_withdrawn() -> None:
    bank = Bank()
    run = testing.Run(bank)
    run._memory.at_cut = lambda number: run.stop("cancel") if number == 1 else None
    with pytest.raises(Stopped):
        pay(run, "1")
    assert (bank.charges, saved_effects(run)) == ([], {})


async def test_effect_that_waits_for_a_thread_is_withdrawn_by_a_cancel() -> None:
    bank, free = Bank(), threading.Event()
    run = testing.AsyncRun(bank)
    with ThreadPoolExecutor(1) as threads:
        run._memory.threads = threads  # type: ignore[assignment]
        threads.submit(free.wait, 60)
        task = asyncio.create_task(pay_checked_async(run, "1"))
        await eventually(lambda: threads._work_queue.qsize() == 1, "the call to wait for the thread")
        run.stop("cancel")
        free.set()
        with pytest.raises(Stopped):
            await task
    assert (bank.charges, run.effects, run._memory.cuts[-1].phases) == ([], {}, {})


async def test_effect_that_waited_for_a_thread_confirms_the_lease_again() -> None:
    bank, answers = Bank(), iter([False, True])
    run = testing.AsyncRun(bank)
    run._memory.may_call = lambda: next(answers)  # type: ignore[method-assign]
    assert await pay_checked_async(run, "1") == "receipt 1"
    assert (bank.charges, len(run._memory.cuts)) == (["1"], 3)


def test_timeout_of_the_handler_before_the_call_withdraws_the_effect() -> None:
    bank = Bank()
    run = testing.AsyncRun(bank)
    saving = asyncio.Event()

    async def flush(cut: Any, may_drain: Any = None) -> None:
        run._memory.offer(cut)
        saving.set()
        await asyncio.Event().wait()

    run._memory.flush = flush  # type: ignore[method-assign]

    async def handle() -> None:
        task = asyncio.create_task(pay_async(run, "1"))
        await saving.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(handle())
    assert (bank.charges, run.effects, run._memory.cuts[-1].phases) == ([], {}, {})


# ---- refusals ------------------------------------------------------------------------------------------------------------


def test_second_call_with_other_arguments_is_refused() -> None:
    bank = Bank()
    run = testing.Run(bank)
    pay(run, "1")
    with pytest.raises(Refused, match="give each effect its own name"):
        pay(run, "2")
    later = run.after_crash()
    assert pay(later, "2") == "receipt 1", "a later attempt may compute other arguments"


async def test_same_effect_twice_at_the_same_time_is_refused() -> None:
    run, called = testing.AsyncRun(), asyncio.Event()

    async def slow() -> None:
        called.set()
        await next_turn()
        with pytest.raises(Refused, match="already running"):
            await run.once("a", slow)
        with pytest.raises(Refused, match="inside a phase or an effect"):
            await run.sleep(1)

    await run.once("a", slow)
    assert called.is_set()


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb"])
def test_name_that_is_not_valid_is_refused(name: str) -> None:
    run = testing.Run()
    with pytest.raises(Refused, match="needs a name"):
        run.once(name, lambda: 1)
    with pytest.raises(Refused, match="needs a name"):
        run.effect_key(name)


def test_number_of_effects_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects_module, "MOST_EFFECTS", 1)
    run = testing.Run()
    run.once("a", lambda: 1)
    with pytest.raises(Refused, match="a run can have 1 effects"):
        run.once("b", lambda: 1)
    assert run.once("a", lambda: 1) == 1


def test_effect_whose_output_might_not_fit_is_refused_before_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects_module, "CHECKPOINT_LIMIT", effects_module.OUTPUT_LIMIT + 10)
    run, bank = testing.Run(), Bank()
    run.messages.append("x" * 20)
    with pytest.raises(TooLarge, match="no room"):
        run.once("charge", bank.charge, "1")
    assert bank.charges == []


# ---- keys, phases, matrices ----------------------------------------------------------------------------------------------


def test_effect_key_is_the_same_in_all_attempts() -> None:
    run = testing.Run()
    key = run.effect_key("charge")
    assert key == run.after_crash().effect_key("charge") != run.effect_key("refund")
    assert key.isascii()
    assert len(run.effect_key("ü" * 200)) <= 60


async def test_effect_works_inside_a_phase() -> None:
    bank = Bank()
    run = testing.AsyncRun(bank, backing=testing.MemoryBacking(crash_at=2))

    async def phase() -> str:
        return await run.once("charge", bank.charge, "1")

    with pytest.raises(testing.Crash):
        await run.phase("pay", phase)
    run = run.after_crash()
    assert await run.phase("pay", phase) == "receipt 1"
    assert bank.charges == ["1"]


def test_migration_keeps_the_effects() -> None:
    @runs.handler(kind="migrated", schema=2)
    def handler(run: Run[Any]) -> None: ...

    @handler.migration(1)
    def migrate(left: Any) -> None:
        assert left.phases == {}

    run = testing.Run()
    run.once("a", lambda: 1)
    head = CheckpointHead(schema=1)
    assert [field for field in migrated(run._draft, head, {}, handler).phases if field != drafts.INPUTS] == [
        "effect:done:a"
    ]


@pytest.mark.parametrize("handler", [pay, pay_async], ids=["plain", "async"])
def test_crash_matrix_counts_rounds_with_an_unknown_outcome(handler: Any) -> None:
    found = testing.crash_matrix(handler.inputs("1"), Bank, charges)
    assert (found.cuts, found.result, found.effects, found.unknown) == (2, "receipt 1", ["1"], 3)


@pytest.mark.parametrize("handler", [pay_checked, pay_checked_async], ids=["plain", "async"])
def test_crash_matrix_proves_a_check(handler: Any) -> None:
    found = testing.crash_matrix(handler.inputs("1"), Bank, charges)
    assert (found.cuts, found.effects, found.unknown) == (2, ["1"], 0)


def test_crash_matrix_finds_a_check_that_lies() -> None:
    @runs.handler(kind="lied")
    def lied(run: Run[Bank]) -> str:
        return run.once("charge", run.resources.charge, "1", check=lambda order: NotDone)

    with pytest.raises(AssertionError, match=r"right before cut 2 of 2 was saved, the effects were \['1', '1'\]"):
        testing.crash_matrix(lied.inputs(), Bank, charges)


@pytest.mark.parametrize("handler", [pay, pay_async], ids=["plain", "async"])
def test_drain_never_makes_an_outcome_unknown(handler: Any) -> None:
    assert testing.drain_matrix(handler.inputs("1"), Bank, charges).effects == ["1"]
