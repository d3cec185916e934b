from __future__ import annotations

import pytest
from tenacity import stop_after_attempt, stop_after_delay, stop_before_delay, stop_never, wait_exponential, wait_fixed
from tenacity.wait import wait_exception

from coordinator.errors import BadOption
from coordinator.model.policies.deadline import Deadline, extend_once
from coordinator.model.policies.retry import LONGEST, Retry, RetryLater


def test_by_default_nothing_is_retried():
    assert Retry().next_delay(1, ValueError()) is None


def test_failure_is_retried_up_to_the_limit():
    policy = Retry(limit=2, wait=3)
    assert [policy.next_delay(failures, ValueError()) for failures in (1, 2, 3)] == [3.0, 3.0, None]


def test_only_the_named_errors_are_retried():
    policy = Retry(limit=2, wait=3, on=(OSError,))
    assert policy.next_delay(1, ConnectionError()) == 3.0
    assert policy.next_delay(1, ValueError()) is None
    assert Retry(limit=2).next_delay(1, KeyboardInterrupt()) is None


def test_default_wait_grows_with_jitter_up_to_a_limit():
    policy = Retry(limit=100)
    for failures, least in [(1, 1), (2, 2), (5, 16)]:
        delay = policy.next_delay(failures, ValueError())
        assert delay is not None
        assert least <= delay <= least + 1
    assert 299 <= (policy.next_delay(100, ValueError()) or 0) <= 300
    assert len({policy.next_delay(3, ValueError()) for _ in range(20)}) > 1


@pytest.mark.parametrize(
    ("wait", "delay"),
    [
        (wait_fixed(7), 7),
        (wait_exponential(multiplier=2), 8),
        (wait_exception(lambda error: len(str(error))), 4),
        (wait_fixed(-1), 0),
        (wait_fixed(1e300), LONGEST),
    ],
)
def test_tenacity_wait_receives_the_failure_count_and_the_error(wait, delay):
    assert Retry(limit=5, wait=wait).next_delay(3, ValueError("four")) == delay


@pytest.mark.parametrize(
    ("stop", "last"),
    [
        (stop_after_attempt(3), 2),
        (stop_after_delay(60), 5),
        (stop_before_delay(60), 4),
        (stop_after_attempt(4) | stop_after_delay(60), 3),
        (stop_after_attempt(4) & stop_after_delay(60), 5),
        (stop_never, 9),
    ],
)
def test_tenacity_stop_limits_retries_by_count_age_and_wait(stop, last):
    """An attempt fails every 10 s: at 10, 20, …"""
    policy = Retry(limit=stop, wait=15)
    delays = [policy.next_delay(failures, ValueError(), age=failures * 10.0) for failures in range(1, 10)]
    assert delays == [15.0] * last + [None] * (9 - last)


def test_retry_later_retries_under_every_policy():
    assert Retry().next_delay(50, RetryLater(after=30)) == 30.0
    assert Retry(limit=9, wait=1, on=()).next_delay(1, RetryLater("quota", after=0)) == 0.0


def test_error_from_a_task_group_is_judged_by_the_errors_inside():
    later = BaseExceptionGroup("", [RetryLater(after=5), ExceptionGroup("", [RetryLater(after=9)])])
    assert Retry().next_delay(1, later) == 9.0
    mixed = ExceptionGroup("", [RetryLater(after=5), ValueError()])
    assert Retry().next_delay(1, mixed) is None
    policy = Retry(limit=1, wait=2, on=(OSError,))
    assert policy.next_delay(1, ExceptionGroup("", [OSError(), ConnectionError()])) == 2.0
    assert policy.next_delay(1, ExceptionGroup("", [OSError(), ValueError()])) is None


@pytest.mark.parametrize(
    "options",
    [
        {"limit": -1},
        {"limit": 1.5},
        {"wait": -1},
        {"wait": "long"},
        {"wait": float("nan")},
        {"on": OSError},
        {"on": (3,)},
        {"from_start": "yes"},
    ],
)
def test_invalid_policy_is_refused_when_built(options):
    with pytest.raises(BadOption, match=f"Retry\\({next(iter(options))}="):
        Retry(**options)


@pytest.mark.parametrize("after", [-1, float("inf"), float("nan"), "soon"])
def test_retry_later_requires_a_delay(after):
    with pytest.raises(BadOption, match="after"):
        RetryLater(after=after)


def test_deadline_times_must_be_in_order():
    assert Deadline(soft=600, hard=900, progress=60, escalator=extend_once).soft == 600
    assert Deadline() == Deadline(None, None, None, None)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"soft": 0}, "soft"),
        ({"hard": -1}, "hard"),
        ({"progress": float("nan")}, "progress"),
        ({"soft": "600"}, "soft"),
        ({"soft": 9, "hard": 9}, "before"),
        ({"soft": 9, "escalator": 3}, "callable"),
        ({"hard": 9, "escalator": print}, "needs soft"),
    ],
)
def test_invalid_deadline_is_refused_when_built(options, word):
    with pytest.raises(BadOption, match=word):
        Deadline(**options)
