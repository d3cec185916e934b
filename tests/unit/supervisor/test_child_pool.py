"""What the supervisor logs about the runs of a process that died."""

from __future__ import annotations

import pytest

from coordinator.store.plans.coordinators import Recovered
from workers.supervisor.child_pool import describe_abandoned


@pytest.mark.parametrize(
    ("results", "unknown", "text"),
    [
        ([], 0, "it held no runs"),
        ([Recovered("ok", queued=1)], 0, "1 run requeued"),
        ([Recovered("ok", queued=1), Recovered("ok", queued=2, dead=1)], 0, "3 runs requeued, 1 dead"),
        ([Recovered("ok", delayed=2, cancelled=1)], 0, "2 runs delayed, 1 cancelled"),
        ([], 1, "the server did not answer, so its runs wait for its lease to expire"),
    ],
)
def test_result_of_abandoning_runs_is_described(results: list[Recovered], unknown: int, text: str) -> None:
    assert describe_abandoned(results, unknown=unknown) == text
