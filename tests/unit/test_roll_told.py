"""What `workers roll` says of a supervisor whose part did not come to its end."""

from __future__ import annotations

import pytest

from coordinator.store.plans.fleets import Part
from workers.cli.fleet import _trouble


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (Part("done", 3, 3), ""),
        (Part("waiting"), ""),
        (Part("failed", 1, 3, "no"), "no (supervisor a:1, 1 of 3 replaced, and the old ones go on working)"),
        (Part("failed", 3, 3, "no"), "no (supervisor a:1, 3 of 3 replaced: none of the old ones is left)"),
        (Part("lost"), "a supervisor was not seen for 15 s (supervisor a:1, 0 of ? replaced)"),
        (Part("left", 1, 2), "a supervisor was stopped meanwhile (supervisor a:1, 1 of 2 replaced)"),
    ],
)
def test_it_says_who_works_now(part: Part, says: str) -> None:
    assert _trouble("a:1", part) == says
