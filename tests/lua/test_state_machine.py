"""Any history of calls, repeated and late, with a clock that steps both ways, is one that the model allows."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import closing

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.lua.history import Choose, History
from tests.servers import Server

DEEPER = int(os.environ.get("RUNS_TEST_DEPTH", "1"))


class Runs(RuleBasedStateMachine):
    """Hypothesis chooses, and shrinks what it finds."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.history = History(self.url)

    def teardown(self) -> None:
        self.history.close()

    def step(self, data: st.DataObject, action: Callable[[Choose], None]) -> None:
        action(lambda options: data.draw(st.sampled_from(options)))
        self.history.must_agree()

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.step(data, self.history.something_is_going_on)

    @rule(data=st.data())
    def something_arrives_again_or_late(self, data: st.DataObject) -> None:
        self.step(data, self.history.something_arrives_again_or_late)

    @rule(data=st.data())
    def the_clock_moves(self, data: st.DataObject) -> None:
        self.step(data, self.history.the_clock_moves)

    @rule(data=st.data())
    def time_passes_quietly(self, data: st.DataObject) -> None:
        self.step(data, self.history.time_passes_quietly)

    @rule(data=st.data())
    def a_producer_calls(self, data: st.DataObject) -> None:
        self.step(data, self.history.a_producer_calls)

    @rule(data=st.data())
    def a_worker_calls(self, data: st.DataObject) -> None:
        self.step(data, self.history.a_worker_calls)

    @rule(data=st.data())
    def an_owner_saves(self, data: st.DataObject) -> None:
        self.step(data, self.history.an_owner_saves)

    @rule(data=st.data())
    def an_owner_ends_its_attempt(self, data: st.DataObject) -> None:
        self.step(data, self.history.an_owner_ends_its_attempt)

    @rule(data=st.data())
    def a_coordinator_calls(self, data: st.DataObject) -> None:
        self.step(data, self.history.a_coordinator_calls)


def test_every_history_matches_the_model(valkey_server: Server) -> None:
    Runs.url = valkey_server.url
    run_state_machine_as_test(
        Runs,
        settings=settings(
            max_examples=40 * DEEPER, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("seed", range(10 * DEEPER))
def test_long_history_matches_the_model(valkey_server: Server, seed: int) -> None:
    """Hypothesis tends to short and odd ones; these go on for long, and everything happens in them."""
    choose = random.Random(seed).choice
    with closing(History(valkey_server.url)) as history:
        actions = [
            *[history.something_arrives_again_or_late] * 3, history.the_clock_moves, history.time_passes_quietly,
            *[history.a_producer_calls] * 3, *[history.a_worker_calls] * 4, *[history.an_owner_saves] * 3,
            history.an_owner_ends_its_attempt, *[history.a_coordinator_calls] * 2,
        ]  # fmt: skip
        history.something_is_going_on(choose)
        for _ in range(200):
            choose(actions)(choose)
            history.must_agree()
