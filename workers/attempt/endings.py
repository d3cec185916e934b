"""Describe an attempt, and how it ended, to middleware and to the metrics of the process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.middleware import AttemptEnding, AttemptInfo
from coordinator.model.names import queue_of
from coordinator.model.outcome import Complete, Fail, Nothing, Outcome, Reject, Release, Suspend, TryAgain
from coordinator.model.policies.budget import spending
from coordinator.model.run import AttemptRecord
from workers.attempt.attempt import Attempt
from workers.metrics.worker_metrics import WorkerMetrics

# The outcome word of an attempt, unless the answer of the server says something else.
_WORDS: dict[type[Outcome], str] = {
    Complete: "completed",
    Fail: "failed",
    TryAgain: "retried",
    Release: "released",
    Suspend: "waiting",
    Reject: "rejected",
    Nothing: "lost",
}
_BY_ANSWER = {"fenced": "lost", "lost": "lost", "cancelled": "cancelled", "failed": "failed", "dead": "dead"}


def outcome_word(outcome: Outcome, answer: str) -> str:
    """Return the outcome of the attempt as a word. See `AttemptEnding.outcome`.

    Args:
        outcome: The outcome that the worker recorded.
        answer: The answer of the server. A cancel or a kill that was requested meanwhile takes precedence over the outcome.
    """
    return _BY_ANSWER.get(answer) or _WORDS[type(outcome)]


def measure_ending(metrics: WorkerMetrics, attempt: Attempt, outcome: Outcome, answer: str, now: float) -> None:
    """Count an attempt after the server has stored or refused its outcome.

    The recorder itself counts attempts whose completion the server has stored, because that is faster.

    Args:
        metrics: The metrics of the process.
        attempt: The attempt.
        outcome: The outcome that the worker recorded.
        answer: The answer of the server.
        now: The monotonic time.
    """
    metrics.attempt_ended(attempt, outcome_word(outcome, answer), now)
    if answer == "fenced":
        metrics.fenced(attempt.handler.kind)


def attempt_info(
    attempt: Attempt, meta: Mapping[str, Any], headers: Mapping[str, str], history: tuple[AttemptRecord, ...] = ()
) -> AttemptInfo:
    """Return the description of an attempt for middleware."""
    claimed, counters = attempt.claimed, attempt.counters
    return AttemptInfo(
        run=claimed.id,
        kind=attempt.handler.kind,
        queue=queue_of(claimed.route),
        attempt=attempt.number,
        life=counters.life,
        worker=attempt.lease.worker,
        created=counters.created / 1000,
        claimed=counters.epoch / 1000,
        cause=claimed.cause.partition(" ")[0],
        previous=claimed.prev.partition(" ")[0],
        meta=meta,
        headers=headers,
        history=history,
    )


def tell_middleware(attempt: Attempt, outcome: Outcome, answer: str, now: float) -> None:
    """Call `on_ending` of the middleware of an attempt.

    Args:
        attempt: The attempt.
        outcome: The outcome that the worker recorded.
        answer: The answer of the server.
        now: The monotonic time.
    """
    info = attempt.info or attempt_info(attempt, {}, {})  # the spec of the run could not be read
    error = getattr(outcome, "error", None) or attempt.killed
    word = outcome_word(outcome, answer)
    seconds = max(0.0, now - attempt.began)
    attempt.middleware.on_ending(AttemptEnding(info, word, seconds, error, spending(attempt.spend)))
