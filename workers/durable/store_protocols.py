"""The methods of a store of records. A program may bring a store of its own that has them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Protocol, runtime_checkable

from workers.durable.record import Checkpoint


class CheckpointStore(Protocol):
    """Stores records by run id."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Save a record.

        If the stored record has a higher seq, nothing changes. An equal seq means that the same save is repeated.
        """
        ...

    def load(self, run_id: str) -> Checkpoint | None:
        """Return the record of a run, or None if there is none: the run has ended, or never saved.

        Raises:
            Unreadable: The record is corrupt.
        """
        ...

    def delete(self, run_id: str) -> None:
        """Delete the record of a run that has ended. Do nothing if there is none."""
        ...

    def list_interrupted(self) -> list[Checkpoint]:
        """Return all records, except those of other live processes. Call it when the program starts, to resume runs."""
        ...


class AsyncCheckpointStore(Protocol):
    """Stores records by run id, for an event loop."""

    async def save(self, checkpoint: Checkpoint) -> None:
        """Save a record.

        If the stored record has a higher seq, nothing changes. An equal seq means that the same save is repeated.
        """
        ...

    async def load(self, run_id: str) -> Checkpoint | None:
        """Return the record of a run, or None if there is none: the run has ended, or never saved.

        Raises:
            Unreadable: The record is corrupt.
        """
        ...

    async def delete(self, run_id: str) -> None:
        """Delete the record of a run that has ended. Do nothing if there is none."""
        ...

    async def list_interrupted(self) -> list[Checkpoint]:
        """Return all records, except those of other live processes. Call it when the program starts, to resume runs."""
        ...


@runtime_checkable
class ClaimingStore(Protocol):
    """A store from which several processes can recover at the same time. This is optional."""

    def claim_interrupted(self) -> Iterator[Checkpoint]:
        """Yield the records of interrupted runs. Each run is claimed when it is yielded: no other process gets it."""
        ...


@runtime_checkable
class AsyncClaimingStore(Protocol):
    """A store from which several processes can recover at the same time, for an event loop. This is optional."""

    def claim_interrupted(self) -> AsyncIterator[Checkpoint]:
        """Yield the records of interrupted runs. Each run is claimed when it is yielded: no other process gets it."""
        ...
