"""Collect the answers to a list of requests over several tries. This module does no I/O except the pauses between tries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tenacity

from coordinator.store.script import Request
from coordinator.store.transport.error_mapping import TransientError, final_error


def make_retrying(kind: Any, stop: Any) -> Any:
    """Return a tenacity loop that calls a function again while it returns True, with back-off and jitter.

    Args:
        kind: `tenacity.Retrying` or `tenacity.AsyncRetrying`.
        stop: A stop condition of tenacity, which ends the loop.
    """
    return kind(
        stop=stop,
        wait=tenacity.wait_exponential(multiplier=0.02, max=1.0) + tenacity.wait_random(0, 0.05),
        retry=tenacity.retry_if_result(bool),
        retry_error_callback=lambda state: None,
    )


def all_good(answers: Sequence[Any]) -> bool:
    """Return True if none of the answers is an error."""
    for answer in answers:  # noqa: SIM110  # a generator expression would take longer than the checks themselves
        if isinstance(answer, Exception):
            return False
    return True


class Answers:
    """The answers to a list of requests, some of which need more than one try.

    Attributes:
        open: Indices of the requests that must be sent again.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self.answers: list[Any] = [None] * len(requests)
        self.open = list(range(len(requests)))
        self._sent = [False] * len(requests)

    def take(self, replies: Sequence[Any]) -> bool:
        """Record the replies to the open requests, in their order.

        Returns:
            True if some requests are still open: their replies were transient errors.
        """
        still_open = []
        for index, reply in zip(self.open, replies, strict=True):
            if isinstance(reply, TransientError):
                # Once a request may have been carried out, a later refusal does not change that. A new error is made
                # for each request because one error object may stand for many requests.
                self._sent[index] = self._sent[index] or (reply.sent and self.requests[index].changes)
                self.answers[index] = TransientError(str(reply), sent=self._sent[index])
                if self._sent[index] or not self.requests[index].fail_fast:
                    still_open.append(index)
            elif isinstance(reply, Exception) and self._sent[index]:
                # The server refused this try, but it may have carried out an earlier one.
                self.answers[index] = TransientError(str(reply), sent=True)
            else:
                self.answers[index] = reply
        self.open = still_open
        return bool(still_open)

    @property
    def waiting(self) -> list[Request]:
        """The requests that must be sent again."""
        return [self.requests[index] for index in self.open]

    def result(self) -> list[Any]:
        """Return a reply or an error for each request. A transient error becomes Unreachable or Unconfirmed."""
        return [final_error(answer) if isinstance(answer, TransientError) else answer for answer in self.answers]
