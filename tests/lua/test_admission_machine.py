"""Every history of runs with groups: no run lost, none admitted twice, no limit exceeded, and no run starves."""

from __future__ import annotations

import os
import random
from contextlib import closing

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.lua.admission import RATES, AdmissionHistory
from tests.servers import Server

DEEPER = int(os.environ.get("RUNS_TEST_DEPTH", "1"))


class Admissions(RuleBasedStateMachine):
    """Histories chosen by hypothesis, which shrinks a failing history."""

    url = ""
    history: AdmissionHistory | None = None

    @initialize(rate=st.sampled_from(RATES))
    def begin(self, rate: str) -> None:
        self.history = AdmissionHistory(self.url, rate)

    def teardown(self) -> None:
        if self.history is not None:
            with closing(self.history):
                self.history.finish()

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        def choose(options: object) -> object:
            return data.draw(st.sampled_from(options))  # type: ignore[call-overload]

        assert self.history is not None
        data.draw(st.sampled_from(self.history.actions))(choose)
        self.history.check()


def test_every_history_of_admissions_keeps_the_limits(valkey_server: Server) -> None:
    Admissions.url = valkey_server.url
    run_state_machine_as_test(
        Admissions,
        settings=settings(
            max_examples=10 * DEEPER, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("seed", range(12 * DEEPER))
def test_long_history_of_admissions_keeps_the_limits(valkey_server: Server, seed: int) -> None:
    choose = random.Random(seed).choice
    with closing(AdmissionHistory(valkey_server.url, RATES[seed % len(RATES)])) as history:
        for _ in range(80):
            choose(history.actions)(choose)
            history.check()
        history.finish()
