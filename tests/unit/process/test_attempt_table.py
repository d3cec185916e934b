"""The attempts of a worker process: what its heartbeats report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from workers.process.attempt_table import MOST_LIMITED, MOST_LOADING, AttemptTable


def test_heartbeat_reports_more_runs_that_wait_for_a_limit_than_loads() -> None:
    table, lease = AttemptTable(), object()

    def add(number: int) -> None:
        handler: Any = SimpleNamespace(on_lost_lease="continue")
        attempt: Any = SimpleNamespace(
            key=(f"r{number}", "1-1-w"), id=f"r{number}", lease=lease, handler=handler, loading=0, limited={1: "api:7"}
        )
        table.add(attempt)

    for number in range(MOST_LIMITED + 1):
        add(number)
    wanted: Any = lease
    assert (len(table.limited(wanted)), len(table.loading(wanted))) == (MOST_LIMITED, MOST_LOADING)
    assert MOST_LIMITED > MOST_LOADING
