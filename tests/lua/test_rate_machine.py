"""Every history of calls under a rate: the rate is kept, no call starves, and repeated and late calls change nothing."""

from __future__ import annotations

import os
import random
from contextlib import closing

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.lua.rate_history import RateHistory
from tests.servers import Server

DEEPER = int(os.environ.get("RUNS_TEST_DEPTH", "1"))


class Rates(RuleBasedStateMachine):
    """Histories chosen by hypothesis, which shrinks a failing history."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.history = RateHistory(self.url)

    def teardown(self) -> None:
        self.history.finish()
        self.history.close()

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        def choose(options: object) -> object:
            return data.draw(st.sampled_from(options))  # type: ignore[call-overload]

        data.draw(st.sampled_from(self.history.actions))(choose)
        self.history.check()


def test_every_history_of_calls_keeps_the_rate(valkey_server: Server) -> None:
    Rates.url = valkey_server.url
    run_state_machine_as_test(
        Rates,
        settings=settings(
            max_examples=15 * DEEPER, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("seed", range(6 * DEEPER))
def test_long_history_of_calls_keeps_the_rate(valkey_server: Server, seed: int) -> None:
    choose = random.Random(seed).choice
    with closing(RateHistory(valkey_server.url)) as history:
        for _ in range(150):
            choose(history.actions)(choose)
            history.check()
        history.finish()
