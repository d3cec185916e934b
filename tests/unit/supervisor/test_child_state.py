"""The table of a worker process's states, and what the supervisor concludes from them."""

from __future__ import annotations

import pytest

from workers.supervisor.child_state import NOBODY, TRANSITIONS, ChildEvent, ChildLifecycle, ChildState, next_state

S, E = ChildState, ChildEvent
RUNNING = {S.STARTING, S.READY, S.DRAINING, S.HURRYING}
FINAL = [S.LEFT, S.UNFINISHED, S.STOPPED, S.KILLED, S.DIED]


def test_transition_table_is_exactly_as_expected() -> None:
    table = {
        (state, event): after
        for event in ChildEvent
        for state in ChildState
        if (after := next_state(state, event)) is not state
    }
    assert table == {
        (S.STARTING, E.BECAME_READY): S.READY,
        (S.STARTING, E.DRAIN_REQUESTED): S.DRAINING,
        (S.READY, E.DRAIN_REQUESTED): S.DRAINING,
        (S.STARTING, E.HURRY_REQUESTED): S.HURRYING,
        (S.READY, E.HURRY_REQUESTED): S.HURRYING,
        (S.DRAINING, E.HURRY_REQUESTED): S.HURRYING,
        **{(state, E.SAID_LEFT): S.LEFT for state in RUNNING | {S.UNFINISHED, S.KILLED}},
        **{(state, E.SAID_UNFINISHED): S.UNFINISHED for state in RUNNING | {S.KILLED}},
        **{(state, E.KILLED_AS_OVERDUE): S.KILLED for state in RUNNING},
        **{(state, E.KILLED_AS_BLOCKED): S.KILLED for state in RUNNING | {S.LEFT, S.UNFINISHED}},
        **{(state, E.STOPPED_EARLY): S.STOPPED for state in (S.DRAINING, S.HURRYING)},
        **{(state, E.EXITED): S.DIED for state in RUNNING},
        (S.UNFINISHED, E.FOUND_EMPTY): S.LEFT,
    }


def test_every_event_has_an_entry_and_every_state_can_end() -> None:
    assert set(TRANSITIONS) == set(ChildEvent)
    assert {next_state(state, E.EXITED) for state in ChildState} == set(FINAL)


@pytest.mark.parametrize("state", FINAL)
def test_no_request_changes_a_final_state(state: ChildState) -> None:
    for event in (E.BECAME_READY, E.DRAIN_REQUESTED, E.HURRY_REQUESTED, E.STOPPED_EARLY, E.KILLED_AS_OVERDUE, E.EXITED):
        assert next_state(state, event) is state


def test_second_drain_request_is_not_reported_as_the_first() -> None:
    child = ChildLifecycle()
    assert (child.request_drain(), child.request_drain()) == (True, False)
    states = [child.state]
    assert (child.request_hurry(), child.request_hurry()) == (True, False)
    assert [*states, child.state] == [S.DRAINING, S.HURRYING]


def test_child_that_becomes_ready_while_draining_counts_as_started() -> None:
    child = ChildLifecycle()
    child.request_drain()
    child.record_ready()
    assert child.state is S.DRAINING
    assert child.became_ready.is_set()


def test_child_that_has_left_can_still_be_asked_to_drain() -> None:
    """A child that hangs after its last report becomes overdue only because it was asked."""
    child = ChildLifecycle()
    child.record_left()
    assert child.request_drain()
    assert child.drain_requested.is_set()
    assert child.state is S.LEFT


def test_all_runs_of_a_crashed_child_are_blamed() -> None:
    child = ChildLifecycle()
    child.record_ready()
    child.record_exit()
    assert (child.state, child.blame) == (S.DIED, "")


def test_only_the_run_that_blocked_the_event_loop_is_blamed() -> None:
    child = ChildLifecycle()
    child.record_blocked_kill("run-1")
    child.record_exit()
    assert (child.state, child.blame) == (S.KILLED, "run-1")


def test_no_run_is_blamed_when_a_child_does_not_stop_in_time() -> None:
    child = ChildLifecycle()
    child.request_drain()
    child.record_overdue_kill()
    child.record_exit()
    assert (child.state, child.blame) == (S.KILLED, NOBODY)


def test_no_run_is_blamed_when_a_child_is_stopped_before_it_has_started() -> None:
    child = ChildLifecycle()
    child.request_drain()
    child.record_early_stop()
    child.record_exit()
    assert (child.state, child.blame) == (S.STOPPED, NOBODY)


def test_child_that_nobody_asked_to_end_has_died() -> None:
    child = ChildLifecycle()
    child.record_early_stop()
    child.record_exit()
    assert child.state is S.DIED


def test_last_report_of_a_killed_child_counts() -> None:
    child = ChildLifecycle()
    child.record_blocked_kill("run-1")
    child.record_left()
    child.record_exit()
    assert (child.state, child.blame) == (S.LEFT, NOBODY)


def test_drained_child_without_runs_on_the_server_has_left() -> None:
    child = ChildLifecycle()
    child.record_unfinished()
    child.record_exit()
    assert (child.state, child.blame) == (S.UNFINISHED, NOBODY)
    child.record_empty()
    assert child.state is S.LEFT
