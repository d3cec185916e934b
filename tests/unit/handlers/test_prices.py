"""Prices of models, with the real library: the dollars of a call are computed, and an unknown model is an error."""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Any

import pytest

from coordinator.errors import BadOption
from coordinator.model.policies.budget import Spending
from workers import Budget, BudgetExceeded, Retry, UnknownPrice, testing
from workers.handlers.operations.prices import price


def test_call_of_a_model_counts_its_tokens_and_dollars() -> None:
    run = testing.Run()
    run.spend(model="gpt-4o", input_tokens=1_000, output_tokens=100, requests=1)
    cost = price(model="gpt-4o", input_tokens=1_000, output_tokens=100)
    assert run.spent == Spending(float(cost), 1_100, 1)
    assert 0 < cost < 1


def test_tokens_from_a_cache_cost_less_and_are_counted_once() -> None:
    run = testing.Run()
    run.spend(model="claude-sonnet-4-5", input_tokens=10_000, cache_read_tokens=9_000)
    assert run.spent.tokens == 10_000
    assert Decimal(str(run.spent.usd)) < price(model="claude-sonnet-4-5", input_tokens=10_000)


def test_provider_selects_among_models_of_the_same_name() -> None:
    assert price(model="gpt-4o", provider="openai", input_tokens=1_000) > 0
    with pytest.raises(UnknownPrice, match="nobody"):
        price(model="gpt-4o", provider="nobody", input_tokens=1_000)


def test_unknown_model_is_an_error_and_its_tokens_are_counted() -> None:
    run = testing.Run()
    with pytest.raises(UnknownPrice, match=r"does not know model 'no-such-model'.*run\.spend\(usd=…\)"):
        run.spend(model="no-such-model", input_tokens=5, output_tokens=2, requests=1)
    assert run.spent == Spending(0, 7, 1)


def test_no_retry_policy_retries_an_unknown_price() -> None:
    error = UnknownPrice("the table of prices does not know model 'm'")
    for raised in (error, ExceptionGroup("calls", [ValueError(), error])):
        assert Retry(limit=5).next_delay(1, raised) is None


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    run = testing.Run()
    with pytest.raises(UnknownPrice, match=r"run-coordinator\[prices\]"):
        run.spend(model="gpt-4o", input_tokens=5)
    run.spend(usd=1, tokens=5)
    assert run.spent == Spending(1, 10, 0), "amounts without a model need no package"


WRONG: list[dict[str, Any]] = [
    {"input_tokens": 5},
    {"model": 3, "input_tokens": 5},
    {"model": "gpt-4o", "input_tokens": -1},
    {"model": "gpt-4o", "output_tokens": 1.5},
    {"model": "gpt-4o", "input_tokens": 5, "cache_read_tokens": 6},
    {"modell": "gpt-4o"},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_usage_that_is_not_valid_counts_nothing(wrong: Any) -> None:
    run = testing.Run()
    with pytest.raises(BadOption):
        run.spend(usd=1, **wrong)
    assert run.spent == Spending(0, 0, 0)


def test_reservation_counts_the_call_of_a_model() -> None:
    run = testing.Run()
    run._declare_budget(Budget(usd=0.05))
    with run.reserve(usd=0.05) as call:
        call.spend(model="gpt-4o", input_tokens=10_000, output_tokens=1_000, requests=1)
    assert run.spent.tokens == 11_000
    assert run.spent.usd == pytest.approx(float(price(model="gpt-4o", input_tokens=10_000, output_tokens=1_000)))
    with pytest.raises(BudgetExceeded), run.reserve(usd=0.05):
        pass
