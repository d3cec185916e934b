"""How long a child slot waits before its next worker process."""

from __future__ import annotations

import pytest

from workers.supervisor.restart_backoff import LONGEST_WAIT, WORKED_SECONDS, RestartBackoff, failed_to_start


def test_wait_doubles_from_the_third_failure_up_to_a_limit() -> None:
    backoff = RestartBackoff(jitter=lambda: 0.5)
    waits = [backoff.record_end(failed=True) for _ in range(10)]
    assert waits == [0, 0, 1, 2, 4, 8, 16, LONGEST_WAIT, LONGEST_WAIT, LONGEST_WAIT]


def test_process_that_became_ready_resets_the_failure_count() -> None:
    backoff = RestartBackoff(jitter=lambda: 0.5)
    for _ in range(5):
        backoff.record_end(failed=True)
    assert backoff.record_end(failed=False) == 0
    assert [backoff.record_end(failed=True) for _ in range(3)] == [0, 0, 1]


@pytest.mark.parametrize(("jitter", "wait"), [(0.0, 0.75), (1.0, 1.25)])
def test_wait_varies_by_up_to_a_quarter(jitter: float, wait: float) -> None:
    backoff = RestartBackoff(jitter=lambda: jitter)
    assert [backoff.record_end(failed=True) for _ in range(3)][-1] == wait


@pytest.mark.parametrize(
    ("as_asked", "ready", "held_runs", "seconds", "failed"),
    [
        (True, False, 0, 0.0, False),  # it drained, or the supervisor stopped it while it started
        (False, False, 0, 100.0, True),  # it was never ready, however long that took
        (False, True, 0, WORKED_SECONDS - 1, True),
        (False, True, 0, WORKED_SECONDS, False),
        (False, True, 1, 0.0, False),  # the run that it held gets a strike for it
    ],
)
def test_which_exits_count_as_a_failed_start(
    as_asked: bool, ready: bool, held_runs: int, seconds: float, failed: bool
) -> None:
    assert failed_to_start(as_asked=as_asked, ready=ready, held_runs=held_runs, seconds=seconds) is failed
