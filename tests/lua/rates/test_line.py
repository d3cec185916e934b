"""The line of external calls that wait for a rate: calls that leave it, or cost less than they reserved, delay no other call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from coordinator.model.policies.rates import encode_rate
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import rates as rate_plans
from coordinator.store.plans.rates import Acquired
from tests.lua.store import Store

API = "api"
PATIENCE_MS = 10_000


@dataclass
class Line:
    """The workers of calls that wait: each call asks when it was told, or when its worker gets a hint.

    Attributes:
        store: The store.
        asks: The time at which each call asks next, by worker and number.
        costs: The cost of each call.
        asked: The number of requests that were sent.
    """

    store: Store
    asks: dict[tuple[str, int], int] = field(default_factory=dict)
    costs: dict[tuple[str, int], int] = field(default_factory=dict)
    asked: int = 0

    def ask(self, worker: str, number: int, cost: int = 1) -> Acquired:
        found = self.store.do(rate_plans.acquire(self.store.keys, worker, API, number, cost, self.store.at))
        self.asked += 1
        self.costs[worker, number] = cost
        self.asks[worker, number] = self.store.now + found.wait_ms
        if found.word == "ok":
            del self.asks[worker, number]
        return found

    def finish(self, worker: str, number: int, cost: int | None = None) -> str:
        self.asks.pop((worker, number), None)
        return self.store.do(rate_plans.finish(self.store.keys, worker, API, number, cost, self.store.at))

    def lose(self, worker: str, lose: Callable[[Store, str], None]) -> None:
        lose(self.store, worker)
        self.asks = {call: at for call, at in self.asks.items() if call[0] != worker}

    def read_hints(self) -> None:
        for worker in {worker for worker, _ in self.asks}:
            inbox = self.store.keys.inbox(worker)
            for hint in self.store.client.lrange(inbox, 0, -1):
                what, number, *_ = hint.decode().split()
                if what == "limit" and (call := (worker, int(number))) in self.asks:
                    self.asks[call] = self.store.now
            self.store.client.delete(inbox)

    def follow(self, real: int | None = None) -> list[int]:
        """Let time pass until all calls have started. Return when they started, in ms from now.

        Args:
            real: The cost that each call reports when it starts, because it ends immediately; None for the reserved cost.
        """
        begin, starts = self.store.now, []
        while self.asks:
            self.read_hints()
            worker, number = min(self.asks, key=lambda call: self.asks[call])
            self.store.later(max(0, self.asks[worker, number] - self.store.now))
            assert self.store.now - begin <= PATIENCE_MS, f"these calls do not start: {sorted(self.asks)}"
            if self.ask(worker, number, self.costs[worker, number]).word == "ok":
                starts.append(self.store.now - begin)
                self.finish(worker, number, real)
        return starts


def set_rate(store: Store, rate: str, burst: int, at_once: int | None = None) -> None:
    store.do(rate_plans.set_rate(store.keys, API, encode_rate(rate, burst, at_once), rate, store.at))


@pytest.fixture
def line(store: Store) -> Line:
    """Calls of w1 and w2 that wait by turns for a rate of 10/s: ten of each."""
    store.join("w1")
    store.join("w2")
    set_rate(store, "10/s", 1)
    made = Line(store)
    made.ask("w1", 1)
    made.finish("w1", 1)
    for number in range(2, 12):
        made.ask("w2", number)
        made.ask("w1", number)
    return made


def condemn(store: Store, worker: str) -> None:
    store.do(coordinator_plans.abandon(store.keys, worker, now=store.at))


FULL_RATE = [100 * place for place in range(1, 11)]


def test_waiting_calls_ask_once_more_and_start_at_the_full_rate(line: Line) -> None:
    asked = line.asked
    assert line.follow() == [100 * place for place in range(1, 21)]
    assert line.asked == asked + 20, "no hint was needed"


@pytest.mark.parametrize("lose", [condemn, Store.leave], ids=["condemned", "left"])
def test_calls_of_a_worker_that_is_gone_leave_no_gap_in_the_rate(
    line: Line, lose: Callable[[Store, str], None]
) -> None:
    line.lose("w2", lose)
    assert line.follow() == FULL_RATE


def test_calls_that_leave_the_line_leave_no_gap_in_the_rate(line: Line) -> None:
    for number in range(2, 12):
        assert line.finish("w2", number, 0) == "left"
    assert line.follow() == FULL_RATE


def test_gap_far_behind_the_front_is_used_when_its_turn_comes(line: Line) -> None:
    for number in (7, 8, 9):
        line.finish("w1", number, 0)
        line.finish("w2", number, 0)
    assert line.follow() == [100 * place for place in range(1, 15)]


def test_calls_that_cost_less_than_they_reserved_use_the_whole_rate(store: Store) -> None:
    store.join("w1")
    set_rate(store, "10/s", 5)
    line = Line(store)
    line.ask("w1", 1, 5)
    for number in range(2, 12):
        line.ask("w1", number, 5)
    line.finish("w1", 1, 1)
    assert line.follow(real=1) == FULL_RATE


def test_tokens_that_are_given_back_are_offered_to_all_calls_that_may_start_now(store: Store) -> None:
    store.join("w1")
    set_rate(store, "1/s", 5)
    line = Line(store)
    line.ask("w1", 1, 5)
    for number in range(2, 7):
        line.ask("w1", number)
    line.finish("w1", 1, 2)
    line.read_hints()
    assert [number for (_, number), at in line.asks.items() if at == store.now] == [2, 3, 4]


def test_higher_rate_counts_for_calls_that_wait_already(line: Line) -> None:
    set_rate(line.store, "100/s", 1)
    assert line.follow() == [10 * place for place in range(1, 21)]


def test_more_places_count_for_calls_that_wait_already(store: Store) -> None:
    store.join("w1")
    store.do(rate_plans.set_rate(store.keys, API, encode_rate(None, None, 0), "none", store.at))
    line = Line(store)
    for number in range(1, 21):
        line.ask("w1", number)
    store.do(rate_plans.set_rate(store.keys, API, encode_rate(None, None, 5), "five", store.at))
    assert line.follow() == [0] * 20


def test_calls_behind_one_that_does_not_ask_keep_the_full_rate(store: Store) -> None:
    for worker in ("w1", "w2"):
        store.join(worker)
    set_rate(store, "10/s", 2)
    line = Line(store)
    assert [line.ask("w1", number).word for number in (1, 2)] == ["ok", "ok"]
    line.ask("w2", 1)  # its worker hangs
    for number in range(3, 13):
        line.ask("w1", number)
    del line.asks["w2", 1]
    assert line.follow() == [100 * place for place in range(2, 12)]
    assert line.ask("w2", 1).word == "ok", "its tokens are still reserved"


def test_calls_behind_one_whose_cost_is_above_a_lower_burst_start_earlier(store: Store) -> None:
    store.join("w1")
    set_rate(store, "10/s", 10)
    line = Line(store)
    line.ask("w1", 1, 10)
    line.ask("w1", 2, 10)
    line.ask("w1", 3)
    store.do(rate_plans.set_rate(store.keys, API, encode_rate("10/s", 9, None), "lower", store.at))
    line.read_hints()
    assert line.ask("w1", 2, 10).word == "large"
    del line.asks["w1", 2]
    line.asks["w1", 3] = store.now + 1100
    assert line.follow() == [200]


def test_calls_whose_rate_is_removed_learn_it_immediately(line: Line) -> None:
    line.store.do(rate_plans.set_rate(line.store.keys, API, "", "removed", line.store.at))
    begin, words = line.store.now, []
    while line.asks:
        line.read_hints()
        worker, number = min(line.asks, key=lambda call: line.asks[call])
        assert line.asks[worker, number] == begin, "nothing tells this call that its rate was removed"
        words.append(line.ask(worker, number).word)
        del line.asks[worker, number]
    assert words == ["unknown"] * 20
