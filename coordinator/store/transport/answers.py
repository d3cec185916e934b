"""The answers to a list of requests, over as many tries as it takes. Pure but for the pauses between tries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tenacity

from coordinator.store.script import Request
from coordinator.store.transport.trouble import Trouble, given_up


def retrying(kind: Any, stop: Any) -> Any:
    """Again while something is open, with back-off and jitter."""
    return kind(
        stop=stop,
        wait=tenacity.wait_exponential(multiplier=0.02, max=1.0) + tenacity.wait_random(0, 0.05),
        retry=tenacity.retry_if_result(bool),
        retry_error_callback=lambda state: None,
    )


def all_good(answers: Sequence[Any]) -> bool:
    """Whether none of them is an error."""
    for answer in answers:  # noqa: SIM110  # a generator would cost more than what it looks at
        if isinstance(answer, Exception):
            return False
    return True


class Answers:
    """The answers to a list of requests, over the tries that it takes to get them all."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self.answers: list[Any] = [None] * len(requests)
        self.open = list(range(len(requests)))
        self._sent = [False] * len(requests)

    def take(self, replies: Sequence[Any]) -> bool:
        """The replies to what is open; what is in trouble stays open. Answers whether anything did."""
        still = []
        for index, reply in zip(self.open, replies, strict=True):
            if isinstance(reply, Trouble):
                # once it may have been carried out, a later refusal does not change that; and one error may be for many requests
                self._sent[index] = self._sent[index] or (reply.sent and self.requests[index].changes)
                self.answers[index] = Trouble(str(reply), sent=self._sent[index])
                if self._sent[index] or not self.requests[index].fail_fast:
                    still.append(index)
            elif isinstance(reply, Exception) and self._sent[index]:
                self.answers[index] = Trouble(
                    str(reply), sent=True
                )  # refused now; an earlier try may have been carried out
            else:
                self.answers[index] = reply
        self.open = still
        return bool(still)

    @property
    def waiting(self) -> list[Request]:
        return [self.requests[index] for index in self.open]

    def result(self) -> list[Any]:
        return [given_up(answer) if isinstance(answer, Trouble) else answer for answer in self.answers]
