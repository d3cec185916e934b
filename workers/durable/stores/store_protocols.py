"""The methods of a store of records. A program may use its own store that has these methods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Protocol, runtime_checkable

from workers.durable.records.record import Checkpoint


class CheckpointStore(Protocol):
    """A store of records by run id."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Save a record.

        If the stored record has a higher seq, nothing changes. An equal seq means that the same save is repeated.
        """
        ...

    def load(self, run_id: str) -> Checkpoint | None:
        """Return the record of a run, or None if there is none: the run has ended, or never saved.

        Raises:
            Unreadable: If the record is corrupt.
        """
        ...

    def delete(self, run_id: str) -> None:
        """Delete the record of a run that has ended. Do nothing if there is none."""
        ...

    def list_interrupted(self) -> list[Checkpoint]:
        """Return all records, except those of other live processes. Call this method when the program starts, to resume runs."""
        ...


class AsyncCheckpointStore(Protocol):
    """A store of records by run id, for an event loop."""

    async def save(self, checkpoint: Checkpoint) -> None:
        """Save a record.

        If the stored record has a higher seq, nothing changes. An equal seq means that the same save is repeated.
        """
        ...

    async def load(self, run_id: str) -> Checkpoint | None:
        """Return the record of a run, or None if there is none: the run has ended, or never saved.

        Raises:
            Unreadable: If the record is corrupt.
        """
        ...

    async def delete(self, run_id: str) -> None:
        """Delete the record of a run that has ended. Do nothing if there is none."""
        ...

    async def list_interrupted(self) -> list[Checkpoint]:
        """Return all records, except those of other live processes. Call this method when the program starts, to resume runs."""
        ...


@runtime_checkable
class ClaimingStore(Protocol):
    """The optional method of a store from which several processes can recover runs at the same time."""

    def claim_interrupted(self) -> Iterator[Checkpoint]:
        """Yield the records of interrupted runs. Each run is claimed when it is yielded: no other process gets it."""
        ...


@runtime_checkable
class AsyncClaimingStore(Protocol):
    """The optional method of a store from which several processes can recover runs at the same time, for an event loop."""

    def claim_interrupted(self) -> AsyncIterator[Checkpoint]:
        """Yield the records of interrupted runs. Each run is claimed when it is yielded: no other process gets it."""
        ...
