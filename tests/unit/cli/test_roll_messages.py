"""What `workers roll` says about a supervisor whose part did not finish."""

from __future__ import annotations

import pytest

from coordinator.store.plans.fleets import RollPart
from workers.cli.fleet import _describe_problem


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (RollPart("done", 3, 3), ""),
        (RollPart("waiting"), ""),
        (
            RollPart("failed", 1, 3, "no"),
            "no (supervisor a:1: 1 of 3 replaced, the other processes continue with the old code)",
        ),
        (RollPart("failed", 3, 3, "no"), "no (supervisor a:1: 3 of 3 replaced, no process with the old code is left)"),
        (RollPart("lost"), "the supervisor has not been seen for 15 s (supervisor a:1: 0 of ? replaced)"),
        (RollPart("left", 1, 2), "the supervisor was stopped during the roll (supervisor a:1: 1 of 2 replaced)"),
    ],
)
def test_problem_of_a_roll_says_which_code_runs_now(part: RollPart, says: str) -> None:
    assert _describe_problem("a:1", part) == says
