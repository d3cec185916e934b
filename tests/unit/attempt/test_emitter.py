"""How often a process sends the events of its runs."""

from __future__ import annotations

import pytest

from coordinator.clock import SystemClock
from workers.attempt.output.emitter import LONGEST_BACK_OFF, PACE, SHORTEST_PACE, Emitter


def emitter(runs: int = 0, failures: int = 0) -> Emitter:
    return Emitter(None, SystemClock(), _last_runs=runs, _failures=failures)  # type: ignore[arg-type]  # nothing is sent


@pytest.mark.parametrize(
    ("runs", "seconds"), [(0, SHORTEST_PACE), (10, SHORTEST_PACE), (50, 0.01), (100, PACE), (9999, PACE)]
)
def test_pace_is_short_while_few_runs_emit(runs: int, seconds: float) -> None:
    assert emitter(runs)._pause() == pytest.approx(seconds)


def test_back_off_grows_and_is_bounded_after_a_long_outage() -> None:
    pauses = [emitter(1, failures)._pause() for failures in (1, 2, 3, 100, 5000)]
    assert pauses == sorted(pauses)
    assert pauses[0] > PACE
    assert pauses[-1] == LONGEST_BACK_OFF
