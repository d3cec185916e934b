"""Groups with a limit: no interleaving of the small model loses a run, exceeds the limit, or leaves a run in the line forever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.models.admission import Model
from tests.unit.models.explore import Broken, explore

CORRECT = {
    "calls late": Model({"late": 1, "crash": 1}),
    "the limit changes": Model({"change": 2, "crash": 1, "cancel": 1}),
    "cancelled and revived": Model({"late": 1, "cancel": 1, "revive": 1}),
    "expired and discarded": Model({"late": 1, "expire": 2, "discard": 1, "revive": 1}),
    "no limit is known at first": Model({"change": 1, "cancel": 1, "crash": 1}, limit=None),
}

BUGS = {
    "counter": ("cancelled and revived", "the limit is exceeded|can't end any more"),
    "expired run keeps its place": ("expired and discarded", "the places are not those of the runs|a run is lost"),
    "place lost": ("calls late", "the places are not those of the runs|a run is lost|limit is exceeded"),
    "put back": ("the limit changes", "a run overtakes the line"),
    "no sweep": ("no limit is known at first", "can't end any more"),
    "no fence": ("calls late", "the places are not|an ended run continues|limit is exceeded|a run is lost"),
}


@pytest.mark.parametrize("name", CORRECT)
def test_every_interleaving_keeps_the_limit(name: str) -> None:
    model = CORRECT[name]
    found = explore(model.start(), model.steps, model.check, model.is_end)
    assert len(found.states) > 1000, "the model has too few faults to prove anything"


@pytest.mark.parametrize("bug", BUGS)
def test_bug_in_the_model_breaks_a_promise(bug: str) -> None:
    name, promise = BUGS[bug]
    variant = replace(CORRECT[name], bug=bug)
    with pytest.raises(Broken, match=promise):
        explore(variant.start(), variant.steps, variant.check, variant.is_end)
