"""The attempts of a worker process."""

from __future__ import annotations

import asyncio
from itertools import islice

from workers.attempt.attempt import Attempt
from workers.liveness.lease import Lease

MOST_LOADING = 100  # loads that a heartbeat reports
MOST_LIMITED = 1000  # runs with a call that waits for a limit that a heartbeat reports
MOST_STUCK = 20  # runs that are named in status displays for each partition of a process


class AttemptTable:
    """The attempts of a process whose handlers are running, or whose outcomes are being recorded.

    Attributes:
        attempts: The attempts by run id and token. The token alone is not enough, because the runs of one claim may share it.
        empty: An event that is set while there are no attempts.
        ended: How many attempts have been removed.
    """

    def __init__(self) -> None:
        self.attempts: dict[tuple[str, str], Attempt] = {}
        self.empty = asyncio.Event()
        self.empty.set()
        self.ended = 0
        self._by_id: dict[str, Attempt] = {}
        self._stuck: dict[tuple[str, str], Attempt] = {}
        self._stopping: dict[Lease, int] = {}  # how many attempts stop when their lease is in doubt

    def __len__(self) -> int:
        return len(self.attempts)

    def all(self) -> list[Attempt]:
        """Return a list of all attempts. Changes of the table do not change the list."""
        return list(self.attempts.values())

    def by_id(self, id: str) -> Attempt | None:
        """Return the newest attempt at a run, or None."""
        return self._by_id.get(id)

    def of(self, lease: Lease) -> list[Attempt]:
        """Return the attempts whose runs were claimed under this lease."""
        return [attempt for attempt in self.all() if attempt.lease is lease]

    def held(self, lease: Lease) -> list[tuple[str, str]]:
        """Return the ids and tokens of the runs that are held under a lease.

        Runs whose outcome is being recorded are included. Otherwise the comparison with the server would report them as runs
        without an attempt. The heartbeat calls this method from its own thread, so the method works on a copy.
        """
        return [attempt.key for attempt in self.of(lease)]

    def stuck(self, lease: Lease) -> list[str]:
        """Return the ids of the runs in the lease's partition whose outcome is decided, but whose handlers do not stop.

        The lease of such a run may be gone. The heartbeat calls this method from its own thread, so the method works on a copy.
        """
        partition = lease.keys.partition
        return sorted({one.id for one in list(self._stuck.values()) if one.lease.keys.partition == partition})[
            :MOST_STUCK
        ]

    def loading(self, lease: Lease) -> dict[str, int]:
        """Return the runs whose checkpoints are being loaded under a lease, with the number of failed loads.

        The heartbeat calls this method from its own thread, so the method works on a copy.
        """
        found = ((one.id, one.loading) for one in self.of(lease))
        return dict(islice(((id, failures) for id, failures in found if failures is not None), MOST_LOADING))

    def limited(self, lease: Lease) -> dict[str, str]:
        """Return the runs under a lease whose calls wait for a rate, each with the wait that began first.

        A wait is `name:since`: the name of the rate, and the time in ms at which the wait began. The heartbeat calls this method
        from its own thread, so the method works on a copy.
        """
        found = ((one.id, list(one.limited.values())) for one in self.of(lease) if one.limited)
        return dict(islice(((id, waits[0]) for id, waits in found if waits), MOST_LIMITED))

    def stopping_leases(self) -> list[Lease]:
        """Return the leases under which there are attempts that stop when their lease is in doubt.

        There are few leases and may be thousands of attempts, so the caller checks the leases first, several times per second.
        """
        return list(self._stopping)

    def mark_stuck(self, attempt: Attempt) -> None:
        """Show the run of an attempt as stuck in status displays, until its handler stops.

        Call this when the outcome of the attempt is decided, but its handler does not stop.
        """
        if attempt.task is not None and not attempt.task.done():
            self._stuck[attempt.key] = attempt
            attempt.task.add_done_callback(lambda _: self._stuck.pop(attempt.key, None))

    def add(self, attempt: Attempt) -> None:
        """Add an attempt to the table."""
        self.attempts[attempt.key] = attempt
        self._by_id[attempt.id] = attempt
        if attempt.handler.on_lost_lease == "stop":
            self._stopping[attempt.lease] = self._stopping.get(attempt.lease, 0) + 1
        self.empty.clear()

    def remove(self, attempt: Attempt) -> bool:
        """Remove an attempt from the table. Return False if the attempt was removed before."""
        if self.attempts.pop(attempt.key, None) is None:
            return False
        if self._by_id.get(attempt.id) is attempt:
            del self._by_id[attempt.id]
        if attempt.handler.on_lost_lease == "stop":
            self._stopping[attempt.lease] -= 1
            if not self._stopping[attempt.lease]:
                del self._stopping[attempt.lease]
        if not self.attempts:
            self.empty.set()
        self.ended += 1
        return True
