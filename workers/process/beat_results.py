"""Handle the server's answers to the worker's heartbeats, and the messages of the worker's inbox."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.attempt.saver import packed_note
from workers.liveness.heartbeat import BeatResult
from workers.liveness.lease import Lease, claim_number
from workers.process.attempt_table import AttemptTable
from workers.process.membership import Membership
from workers.process.stopping.shutdown import Shutdown
from workers.process.stopping.stops import Stops
from workers.process.tasks import TaskSet

logger = logging.getLogger(__name__)


class CallLimits(Protocol):
    """The methods for messages about calls that wait for a limit or are under way."""

    def hint(self, number: int) -> None:
        """Make the call with this number ask the server immediately, because it may get a place."""
        ...

    def check(self, partition: int, name: str, numbers: Sequence[int]) -> None:
        """End calls again that have ended in this process, because the server may have lost their ends."""
        ...


class BeatResults:
    """Handle the results of heartbeats and the messages of the inbox.

    Cancel runs, drain the worker, stop the attempts at lost runs, and release runs that have no attempt here.

    Args:
        wire: The connection to the server.
        table: The attempts of the process.
        stops: Stops attempts.
        membership: The leases.
        shutdown: The shutdown of the worker, which is requested when an operator asks the worker to drain.
        tasks: Holds background tasks.
        limits: The calls of this process that wait for a limit or are under way; None if there are none.
    """

    def __init__(
        self,
        wire: AsyncWire,
        table: AttemptTable,
        stops: Stops,
        membership: Membership,
        shutdown: Shutdown,
        tasks: TaskSet,
        limits: CallLimits | None = None,
    ) -> None:
        self._wire, self._table, self._stops = wire, table, stops
        self._membership, self._shutdown, self._tasks, self._limits = membership, shutdown, tasks, limits

    def handle(self, result: BeatResult) -> None:
        """Carry out the requests in the server's answer to a heartbeat. If the server no longer knows the worker, join again."""
        lease, beat = result.lease, result.beat
        if lease.gone or (beat is None and self._membership.is_leaving(lease)):
            return
        if beat is None:
            self._membership.lose(lease)
            return
        for id in beat.cancels:
            self._stops.cancel(id)
        if beat.drain:
            self._drain()
        for key in beat.lost:
            attempt = self._table.attempts.get(key)
            if attempt is not None and not attempt.decided and not attempt.lost:
                logger.warning("run %s belongs to another owner: its handler is stopped", attempt.id)
                attempt.lose()
        if result.held is not None:
            self._release_strays(result.lease, beat.strays, result.held, result.floor)
        lease.renewed(result.sent_at, compared=result.held is not None)
        self._tasks.spawn(self._send_notes(lease))
        self._tasks.spawn(self._send_spends(lease))

    def receive(self, partition: int, message: str) -> None:
        """Carry out the request in a message of the inbox of a partition. Heartbeats bring most requests, too, but later."""
        what, _, id = message.partition(" ")
        if what == "cancel":
            self._stops.cancel(id)
        elif what == "signal":
            if (attempt := self._table.by_id(id)) is not None:
                attempt.hint()
        elif what == "limit" and id.isdecimal() and self._limits is not None:
            self._limits.hint(int(id))
        elif what == "calls" and self._limits is not None:
            name, *numbers = id.split()
            self._limits.check(partition, name, [int(number) for number in numbers if number.isdecimal()])
        elif what == "drain":
            self._drain()

    def _drain(self) -> None:
        """Start to drain the worker, for an operator. A repeated request changes nothing, so that the handlers keep their grace."""
        if not self._shutdown.is_requested():
            logger.info("draining: requested by an operator")
            self._shutdown.request()

    def _release_strays(
        self, lease: Lease, strays: tuple[tuple[str, str], ...], held: frozenset[tuple[str, str]], floor: int
    ) -> None:
        """Release runs that the worker owns on the server, but for which it has no attempt. The runs get no strike.

        A run is released if it had no attempt when the heartbeat was sent, has none now, and its claim call is over. Then the
        server's answer to the claim was lost.
        """
        for id, token in strays:
            known = (id, token) in self._table.attempts or (id, token) in held
            if not known and claim_number(token) <= floor:
                logger.info("run %s is released: the answer of its claim was lost", id)
                self._tasks.spawn(self._membership.release(lease, id, token))

    async def _send_notes(self, lease: Lease) -> None:
        """Send the handlers' notes that no save has sent to the server yet."""
        changed = [(a, a.note) for a in self._table.of(lease) if a.note is not a.note_sent]
        for attempt, note in changed:
            attempt.note_sent = note
        plans = (attempt_plans.note(lease.keys, a.id, a.token, packed_note(note)) for a, note in changed)
        # All notes are sent at the same time, so that they share a trip. A lost note is sent with the next save or the outcome.
        sending = (drive_async(self._wire, plan, timeout=0) for plan in plans)
        answers = await asyncio.gather(*sending, return_exceptions=True)
        for (attempt, note), answer in zip(changed, answers, strict=True):
            if answer == "ok":
                attempt.note_stored = note

    async def _send_spends(self, lease: Lease) -> None:
        """Send the totals that attempts have spent and not reported yet. A lost total is sent again later, or with the outcome."""
        changed = [(a, a.spend) for a in self._table.of(lease) if a.spend != a.spend_stored]
        plans = (attempt_plans.spend(lease.keys, a.id, a.token, amount) for a, amount in changed)
        answers = await asyncio.gather(
            *(drive_async(self._wire, plan, timeout=0) for plan in plans), return_exceptions=True
        )
        for (attempt, amount), answer in zip(changed, answers, strict=True):
            if not isinstance(answer, BaseException) and answer[0] == "ok":
                attempt.spend_stored = amount
