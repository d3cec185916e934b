"""The records that one store object owns on a server, as plans. The stores for threads and for event loops use these plans."""

from __future__ import annotations

import logging
import os
import threading

from coordinator.clock import Clock
from coordinator.config import Settings
from coordinator.errors import BadOption, Unreadable
from coordinator.store import server_checks as checks
from coordinator.store.keys import Keys
from coordinator.store.plans import namespace as namespace_plans
from workers.durable.lease_keeper import LeaseKeeper
from workers.durable.records import record_plans
from workers.durable.records.record import Checkpoint, check_run_id
from workers.durable.records.record_delta import NOTHING, Acknowledged
from workers.durable.records.record_format import pack
from workers.durable.records.record_plans import Steps
from workers.durable.sequence import SEQUENCE

logger = logging.getLogger(__name__)


class OwnedRecords:
    """An owner of records with a lease, and the state of its records that the server has acknowledged.

    An owner belongs to one process. After a fork, the child process makes a new owner.

    Args:
        settings: The server and the namespace.
        lease: Seconds after which the runs of a dead owner may be claimed.
        ttl: Seconds after which the server deletes a record that is not saved again.
        clock: The time source.

    Raises:
        BadOption: If the lease or the ttl is out of range.
    """

    def __init__(self, settings: Settings, lease: float, ttl: float, clock: Clock) -> None:
        if not 0.1 <= lease <= 3600:
            raise BadOption(f"lease {lease!r} is not within 0.1 to 3600 seconds")
        if not lease <= ttl < 1e9:
            raise BadOption(f"ttl {ttl!r} must be at least the lease of {lease!r} seconds, and less than 1e9")
        self.pid = os.getpid()
        self.owner = f"{os.urandom(8).hex()}-{round(lease * 1000)}"
        self.keys = Keys(settings.namespace, 0)
        self._settings, self._lease, self._ttl, self._clock = settings, lease, ttl, clock
        self._known: dict[str, Acknowledged] = {}
        self._checked = settings.address.scheme == "memory"
        self._lock = threading.Lock()
        self._keeper: LeaseKeeper | None = None

    def save(self, record: Checkpoint) -> Steps[None]:
        """Return a plan that saves a record. The record is encoded immediately, so that the caller may change it afterwards."""
        packed = pack(record)
        id = packed.run_id

        def steps() -> Steps[None]:
            yield from self._check_server()
            self._start_keeper()
            known = self._known.get(id, NOTHING)
            seq = SEQUENCE.next(self._clock.now(), known.seq)
            self._known[id] = yield from record_plans.save(self.keys, self.owner, packed, known, seq=seq, ttl=self._ttl)

        return steps()

    def load(self, id: str) -> Steps[Checkpoint | None]:
        """Load a record, and return it; None if there is no record of this run.

        Raises:
            Unreadable: If the record is corrupt.
        """
        yield from self._check_server()
        found = yield from record_plans.load(self.keys, check_run_id(id))
        return None if found is None else found.checkpoint

    def delete(self, id: str) -> Steps[None]:
        """Delete the record of a run.

        Raises:
            Fenced: If another owner has taken over the run.
        """
        yield from self._check_server()
        self._known.pop(id, None)
        yield from record_plans.delete(self.keys, self.owner, check_run_id(id), seq=SEQUENCE.next(self._clock.now()))

    def list_interrupted(self) -> Steps[list[Checkpoint]]:
        """Load and return all records, except those of other live owners. A record that cannot be read is logged and left out."""
        ids = yield from self.list_ids()
        found = []
        for id, one in zip(ids, (yield from record_plans.load_many(self.keys, list(ids))), strict=True):
            if isinstance(one, Unreadable):
                logger.error("record skipped: run %s: %s", id, one)
            elif one is not None:
                found.append(one.checkpoint)
        return sorted(found, key=lambda record: record.seq)

    def list_ids(self) -> Steps[dict[str, str]]:
        """Return the ids of the runs that no other live owner executes, each with its last owner."""
        yield from self._check_server()
        return (yield from record_plans.list_interrupted(self.keys, self.owner))

    def claim(self, id: str, seen: str) -> Steps[Checkpoint | None]:
        """Claim an interrupted run.

        Args:
            id: The id of the run.
            seen: The last owner of the run, from `list_ids`.

        Returns:
            The run's record, or None if another owner was faster or the record cannot be read.
        """
        self._start_keeper()
        if not (yield from record_plans.claim(self.keys, self.owner, id, seen=seen, nonce=os.urandom(8).hex())):
            return None
        try:
            found = yield from record_plans.load(self.keys, id)
        except Unreadable as error:
            logger.error("record skipped: run %s can't be recovered: %s", id, error)
            return None
        if found is None:
            return None
        self._known[id] = found.known
        return found.checkpoint

    def end_lease(self) -> Steps[None]:
        """End the lease. Other owners may claim the runs immediately."""
        yield from record_plans.end_lease(self.keys, self.owner)

    @property
    def has_lease(self) -> bool:
        """Return True if this owner has a lease: it has saved or claimed a run."""
        return self._keeper is not None

    def stop(self) -> None:
        """Stop the thread that renews the lease."""
        if self._keeper is not None:
            self._keeper.stop()

    def _check_server(self) -> Steps[None]:
        """Check the server's configuration, and read the durability of the namespace. Only the first call does this."""
        if not self._checked:
            found = yield from checks.examine(self._settings.address, self._settings.namespace)
            checks.refuse(found)
            for finding in found:
                logger.warning("%s", finding.sentence)
            # The namespace's durability holds for its records, too. In a namespace that does not exist yet, saves do not
            # wait for replicas.
            if (space := (yield from namespace_plans.read_facts(self._settings.namespace))) is not None:
                self.keys = space.keys(0)
            self._checked = True

    def _start_keeper(self) -> None:
        with self._lock:
            if self._keeper is None:
                self._keeper = LeaseKeeper(self._settings.address, self.keys, self.owner, self._lease)
                self._keeper.start()
