"""Parents with children: no interleaving of the small model loses or doubles a child, an ending or a wake-up."""

from __future__ import annotations

import os

import pytest

from tests.unit.models.explore import Broken, explore
from tests.unit.models.joining import Model

DEEPER = int(os.environ.get("RUNS_TEST_DEPTH", "1")) > 1

CORRECT = {
    "replies lost": Model({"lost": 2, "crash": 1, "bad": 1, "again": 1}),
    "calls late": Model({"late": 1, "crash": 1, "pause": 1}),
    "revived": Model({"late": 1, "crash": 1, "fail": 1, "revive": 1}),
    "revived after a failed child": Model({"crash": 1, "fail": 1, "revive": 1, "bad": 1}),
    "from the start again": Model({"late": 1, "crash": 1, "restart": 1}),
}
DEEP = {
    "two late calls": Model({"late": 2, "crash": 1, "pause": 1}),
    "two late calls and a start again": Model({"late": 2, "crash": 1, "restart": 1}),
    "revived, with a process that works on": Model({"late": 1, "pause": 1, "fail": 1, "revive": 1}),
    "revived twice": Model({"crash": 1, "fail": 2, "revive": 2}),
}
if DEEPER:
    CORRECT |= DEEP

BUGS = {
    "unchecked": ("calls late", "a wake-up was lost"),
    "not announced": ("revived", "nobody cancels it"),
    "no life": ("revived", "nobody cancels it"),
    "counted twice": ("replies lost", "counted twice|completed without a child"),
    "base unsaved": ("calls late", "created twice|nobody cancels it"),
    "counted early": ("replies lost", "can't end any more"),
    "old forgotten": ("revived", "a child that had completed runs again"),
    "not dropped": ("revived", "nobody cancels it"),
    "restart forgets children": ("from the start again", "nobody cancels it"),
}


@pytest.mark.quick_cases(2)
@pytest.mark.timeout(1200 if DEEPER else 120)
@pytest.mark.parametrize("name", CORRECT)
def test_every_interleaving_keeps_the_promises(name: str) -> None:
    model = CORRECT[name]
    found = explore(model.start(), model.steps, model.check, model.is_end)
    assert len(found.states) > 1000, "the model has too few faults to prove anything"


@pytest.mark.parametrize("bug", BUGS)
def test_bug_in_the_model_breaks_a_promise(bug: str) -> None:
    name, promise = BUGS[bug]
    variant = Model(CORRECT[name].faults, bug)
    with pytest.raises(Broken, match=promise):
        explore(variant.start(), variant.steps, variant.check, variant.is_end)
