"""Every history of runs with groups: no run lost, none admitted twice, no limit exceeded, and no run starves."""

from __future__ import annotations

import os
import random
from contextlib import closing

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.lua.admission import AdmissionHistory
from tests.servers import Server

DEEPER = int(os.environ.get("RUNS_TEST_DEPTH", "1"))


class Admissions(RuleBasedStateMachine):
    """Histories chosen by hypothesis, which shrinks a failing history."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.history = AdmissionHistory(self.url)

    def teardown(self) -> None:
        self.history.finish()
        self.history.close()

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        def choose(options: object) -> object:
            return data.draw(st.sampled_from(options))  # type: ignore[call-overload]

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


@pytest.mark.parametrize("seed", range(4 * DEEPER))
def test_long_history_of_admissions_keeps_the_limits(valkey_server: Server, seed: int) -> None:
    choose = random.Random(seed).choice
    with closing(AdmissionHistory(valkey_server.url)) as history:
        for _ in range(80):
            choose(history.actions)(choose)
            history.check()
        history.finish()
