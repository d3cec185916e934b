"""The crash matrix and the drain matrix: kill or stop a handler at each of its cuts, resume it, and compare the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from coordinator.errors import Refused
from coordinator.model.enqueue import Inputs
from coordinator.model.policies.budget import TOPIC, Amount
from coordinator.model.policies.retry import is_unknown
from workers.handlers.handler import Handler
from workers.testing.rounds import Fault, Round

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Matrix:
    """The result of a crash matrix or a drain matrix.

    Args:
        cuts: How many cuts the handler has. The matrix killed or stopped the handler once at each of them.
        result: The value that the handler returns.
        effects: The value that `effects` returned without a crash or a stop.
        emitted: The values that the handler emitted, as a reader has them at the end.
        waits: How often the run was suspended at a wait in the rounds that send each signal only when the run waits for it.
        unknown: How many rounds of a crash matrix ended with OutcomeUnknown, because the handler was killed in the middle of an
            effect of `run.once` that has no `check`. The results and effects of these rounds are not compared.
    """

    cuts: int
    result: Any
    effects: Any
    waits: int = 0
    emitted: tuple[Any, ...] = ()
    unknown: int = 0


def crash_matrix(
    inputs: Inputs[Any],
    resources: Callable[[], R] | None = None,
    effects: Callable[[R], Any] | None = None,
    signals: Sequence[tuple[str, Any]] = (),
    grants: Sequence[Mapping[str, float]] = (),
) -> Matrix:
    """Kill a handler at each of its cuts, resume it, and check that the run ends in the same way as without a crash.

    The result, the effects, and the events that a reader has at the end must be the same.

    In one more round the matrix pauses an attempt at a cut, lets a second attempt do the work, and then lets the first attempt
    continue. The same happens when a worker is paused for longer than its lease.

    The matrix kills the handler right after a cut was saved. Work between two cuts is repeated after a crash in the middle, so
    put each effect that must not be repeated into `run.once`, or make it safe to repeat.

    The handler is killed at three points of each effect of `run.once`: after the effect was saved as begun, between its call and
    the save of its output, and after this save. A round in which the handler raises OutcomeUnknown passes, and is counted in
    `Matrix.unknown`.

    A handler that waits is tested in two ways. In the first rounds all signals are sent before the run starts, and the time jumps
    to the end of a sleep. In the rounds after them the run is suspended at each wait: then the matrix sends the next signal that
    the run waits for, and calls the handler again from its first line. If no signal is left for a wait, the timeout ends the wait.

    Args:
        inputs: The handler and its inputs, as in `research.inputs("tides")`.
        resources: A function that creates a stand-in for the outside world. It is called once for each round, and the handler gets
            the stand-in as `run.resources`.
        effects: A function that returns the effects of the handler on this stand-in, for example a list of calls.
        signals: The signals for the run, as in `[("approval", {"by": "ada"})]`, in the order in which they are sent.
        grants: The grants for a run whose budget has `then="wait"`, as in `[{"usd": 5}]`. They are sent like signals.

    Returns:
        The number of cuts, and the result of the handler.

    Raises:
        AssertionError: If a round had another result or other effects, or did not reach the same cuts; if the handler has no cut;
            or if it waits for a signal that is not in `signals`, or for a grant that is not in `grants`.
        Refused: If `inputs` was not made by `handler.inputs(…)`.
    """
    trials = _Trials(_handler_of(inputs, "crash_matrix"), inputs, resources, effects, signals, grants)
    if not trials.cuts:
        raise AssertionError(
            f"the handler of {inputs.kind!r} has no cut, so there is nothing to kill it at: use run.phase, run.loop, "
            "run.checkpoint or run.flush, or test it without crash_matrix"
        )
    for late in trials.ways:
        cuts = trials.undisturbed(late)
        for number in range(1, cuts + 1):
            trials.disturbed(late, "crash", number, f"after a crash at cut {number} of {cuts}")
        for number in trials.effect_cuts:
            trials.disturbed(late, "loss", number, f"after a crash right before cut {number} of {cuts} was saved")
        number = (cuts + 1) // 2
        trials.disturbed(late, "zombie", number, f"with an attempt that was paused at cut {number} and woke up later")
    return trials.matrix


def drain_matrix(
    inputs: Inputs[Any],
    resources: Callable[[], R] | None = None,
    effects: Callable[[R], Any] | None = None,
    signals: Sequence[tuple[str, Any]] = (),
    grants: Sequence[Mapping[str, float]] = (),
) -> Matrix:
    """Ask a handler to stop at each of its cuts, as a deploy does, and check that its result and its effects are the same.

    In each round the worker begins to drain at another cut. The handler stops at this cut, or at the end of its turn of `loop` if
    the turn would otherwise be repeated. Then the handler is resumed. Unlike in `crash_matrix`, the work between two cuts is done
    once, as long as each turn ends within the grace. A handler that waits is tested in the same two ways as by `crash_matrix`.

    Args:
        inputs: The handler and its inputs, as in `research.inputs("tides")`.
        resources: A function that creates a stand-in for the outside world. It is called once for each round, and the handler gets
            the stand-in as `run.resources`.
        effects: A function that returns the effects of the handler on this stand-in, for example a list of calls.
        signals: The signals for the run, as in `[("approval", {"by": "ada"})]`, in the order in which they are sent.
        grants: The grants for a run whose budget has `then="wait"`, as in `[{"usd": 5}]`. They are sent like signals.

    Returns:
        The number of cuts, and the result of the handler.

    Raises:
        AssertionError: If a round had another result or other effects, or if the handler waits for a signal that is not in
            `signals`, or for a grant that is not in `grants`.
        Refused: If `inputs` was not made by `handler.inputs(…)`.
    """
    trials = _Trials(_handler_of(inputs, "drain_matrix"), inputs, resources, effects, signals, grants)
    for late in trials.ways:
        cuts = trials.undisturbed(late)
        for number in range(1, cuts + 1):
            trials.disturbed(late, "drain", number, f"after a drain that began at cut {number} of {cuts}")
    return trials.matrix


def _amount(usd: float = 0, tokens: float = 0, requests: float = 0) -> list[int]:
    """Return the payload of a grant.

    Raises:
        BadOption: If a number is not valid.
    """
    return [*Amount.of(usd, cast("int", tokens), cast("int", requests))]


def _handler_of(inputs: Inputs[Any], caller: str) -> Handler[..., Any]:
    if not isinstance(inputs.handler, Handler):
        raise Refused(f"{caller} needs the inputs of a handler: pass handler.inputs(…)")
    return inputs.handler


class _Trials:
    """The rounds of a matrix. The first round has no fault, and gets all signals before it starts. The others are compared with it.

    Attributes:
        cuts: How many cuts the first round had.
        effect_cuts: The cuts that saved an effect as done, in the last round without a fault.
        ways: The values of `late` for the rounds: False, and also True if the handler waits. See `Round`.
        matrix: The result of the matrix.
    """

    def __init__(
        self,
        handler: Handler[..., Any],
        inputs: Inputs[Any],
        resources: Callable[[], Any] | None,
        effects: Callable[[Any], Any] | None,
        signals: Sequence[tuple[str, Any]],
        grants: Sequence[Mapping[str, float]],
    ) -> None:
        sent = [*signals, *((TOPIC, _amount(**grant)) for grant in grants)]
        self._make: Callable[[bool], Round] = lambda late: Round(handler, inputs, resources, effects, sent, late)
        first = self._make(False)
        self._result = first.play()
        self._effects, self.cuts, self._waits, self._unknown = first.effects(), first.cuts, 0, 0
        self.effect_cuts = first.effect_cuts
        self._emitted = first.emitted()
        # A run that gets its grants before it starts does not wait for them.
        self.ways = (False, True) if first.waited or grants else (False,)

    def undisturbed(self, late: bool) -> int:
        """Return the number of cuts in a round without a fault.

        If `late` is True, execute this round now, and compare its result with the first round.
        """
        if not late:
            return self.cuts
        played = self._make(True)
        self._compare(played, played.play(), "", late)
        self._waits, self.effect_cuts = played.wakes, played.effect_cuts
        return played.cuts

    def disturbed(self, late: bool, fault: Fault, number: int, when: str) -> None:
        """Execute the run with a fault at a cut, and compare its result and its effects with the first round, which had no fault.

        Raises:
            AssertionError: If the result or the effects differ.
        """
        played = self._make(late)
        try:
            result = played.play(fault, number)
        except Exception as error:
            if fault == "drain" or not is_unknown(error):  # a drain waits for the end of an effect
                raise
            self._unknown += 1
            return
        self._compare(played, result, when, late)

    def _compare(self, played: Round, result: Any, when: str, late: bool) -> None:
        waiting = "suspended at each wait" if late else ""
        told = ", ".join(filter(None, [when, waiting]))
        for what, found, expected in (
            ("the handler returned", result, self._result),
            ("the effects were", played.effects(), self._effects),
            ("the emitted events were", played.emitted(), self._emitted),
        ):
            if found != expected:
                raise AssertionError(f"{told}, {what} {found!r}; without a crash or a suspension: {expected!r}")

    @property
    def matrix(self) -> Matrix:
        return Matrix(self.cuts, self._result, self._effects, self._waits, tuple(self._emitted), self._unknown)
