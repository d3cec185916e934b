"""The life cycle of an attempt: every transition from every stage, and the meaning of the stages."""

from __future__ import annotations

import itertools

import pytest

from coordinator.model.outcome import Stop
from coordinator.model.policies.deadline import DeadlineExceeded
from workers.attempt.lifecycle import STOP_TRANSITIONS, TRANSITIONS, IllegalTransition, Lifecycle, Stage, StopStage
from workers.handlers.facts import Stopped

LOADING, PERFORMING, LEFT_BEHIND, DECIDED = Stage
NONE, REQUESTED, DELIVERED = StopStage

EXPECTED = {
    ("start", LOADING): PERFORMING,
    ("decide", LOADING): DECIDED,
    ("decide", PERFORMING): DECIDED,
    ("decide", LEFT_BEHIND): DECIDED,
    ("decide", DECIDED): DECIDED,
    ("decide_without_handler", LOADING): DECIDED,
    ("decide_without_handler", PERFORMING): LEFT_BEHIND,
    ("abort", LOADING): DECIDED,
    ("abort", PERFORMING): DECIDED,
    ("abort", LEFT_BEHIND): DECIDED,
    ("abort", DECIDED): DECIDED,
}
EXPECTED_STOPS = {
    ("request_stop", NONE): REQUESTED,
    ("request_stop", REQUESTED): REQUESTED,
    ("request_stop", DELIVERED): DELIVERED,
    ("deliver_stop", REQUESTED): DELIVERED,
    ("deliver_stop", DELIVERED): DELIVERED,
}
ERROR = DeadlineExceeded("too late")


def in_stage(stage: Stage) -> Lifecycle:
    """Return a life cycle that has reached a stage by transitions."""
    life = Lifecycle()
    if stage in (PERFORMING, LEFT_BEHIND):
        life.start()
    if stage is LEFT_BEHIND:
        life.decide_without_handler()
    if stage is DECIDED:
        life.decide()
    assert life.stage is stage
    return life


def in_stop_stage(stage: StopStage) -> Lifecycle:
    life = Lifecycle()
    if stage in (REQUESTED, DELIVERED):
        life.request_stop("drain")
    if stage is DELIVERED:
        life.deliver_stop()
    assert life._stop_stage is stage
    return life


@pytest.mark.parametrize(("transition", "stage"), [*itertools.product(TRANSITIONS, Stage)])
def test_each_transition_from_each_stage(transition: str, stage: Stage):
    life = in_stage(stage)
    after = EXPECTED.get((transition, stage))
    if after is None:
        with pytest.raises(IllegalTransition, match=f"{transition} is not possible while the attempt is {stage.value}"):
            getattr(life, transition)()
        assert life.stage is stage
    else:
        getattr(life, transition)()
        assert life.stage is after


@pytest.mark.parametrize(("transition", "stage"), [*itertools.product(["request_stop", "deliver_stop"], StopStage)])
def test_each_transition_of_a_stop_from_each_stage(transition: str, stage: StopStage):
    life = in_stop_stage(stage)
    after = EXPECTED_STOPS.get((transition, stage))
    arguments = ["lost"] if transition == "request_stop" else []
    if after is None:
        with pytest.raises(IllegalTransition):
            getattr(life, transition)(*arguments)
        assert life._stop_stage is stage
    else:
        getattr(life, transition)(*arguments)
        assert life._stop_stage is after


def test_tables_contain_only_the_expected_transitions():
    listed = {(name, stage): after for name, row in TRANSITIONS.items() for stage, after in row.items()}
    assert listed == EXPECTED
    stops = {(f"{name}_stop", stage): after for name, row in STOP_TRANSITIONS.items() for stage, after in row.items()}
    assert stops == EXPECTED_STOPS


@pytest.mark.parametrize(
    ("stage", "performing", "decided"),
    [(LOADING, False, False), (PERFORMING, True, False), (LEFT_BEHIND, True, True), (DECIDED, False, True)],
)
def test_which_stages_perform_and_which_are_decided(stage: Stage, performing: bool, decided: bool):
    life = in_stage(stage)
    assert (life.performing, life.decided) == (performing, decided)


@pytest.mark.parametrize(
    ("stage", "first"), [(LOADING, True), (PERFORMING, True), (LEFT_BEHIND, False), (DECIDED, False)]
)
def test_only_the_first_decision_counts(stage: Stage, first: bool):
    assert in_stage(stage).decide() is first


def test_first_stop_reason_counts_and_a_loss_overrides_it():
    life = Lifecycle()
    assert life.request_stop("cancel")
    assert not life.request_stop("drain")
    assert life.stopping is not None
    assert life.stopping.why == "cancel"
    assert life.request_stop("lost")
    assert life.lost
    assert not life.request_stop("lost")


def test_stop_is_raised_once():
    life = Lifecycle()
    life.raise_stop()
    life.request_stop("drain")
    with pytest.raises(Stopped) as caught:
        life.raise_stop()
    assert caught.value is life.stopping
    assert life.delivered
    life.raise_stop()


def test_second_reason_does_not_raise_again():
    life = in_stop_stage(DELIVERED)
    life.request_kill(ERROR)
    life.raise_stop()
    assert life.stop_request == Stop("deadline", True, ERROR)


@pytest.mark.parametrize(("why", "may"), [(None, True), ("drain", True), ("cancel", False), ("lost", False)])
def test_drain_may_be_followed_by_a_kill_but_a_cancel_may_not(why, may: bool):
    life = Lifecycle()
    if why is not None:
        life.request_stop(why)
    assert life.may_be_killed is may


def test_kill_happens_once_and_carries_its_error():
    life = Lifecycle()
    assert life.stop_request is None
    life.request_kill(ERROR)
    assert not life.may_be_killed
    assert life.killed is ERROR
    assert life.stop_request == Stop("deadline", False, ERROR)
