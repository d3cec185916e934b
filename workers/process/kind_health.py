"""Whether the kinds of this process have been seen to work: a bad deploy must not empty the queue.

A process where five different runs of a kind ended before their handler's first line, and none reached it, stops claiming the kind
and tries again each minute.
"""

from __future__ import annotations

TOO_MANY = 5
AGAIN_AFTER = 60.0


class Proof:
    """What each kind has shown in this process."""

    def __init__(self) -> None:
        self._reached: set[str] = set()
        self._rejected: dict[str, set[str]] = {}
        self._refused_at: dict[str, float] = {}

    def reached(self, kind: str) -> None:
        """A handler of the kind has begun."""
        if kind not in self._reached:
            self._reached.add(kind)
            self._rejected.pop(kind, None)
            self._refused_at.pop(kind, None)

    def proven(self, kind: str) -> bool:
        return kind in self._reached

    def rejected(self, kind: str, run_id: str, now: float) -> bool:
        """A run of the kind ended before its first line. Whether the kind is refused from now on."""
        if kind in self._reached:
            return False
        runs = self._rejected.setdefault(kind, set())
        runs.add(run_id)
        if len(runs) < TOO_MANY:
            return False
        self._refused_at[kind] = now
        return True

    def refuses(self, kind: str, now: float) -> bool:
        """Whether the kind is not to be claimed now."""
        at = self._refused_at.get(kind)
        return at is not None and now - at < AGAIN_AFTER
