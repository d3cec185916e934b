"""Waiting runs: no interleaving of the small model loses or doubles a signal, misses a wake-up, or counts a wait as a failure."""

from __future__ import annotations

import os

import pytest

from tests.unit.models.explore import Broken, explore
from tests.unit.models.waiting import Model

DEEPER = int(os.environ.get("RUNS_TEST_DEPTH", "1")) > 1  # about 2.5 million states, in minutes

CORRECT = {
    "replies lost": Model((None,), 1, {"lost": 2, "crash": 1, "drain": 1, "again": 1}),
    "calls late": Model((None,), 1, {"late": 2, "crash": 1, "pause": 1}),
    "two signals in order": Model((None, None), 2, {"late": 1, "crash": 1, "pause": 1}),
    "signal or timeout": Model((1, None), 2, {"late": 1, "crash": 1, "tick": 2}),
    "two timeouts": Model((1, 1), 2, {"crash": 1, "drain": 1, "tick": 3}),
    "a box of one signal": Model((None, None, None), 3, {"late": 1, "crash": 1, "again": 1}, limit=1),
    "from the start again": Model((None, None), 2, {"late": 1, "crash": 1, "restart": 1}),
    "a cancel at any time": Model((1,), 1, {"lost": 1, "late": 1, "crash": 1, "cancel": 1, "tick": 1}),
}
DEEP = {
    "one signal and every fault": Model(
        (None,), 1, {"lost": 1, "late": 2, "crash": 1, "pause": 1, "drain": 1, "cancel": 1, "again": 1}
    ),
    "two signals and every loss": Model((None, None), 2, {"lost": 1, "late": 1, "crash": 1, "pause": 1, "again": 1}),
    "timeout and every loss": Model((1, None), 2, {"late": 1, "crash": 1, "pause": 1, "tick": 2}),
}
if DEEPER:
    CORRECT |= DEEP

BUGS = {
    "ids trimmed": (CORRECT["a box of one signal"], "a signal was received twice"),
    "trim at the save": (CORRECT["from the start again"], "a signal was lost"),
    "unchecked": (CORRECT["calls late"], "a wake-up was lost"),
    "woken first": (CORRECT["calls late"], "a wake-up was lost"),
    "cancel forgotten": (CORRECT["a cancel at any time"], "although its cancel was requested"),
    "no token": (CORRECT["two signals in order"], "an ended run continued"),
    "never due": (Model((1,), 0, {"tick": 1}), "the run can't end any more"),
    "deadline forgotten": (CORRECT["signal or timeout"], "returned something else"),
    "first look": (CORRECT["signal or timeout"], "returned something else"),
    "at the deadline": (CORRECT["signal or timeout"], "returned something else"),
    "counted": (CORRECT["two signals in order"], "counted as a failure"),
}


@pytest.mark.quick_cases(3)
@pytest.mark.timeout(1200 if DEEPER else 120)
@pytest.mark.parametrize("name", CORRECT)
def test_every_interleaving_keeps_the_promises(name: str) -> None:
    model = CORRECT[name]
    found = explore(model.start(), model.steps, model.check, model.is_end)
    assert len(found.states) > 1000, "the model has too few faults to prove anything"


@pytest.mark.parametrize("bug", BUGS)
def test_bug_in_the_model_breaks_a_promise(bug: str) -> None:
    model, promise = BUGS[bug]
    variant = Model(model.waits, model.signals, model.faults, model.limit, bug)
    with pytest.raises(Broken, match=promise):
        explore(variant.start(), variant.steps, variant.check, variant.is_end)
