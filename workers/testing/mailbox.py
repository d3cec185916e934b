"""The signals and the clock of runs that live in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coordinator.encoding.codec import encode
from coordinator.model.names import name
from coordinator.store.plans.attempts import Condition, Received

START_MS = 1_700_000_000_000


@dataclass
class Mailbox:
    """The signals that were sent to a run, and the time of its server. All attempts of a run share it.

    Time stands still while a handler works, and jumps to the end of a sleep or a timeout when the handler waits for it.

    Attributes:
        now_ms: The time, in Unix ms.
        signals: The signals: topic, number, time in ms, and encoded payload. Oldest first.
    """

    now_ms: int = START_MS
    signals: list[tuple[str, int, int, bytes]] = field(default_factory=list)

    def send(self, topic: str, payload: Any = None) -> None:
        """Send a signal.

        Raises:
            BadName: If the topic is not a valid name.
            NotPlain: If the payload is not plain data.
        """
        number = sum(other == name(topic, "topic") for other, *_ in self.signals) + 1
        self.signals.append((topic, number, self.now_ms, encode(payload, "payload")))

    def look(self, condition: Condition, timeout_ms: int | None) -> Received:
        """Return what the script `receive` would answer."""
        deadline = condition.deadline
        if deadline is None and timeout_ms is not None:
            deadline = self.now_ms + timeout_ms
        for topic, number, at, payload in self.signals:
            if number == condition.received.get(topic, number) + 1 and (deadline is None or at <= deadline):
                return Received("signal", self.now_ms, deadline, topic, number, payload)
        over = deadline is not None and self.now_ms >= deadline
        return Received("timeout" if over else "none", self.now_ms, deadline)
