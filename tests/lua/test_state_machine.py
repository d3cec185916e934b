"""Every history of calls gives the answers of the model, even with repeated and late calls and a clock that goes back."""

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
    """Histories chosen by hypothesis, which shrinks a failing history."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.history = History(self.url)

    def teardown(self) -> None:
        self.history.close()

    def step(self, data: st.DataObject, action: Callable[[Choose], None]) -> None:
        if self.history.outlasts_the_server:
            return
        action(lambda options: data.draw(st.sampled_from(options)))
        self.history.assert_store_matches_model()

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.step(data, self.history.start_some_runs)

    @rule(data=st.data())
    def resend_an_earlier_call(self, data: st.DataObject) -> None:
        self.step(data, self.history.resend_an_earlier_call)

    @rule(data=st.data())
    def move_the_clock(self, data: st.DataObject) -> None:
        self.step(data, self.history.move_the_clock)

    @rule(data=st.data())
    def let_time_pass(self, data: st.DataObject) -> None:
        self.step(data, self.history.let_time_pass)

    @rule(data=st.data())
    def call_as_producer(self, data: st.DataObject) -> None:
        self.step(data, self.history.call_as_producer)

    @rule(data=st.data())
    def call_as_worker(self, data: st.DataObject) -> None:
        self.step(data, self.history.call_as_worker)

    @rule(data=st.data())
    def call_as_owner(self, data: st.DataObject) -> None:
        self.step(data, self.history.call_as_owner)

    @rule(data=st.data())
    def end_an_attempt(self, data: st.DataObject) -> None:
        self.step(data, self.history.end_an_attempt)

    @rule(data=st.data())
    def wait_and_signal(self, data: st.DataObject) -> None:
        self.step(data, self.history.wait_and_signal)

    @rule(data=st.data())
    def emit_and_look(self, data: st.DataObject) -> None:
        self.step(data, self.history.emit_and_look)

    @rule(data=st.data())
    def spend_and_join(self, data: st.DataObject) -> None:
        self.step(data, self.history.spend_and_join)

    @rule(data=st.data())
    def call_as_coordinator(self, data: st.DataObject) -> None:
        self.step(data, self.history.call_as_coordinator)


@pytest.mark.matrix("searches for unknown bugs")
def test_every_history_matches_the_model(valkey_server: Server) -> None:
    Runs.url = valkey_server.url
    run_state_machine_as_test(
        Runs,
        settings=settings(
            max_examples=40 * DEEPER, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("seed", range(10 * DEEPER))
def test_long_history_matches_the_model(valkey_server: Server, seed: int) -> None:
    """Compare long random histories, in which every call occurs. Hypothesis prefers short and unusual ones."""
    choose = random.Random(seed).choice
    with closing(History(valkey_server.url)) as history:
        actions = [
            *[history.resend_an_earlier_call] * 3, history.move_the_clock, history.let_time_pass,
            *[history.call_as_producer] * 3, *[history.call_as_worker] * 4, *[history.call_as_owner] * 3,
            history.end_an_attempt, *[history.call_as_coordinator] * 2, *[history.wait_and_signal] * 5,
            *[history.emit_and_look] * 5, *[history.spend_and_join] * 6,
        ]  # fmt: skip
        history.start_some_runs(choose)
        for _ in range(200):
            if history.outlasts_the_server:
                break
            choose(actions)(choose)
            history.assert_store_matches_model()


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("seed", range(10 * DEEPER))
def test_long_history_of_children_that_spend_matches_the_model(valkey_server: Server, seed: int) -> None:
    choose = random.Random(seed).choice
    with closing(History(valkey_server.url)) as history:
        actions = [
            *[history.spend_and_join] * 24, *[history.resend_an_earlier_call] * 3, history.call_as_producer,
            history.call_as_worker, history.call_as_owner, history.end_an_attempt, *[history.let_time_pass] * 2,
        ]  # fmt: skip
        history.start_some_runs(choose)
        for _ in range(300):
            if history.outlasts_the_server:
                break
            choose(actions)(choose)
            history.assert_store_matches_model()


def test_failure_names_the_difference_and_the_calls_before_it(valkey_server: Server) -> None:
    choose = random.Random(1).choice
    with closing(History(valkey_server.url)) as history:
        history.start_some_runs(choose)
        run = next(iter(history.model.runs))
        history.store.client.delete(history.store.keys.run(run))
        with pytest.raises(AssertionError, match=rf"the server lacks 'run:{run}'\nafter \d+ calls in .*") as caught:
            history.assert_store_matches_model()
    assert "enqueue: ('created', " in str(caught.value)
