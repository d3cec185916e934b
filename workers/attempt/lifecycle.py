"""The life cycle of an attempt, as two state machines. Only this module changes the states.

The stage says how far the attempt has come:

    LOADING --start--> PERFORMING --decide--> DECIDED
    PERFORMING --decide_without_handler--> LEFT_BEHIND --decide--> DECIDED
    LOADING --decide or decide_without_handler--> DECIDED

The stop stage says whether the attempt was asked to stop, and whether the handler has noticed:

    NONE --request--> REQUESTED --deliver--> DELIVERED

A stop is raised in the handler once. After that the handler may clean up, and its clean-up may save. An exception that the handler
raises afterwards counts as the stop.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from coordinator.model.outcome import Stop, Why
from coordinator.model.policies.deadline import DeadlineExceeded
from workers.handlers.facts import Stopped


class Stage(Enum):
    """The stages of an attempt."""

    LOADING = "loading"  # the run is claimed, and the handler's first line has not been reached
    PERFORMING = "performing"  # the handler runs
    LEFT_BEHIND = "left behind"  # the outcome was decided without the handler, which still runs
    DECIDED = "decided"  # the outcome is decided, and the handler does not run


class StopStage(Enum):
    """The stages of a stop of an attempt."""

    NONE = "none"
    REQUESTED = "requested"
    DELIVERED = "delivered"  # an exception was raised in the handler


TRANSITIONS: dict[str, dict[Stage, Stage]] = {
    "start": {Stage.LOADING: Stage.PERFORMING},
    "decide": {
        Stage.LOADING: Stage.DECIDED,
        Stage.PERFORMING: Stage.DECIDED,
        Stage.LEFT_BEHIND: Stage.DECIDED,
        Stage.DECIDED: Stage.DECIDED,  # the outcome was decided without the handler while the attempt was loading
    },
    "decide_without_handler": {Stage.LOADING: Stage.DECIDED, Stage.PERFORMING: Stage.LEFT_BEHIND},
    "abort": dict.fromkeys(Stage, Stage.DECIDED),
}

STOP_TRANSITIONS: dict[str, dict[StopStage, StopStage]] = {
    "request": {
        StopStage.NONE: StopStage.REQUESTED,
        StopStage.REQUESTED: StopStage.REQUESTED,
        StopStage.DELIVERED: StopStage.DELIVERED,  # a stop is raised in the handler once, even if another reason follows
    },
    "deliver": {StopStage.REQUESTED: StopStage.DELIVERED, StopStage.DELIVERED: StopStage.DELIVERED},
}


class IllegalTransition(RuntimeError):
    """The error of a transition that is not possible in the current stage. It means a bug in the worker."""


class Lifecycle:
    """The states of one attempt.

    A plain handler runs in a thread and delivers its stop there. All other transitions happen on the worker's event loop. The two
    threads do not overwrite each other's stages: a stop stage only moves forward, and a transition that keeps a stage does not
    write it.
    """

    def __init__(self) -> None:
        self._stage = Stage.LOADING
        self._stop_stage = StopStage.NONE
        self._stopping: Stopped | None = None
        self._killed: DeadlineExceeded | None = None

    # -- states

    @property
    def stage(self) -> Stage:
        """The present stage of the attempt."""
        return self._stage

    @property
    def performing(self) -> bool:
        """Return True if the handler of the attempt runs."""
        return self._stage is Stage.PERFORMING or self._stage is Stage.LEFT_BEHIND

    @property
    def decided(self) -> bool:
        """Return True if the outcome is decided. From then on, results and errors of the handler are ignored."""
        return self._stage is Stage.DECIDED or self._stage is Stage.LEFT_BEHIND

    @property
    def stopping(self) -> Stopped | None:
        """The stop that was requested, or None."""
        return self._stopping

    @property
    def delivered(self) -> bool:
        """Return True if an exception was raised in the handler because of the stop."""
        return self._stop_stage is StopStage.DELIVERED

    @property
    def lost(self) -> bool:
        """Return True if the run belongs to another owner now."""
        return self._stopping is not None and self._stopping.why == "lost"

    @property
    def killed(self) -> DeadlineExceeded | None:
        """The error with which a killed run fails, or None."""
        return self._killed

    @property
    def may_be_killed(self) -> bool:
        """Return True if a deadline may still kill the attempt.

        The value is False while the attempt is being cancelled or after it was lost, because it ends anyway. It is True while
        the attempt drains: draining may take long, and the run would continue afterwards.
        """
        return self._killed is None and (self._stopping is None or self._stopping.why in ("drain", "wait"))

    @property
    def stop_request(self) -> Stop | None:
        """The requested stop, as the argument that `classify` takes; None if no stop was requested."""
        return None if self._stopping is None else Stop(self._stopping.why, self.delivered, self._killed)

    # -- transitions of the stage

    def start(self) -> None:
        """Record that the handler's first line is about to run."""
        self._move("start")

    def decide(self) -> bool:
        """Record that the handler has ended, or that it could not be started.

        Returns:
            False if the outcome was decided without the handler before.
        """
        first = not self.decided
        self._move("decide")
        return first

    def decide_without_handler(self) -> None:
        """Record that the outcome is decided although the handler may still run."""
        self._move("decide_without_handler")

    def abort(self) -> None:
        """Record that the worker failed to carry out the attempt. This transition is possible in every stage."""
        self._move("abort")

    def _move(self, transition: str) -> None:
        after = TRANSITIONS[transition].get(self._stage)
        if after is None:
            raise IllegalTransition(f"{transition} is not possible while the attempt is {self._stage.value}")
        self._stage = after

    # -- transitions of the stop

    def request_stop(self, why: Why) -> bool:
        """Ask the handler to stop. Only the loss of the run overrides an earlier reason.

        Returns:
            False if an earlier request stays in force.
        """
        if self._stopping is None or (why == "lost" and self._stopping.why != "lost"):
            self._request(Stopped(why))
            return True
        return False

    def request_kill(self, error: DeadlineExceeded) -> None:
        """Ask the handler to stop because a deadline of the run has passed.

        The run fails with `error`, unless the handler returns a result first.
        """
        self._killed = error
        self._request(Stopped("deadline"))

    def _request(self, stopping: Stopped) -> None:
        # The handler's thread may deliver the stop as soon as it sees `_stopping`, so the stage is written first.
        self._move_stop("request")
        self._stopping = stopping

    def deliver_stop(self) -> None:
        """Record that an exception was raised in the handler because of the stop."""
        self._move_stop("deliver")

    def raise_stop(self, may_drain: Callable[[], bool] = lambda: True) -> None:
        """Raise the requested stop, unless it has been delivered before.

        Args:
            may_drain: Returns False where a drain must not stop the handler yet, because its turn would be repeated. It is
                called only while a drain is requested.

        Raises:
            Stopped: The first time after a stop was requested.
        """
        stopping = self._stopping
        if stopping is None or self.delivered or self.defers_drain(may_drain):
            return
        self.deliver_stop()
        raise stopping

    def defers_drain(self, may_drain: Callable[[], bool]) -> bool:
        """Return True if a drain is requested that must not be raised here. For `may_drain` see `raise_stop`."""
        stopping = self._stopping
        return stopping is not None and stopping.why == "drain" and not self.delivered and not may_drain()

    def _move_stop(self, transition: str) -> None:
        before = self._stop_stage
        after = STOP_TRANSITIONS[transition].get(before)
        if after is None:
            raise IllegalTransition(f"{transition} is not possible while the stop stage is {before.value}")
        if after is not before:
            self._stop_stage = after
