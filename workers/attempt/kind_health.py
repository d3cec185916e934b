"""Protect the queue from a bad deploy.

If five different runs of a kind fail in this process before the first line of their handler, and no handler of the kind has ever
started, then the handlers of this process are probably broken. The process stops claiming the kind, and tries again every minute.
"""

from __future__ import annotations

REJECTED_RUNS_LIMIT = 5
SUSPENDED_SECONDS = 60.0


class KindHealth:
    """The kinds whose handlers have started in this process, and the kinds that are suspended."""

    def __init__(self) -> None:
        self._started: set[str] = set()
        self._rejected: dict[str, set[str]] = {}
        self._suspended_at: dict[str, float] = {}

    def record_started(self, kind: str) -> None:
        """Record that a handler of the kind has started."""
        if kind not in self._started:
            self._started.add(kind)
            self._rejected.pop(kind, None)
            self._suspended_at.pop(kind, None)

    def has_started(self, kind: str) -> bool:
        """Return True if a handler of the kind has started in this process."""
        return kind in self._started

    def record_rejected(self, kind: str, run_id: str, now: float) -> bool:
        """Record a run that failed before its handler's first line. Return True if the kind is suspended from now on."""
        if kind in self._started:
            return False
        runs = self._rejected.setdefault(kind, set())
        runs.add(run_id)
        if len(runs) < REJECTED_RUNS_LIMIT:
            return False
        self._suspended_at[kind] = now
        return True

    def is_suspended(self, kind: str, now: float) -> bool:
        """Return True if the process should not claim runs of the kind now."""
        at = self._suspended_at.get(kind)
        return at is not None and now - at < SUSPENDED_SECONDS
