"""Budgets without a server: what is counted, where a budget is enforced, and how a grant continues the run."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from coordinator.encoding.codec import encode
from coordinator.errors import BadName, BadOption
from coordinator.model.limits import FAR_FUTURE
from coordinator.model.outcome import Fail, Raised, classify
from coordinator.model.policies.budget import Amount, Budget, Spending, read_spend, spending
from tests.waiting import eventually, next_turn
from workers import AsyncRun, BudgetExceeded, Registry, Retry, Run, Stopped, testing
from workers.handlers.operations.budgets import read_grant

runs: Registry[Any] = Registry()
FAIL, WAIT = Budget(usd=1, then="fail"), Budget(usd=1, then="wait")


def ask(run: Any, calls: list[int], turn: int) -> int:
    calls.append(turn)
    run.spend(usd=0.4, requests=1)
    return turn


@runs.handler(budget=WAIT)
def agent(run: Run[list[int]], turns: int) -> int:
    for turn in run.loop(turns):
        run.messages.append(run.phase("ask", ask, run, run.resources, turn))
    return len(run.messages)


@runs.handler(budget=WAIT)
async def async_agent(run: AsyncRun[list[int]], turns: int) -> int:
    async for turn in run.loop(turns):
        run.messages.append(await run.phase("ask", ask, run, run.resources, turn))
    return len(run.messages)


# ---- amounts -------------------------------------------------------------------------------------------------------------


def test_money_is_counted_in_whole_micro_dollars() -> None:
    assert Amount.of(0.1, 0, 0).plus(Amount.of(Decimal("0.2"), 0, 0)) == Amount(300_000)
    assert Amount.of(0.000_000_1, 0, 0).usd == 1, "a fraction counts as a whole one"


WRONG = [
    {"usd": -1},
    {"usd": 1e30},
    {"usd": float("nan")},
    {"usd": "x"},
    {"tokens": -1},
    {"tokens": 1.5},
    {"requests": True},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_amount_that_is_not_valid_is_refused(wrong: Any) -> None:
    with pytest.raises(BadOption, match="from 0 to 4,503,599,627"):
        testing.Run().spend(**wrong)


@pytest.mark.parametrize("wrong", [{}, {"usd": -1}, {"usd": 1, "then": "sleep"}, {"tokens": 1.5}])
def test_budget_that_is_not_valid_is_refused(wrong: Any) -> None:
    with pytest.raises(BadOption):
        Budget(**wrong)
    with pytest.raises(BadOption):
        runs.handler(kind="wrong", budget=wrong)(lambda run: None)


def test_budget_is_stored_and_read_back() -> None:
    budget = Budget(usd=2.5, tokens=7, then="wait")
    assert Budget.load(budget.pack()).limits == budget.limits == (2_500_000, 7, None)
    assert Budget.load(budget.pack()).then == "wait"


@pytest.mark.parametrize("text", ["1 2 x", "", "² 0 0 0 0 0 0 0 0 0", "-1 0 0 0 0 0 0 0 0 0"])
def test_damaged_spending_counts_as_none(text: str) -> None:
    assert read_spend(text) == (Amount(), Amount())


@pytest.mark.parametrize("number", [str(FAR_FUTURE + 1), "9" * 400, "9" * 10_000])
def test_spending_that_is_too_large_counts_as_the_largest(number: str) -> None:
    settled, last = read_spend(f"{number} 0 0 0 {number} 1 0 0 0 0")
    assert (settled, last) == (Amount(FAR_FUTURE), Amount(FAR_FUTURE, 1))
    assert spending(settled).usd == FAR_FUTURE / 1_000_000


def test_grant_with_another_payload_grants_nothing() -> None:
    assert read_grant(encode("5", "p")) == read_grant(encode([1, -2, 0], "p")) == Amount()
    assert read_grant(encode([1, 2, 0], "p")) == Amount(1, 2, 0)


def test_spending_is_shown_without_zeros() -> None:
    assert [str(Spending(*one)) for one in ((1.5, 0, 0), (0.0, 1200, 3), (0.0, 0, 0))] == [
        "1.5 USD", "1,200 tokens, 3 requests", "0 USD",
    ]  # fmt: skip


def test_rest_of_a_budget_as_text_names_only_amounts_that_are_limited() -> None:
    assert str(testing.Run().left) == "no limit"
    run = testing.Run()
    run._declare_budget(Budget(tokens=10))
    assert str(run.left) == "10 tokens"
    run.spend(usd=1, tokens=10)
    assert (str(run.left), str(run.spent)) == ("0 tokens", "1 USD, 10 tokens")
    assert [str(Spending(*one)) for one in ((0.0, None, None), (None, 0, 0), (None, 0, 3), (0.0, 0, None))] == [
        "0 USD", "0 tokens", "3 requests", "0 USD",
    ]  # fmt: skip


# ---- spending ------------------------------------------------------------------------------------------------------------


def test_run_knows_what_it_has_spent_and_what_is_left() -> None:
    run = testing.Run()
    assert (run.spent, run.left) == (Spending(0, 0, 0), Spending(None, None, None))
    run._declare_budget(Budget(usd=1, tokens=100))
    run = run.after_crash()
    run.spend(usd=0.25, tokens=30, requests=1)
    assert run.spent == Spending(0.25, 30, 1)
    assert run.left == Spending(0.75, 70, None)
    assert run.after_crash().spent == Spending(0.25, 30, 1), "what was spent counts in later attempts"


def test_run_without_a_budget_only_counts() -> None:
    calls: list[int] = []
    run = testing.Run(calls)
    for turn in run.loop(5):
        ask(run, calls, turn)
    assert run.spent.requests == 5


# ---- then="fail" ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", ["phase", "turn", "effect"])
def test_new_work_does_not_begin_when_the_budget_is_spent(work: str) -> None:
    run, done = testing.Run(), list[int]()
    run._declare_budget(FAIL)
    run.phase("paid", run.spend, usd=1)

    def begin() -> None:
        if work == "phase":
            run.phase("more", done.append, 1)
        elif work == "effect":
            run.once("more", done.append, 1)
        else:
            done.extend(run.loop(1))

    with pytest.raises(BudgetExceeded, match="1 USD"):
        begin()
    assert (done, run.effects) == ([], {})


def test_phase_that_is_already_paid_for_is_still_returned() -> None:
    run = testing.Run()
    run._declare_budget(FAIL)

    def pay() -> str:
        run.spend(usd=2)
        return "paid"

    assert run.phase("ask", pay) == "paid"
    assert run.after_crash().phase("ask", pay) == "paid"


def test_no_retry_policy_retries_a_spent_budget() -> None:
    error = ExceptionGroup("tasks", [BudgetExceeded("spent")])
    assert classify(Raised(error), None, Retry(limit=9), 0) == Fail(error)


def test_grant_before_the_budget_is_spent_counts() -> None:
    run = testing.Run()
    run._declare_budget(FAIL)
    run.grant(usd=1)
    run.spend(usd=1.5)
    assert run.phase("more", lambda: "ok") == "ok"
    assert run.left == Spending(0.5, None, None)


# ---- then="wait" ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", [agent, async_agent], ids=["plain", "async"])
def test_run_waits_for_a_grant_and_continues_where_it_was(handler: Any) -> None:
    calls: list[int] = []
    run: Any = (testing.AsyncRun if handler.is_async else testing.Run)(calls)

    def play() -> Any:
        value = handler(run, 6)
        return asyncio.run(_awaited(value)) if handler.is_async else value

    with pytest.raises(Stopped):
        play()
    assert (run.suspended, run.waits_for, calls) == (True, ("coordinator.grant",), [0, 1, 2])
    run.grant(usd=0.5)
    run = run.after_wake()
    with pytest.raises(Stopped):
        play()
    assert calls == [0, 1, 2, 3]
    run.grant(usd=0.5)
    run = run.after_wake()
    with pytest.raises(Stopped):
        play()
    assert calls == [0, 1, 2, 3, 4], "the first grant still counts"
    run.grant(usd=10)
    run = run.after_wake()
    assert (play(), calls, run.spent.requests) == (6, [0, 1, 2, 3, 4, 5], 6)


async def _awaited(value: Any) -> Any:
    return await value


def test_turn_that_would_be_repeated_is_not_interrupted() -> None:
    run, done = testing.Run(), list[str]()
    run._declare_budget(WAIT)

    def handle() -> None:
        for _ in run.loop(2):
            run.messages.append("question")
            run.spend(usd=2)
            run.phase("more", done.append, "in the same turn")

    with pytest.raises(Stopped):
        handle()
    assert (done, run.iteration) == (["in the same turn"], 1)


# ---- reservations --------------------------------------------------------------------------------------------------------


async def test_parallel_reservations_never_exceed_the_budget() -> None:
    run, refused = testing.AsyncRun(), list[int]()
    run._declare_budget(Budget(usd=1, requests=30))

    async def call(number: int) -> None:
        try:
            with run.reserve(usd=0.1, requests=1) as reservation:
                await next_turn()  # other calls reserve meanwhile
                reservation.spend(usd=0.05, requests=1)
        except BudgetExceeded:
            refused.append(number)

    await asyncio.gather(*(call(number) for number in range(50)))
    assert len(refused) == 40, "ten reservations fit at the same time"
    assert run.spent == Spending(0.5, 0, 10)
    assert run.left == Spending(0.5, None, 20), "the reservations have ended"


def test_reservation_of_a_call_that_fails_ends() -> None:
    run = testing.Run()
    run._declare_budget(Budget(usd=1))
    with pytest.raises(ValueError, match="no"), run.reserve(usd=1):
        raise ValueError("no")
    assert run.left.usd == 1


RESERVE = pytest.mark.parametrize("how", ["with", "async with"])


async def _reserve(run: Any, how: str, usd: float) -> bool:
    """Return whether an amount could be reserved."""
    try:
        if how == "async with":
            async with run.reserve(usd=usd):
                return True
        with run.reserve(usd=usd):
            return True
    except BudgetExceeded:
        return False


def test_grant_before_the_budget_is_spent_can_be_reserved_in_a_plain_handler() -> None:
    run = testing.Run()
    run._declare_budget(Budget(usd=1))
    run.grant(usd=1)
    run.grant(usd=1)
    with run.reserve(usd=2.5):
        assert run.left.usd == 0.5
    with pytest.raises(BudgetExceeded), run.reserve(usd=3.5):
        pass


async def test_grant_before_the_budget_is_spent_can_be_reserved_in_an_async_handler() -> None:
    run = testing.AsyncRun()
    run._declare_budget(Budget(usd=1))
    assert not await _reserve(run, "async with", 2)
    run.grant(usd=1)
    assert await _reserve(run, "async with", 2)
    run.grant(usd=1)
    assert not await _reserve(run, "with", 3), "the event loop can't wait for the answer of the server"
    await run.phase("next", lambda: None)
    assert await _reserve(run, "with", 3)
    run.grant(usd=1)

    def reserve() -> None:
        with run.reserve(usd=4):
            pass

    await run.phase("in a thread", reserve)


@RESERVE
async def test_grant_that_was_received_for_a_reservation_counts_once_over_a_crash(how: str) -> None:
    run = testing.AsyncRun()
    run._declare_budget(Budget(usd=1))
    run.grant(usd=1)
    await _reserve(run, how, 2)
    run = run.after_crash()  # before a cut has saved that the grant was received
    assert await _reserve(run, "async with", 2)
    await run.phase("a cut", lambda: None)
    run = run.after_crash()
    assert run.left.usd == 2
    assert not await _reserve(run, "async with", 2.1)


def test_grants_are_not_asked_for_while_the_amount_is_left() -> None:
    run = testing.Run()
    run._declare_budget(Budget(usd=1))
    run._memory.look = None  # type: ignore[assignment]
    with run.reserve(usd=1):
        pass


# ---- effects beside each other -------------------------------------------------------------------------------------------


async def test_drain_waits_for_effects_that_run_beside_each_other() -> None:
    run, ended = testing.AsyncRun(), list[str]()
    both, may_end = asyncio.Barrier(3), asyncio.Event()

    async def effect(name: str) -> str:
        await both.wait()
        if name == "slow":
            await may_end.wait()
        ended.append(name)
        return name

    async def handle() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(run.once("fast", effect, "fast"))
            group.create_task(run.once("slow", effect, "slow"))

    task = asyncio.create_task(handle())
    await both.wait()
    run.stop("drain")
    await eventually(lambda: run.effects.get("fast") == "done", "the fast effect to end")
    may_end.set()
    with pytest.raises(BaseExceptionGroup):
        await task
    assert (ended, run.effects) == (["fast", "slow"], {"fast": "done", "slow": "done"})


def test_topic_of_grants_cannot_be_used_for_signals() -> None:
    runs = Registry()

    @runs.handler
    async def thief(run: AsyncRun) -> None:
        await run.receive("coordinator.grant", timeout=0)

    run = testing.AsyncRun()
    with pytest.raises(BadName, match=r"topic 'coordinator.grant' is reserved for grants"):
        run.send("coordinator.grant", [10**9, 0, 0])
    with pytest.raises(BadName, match="reserved for grants"):
        asyncio.run(thief(run))
    with pytest.raises(BadName, match="reserved for grants"):
        runs.handler(kind="typed", topics={"coordinator.grant": int})


@pytest.mark.parametrize("matrix", [testing.crash_matrix, testing.drain_matrix])
@pytest.mark.parametrize("handler", [agent, async_agent], ids=["plain", "async"])
def test_matrix_grants_a_run_what_it_waits_for(handler: Any, matrix: Any) -> None:
    found = matrix(handler.inputs(5), list, list, grants=[{"usd": 0.5}, {"usd": 2, "requests": 3}])
    assert (found.result, found.effects) == (5, [0, 1, 2, 3, 4])
    assert found.waits == 2, "in the rounds with late grants the run waits for each of them"
    with pytest.raises(AssertionError, match=r"is spent, and no grant is left: pass grants=\[\{\"usd\": 5\}\]"):
        matrix(handler.inputs(5), list, list)


@pytest.mark.parametrize(("wrong", "error"), [({"euro": 5}, TypeError), ({"usd": -1}, BadOption)])
def test_grant_for_a_matrix_that_is_not_valid_is_refused(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        testing.crash_matrix(agent.inputs(1), list, list, grants=[wrong])
