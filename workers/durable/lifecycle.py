"""The life of a durable run in a program with its own executor: begin it, finalise it, recover it after an interruption.

checkpointer = begin(factory, meta)  # None if this run is not durable
try:
    ...  # checkpointer.save(messages, iteration)
finally:
    finalise(checkpointer, error, stopping=...)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from coordinator.clock import Clock
from workers.durable.checkpointer import THROTTLE, AsyncCheckpointer, Checkpointer
from workers.durable.records.record import Checkpoint, Meta
from workers.durable.stores.store_protocols import (
    AsyncCheckpointStore,
    AsyncClaimingStore,
    CheckpointStore,
    ClaimingStore,
)

logger = logging.getLogger(__name__)
H = TypeVar("H")
H_co = TypeVar("H_co", covariant=True)
RunInfo = Meta | Mapping[str, Any]
NOT_FINALISED = "record not finalised: run %s (%s)"


# ---- beginning -------------------------------------------------------------------------------------------------------


class Factory(Protocol[H_co]):
    """A factory that makes the checkpointer of each run."""

    def begin(self, info: RunInfo, /) -> H_co | None:
        """Return the checkpointer of a run, or None for a run that is not durable."""


def _every_run(meta: Meta) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class CheckpointerFactory:
    """A factory that makes a `Checkpointer` for each durable run.

    Attributes:
        store: Where records are stored. With None the checkpointers do nothing.
        throttle: Seconds between two saves of a run.
        durable: Decides which runs are durable; all by default.
        clock: The time source. Only tests pass one.
    """

    store: CheckpointStore | None
    throttle: float = THROTTLE
    durable: Callable[[Meta], bool] = _every_run
    clock: Clock | None = None

    def begin(self, info: RunInfo, /) -> Checkpointer | None:
        """Return the checkpointer of a run, or None for a run that is not durable."""
        meta = Meta.of(info)
        return Checkpointer(self.store, meta, self.throttle, self.clock) if self.durable(meta) else None


@dataclass(frozen=True, slots=True)
class AsyncCheckpointerFactory:
    """A factory that makes an `AsyncCheckpointer` for each durable run.

    Attributes:
        store: Where records are stored. With None the checkpointers do nothing.
        throttle: Seconds between two saves of a run.
        durable: Decides which runs are durable; all by default.
        clock: The time source. Only tests pass one.
    """

    store: AsyncCheckpointStore | None
    throttle: float = THROTTLE
    durable: Callable[[Meta], bool] = _every_run
    clock: Clock | None = None

    def begin(self, info: RunInfo, /) -> AsyncCheckpointer | None:
        """Return the checkpointer of a run, or None for a run that is not durable."""
        meta = Meta.of(info)
        return AsyncCheckpointer(self.store, meta, self.throttle, self.clock) if self.durable(meta) else None


def begin(factory: Factory[H] | None, info: RunInfo, existing: H | None = None) -> H | None:
    """Return the checkpointer of a run.

    If the factory raises, the error is logged and the run continues without being durable.

    Args:
        factory: Makes the checkpointer. With None the run is not durable.
        info: The run's metadata.
        existing: The checkpointer of a recovered run. It is returned as it is, so that the run continues the same record.

    Returns:
        The checkpointer, or None if the run is not durable.
    """
    if existing is not None or factory is None:
        return existing
    try:
        return factory.begin(info)
    except Exception:
        logger.warning("run is not durable: its checkpointer could not be made", exc_info=True)
        return None


# ---- ending ----------------------------------------------------------------------------------------------------------


class Finish(StrEnum):
    """The action on a record when the execution of its run ends.

    Attributes:
        COMPLETE: The run has completed: delete the record.
        LEAVE: The program shuts down: keep the record for the next start.
        FAIL: The run has failed: delete the record.
    """

    COMPLETE = "complete"
    LEAVE = "leave"
    FAIL = "fail"


def finish(error: BaseException | None, *, stopping: bool) -> Finish:
    """Decide whether the record of a run is kept or deleted when the execution of the run ends.

    A run without an error has completed, even while the program stops. An error while the program stops keeps the record. Any other
    error is final: for example an error of the model, the run's own deadline, or a cancellation by the caller.

    Args:
        error: The error that ended the run, or None.
        stopping: True if the program is shutting down.
    """
    if error is None:
        return Finish.COMPLETE
    return Finish.LEAVE if stopping else Finish.FAIL


def finalise(
    checkpointer: Checkpointer | None, error: BaseException | None = None, *, stopping: bool = False
) -> Finish:
    """Delete or keep the record of a run that ends. Call this function in a `finally` block, so that it is called in every case.

    An error of the store is logged and not raised, because it leads to at most one needless recovery.

    Args:
        checkpointer: The run's checkpointer, or None if the run is not durable.
        error: The error that ended the run, or None.
        stopping: True if the program is shutting down.

    Returns:
        The action on the record, as `finish` has decided it.
    """
    how = finish(error, stopping=stopping)
    if checkpointer is not None:
        try:
            match how:
                case Finish.COMPLETE:
                    checkpointer.complete()
                case Finish.LEAVE:
                    checkpointer.flush()
                case Finish.FAIL:
                    checkpointer.fail(error)
        except Exception:
            logger.warning(NOT_FINALISED, checkpointer.meta.run_id, how, exc_info=True)
    return how


async def finalise_async(
    checkpointer: AsyncCheckpointer | None, error: BaseException | None = None, *, stopping: bool = False
) -> Finish:
    """Delete or keep the record of a run that ends, in an event loop. A cancellation of the task does not interrupt this call.

    For the parameters and the returned value see `finalise`.
    """
    how = finish(error, stopping=stopping)
    if checkpointer is not None:
        await asyncio.shield(asyncio.ensure_future(_finalise(checkpointer, how, error)))
    return how


async def _finalise(checkpointer: AsyncCheckpointer, how: Finish, error: BaseException | None) -> None:
    try:
        match how:
            case Finish.COMPLETE:
                await checkpointer.complete()
            case Finish.LEAVE:
                await checkpointer.flush()
            case Finish.FAIL:
                await checkpointer.fail(error)
    except Exception:
        logger.warning(NOT_FINALISED, checkpointer.meta.run_id, how, exc_info=True)


# ---- recovering ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interrupted(Generic[H]):
    """An interrupted run that this process has claimed.

    Attributes:
        checkpoint: The run's record.
        checkpointer: Continues the record. Pass it to `begin` as `existing`.
    """

    checkpoint: Checkpoint
    checkpointer: H


def recover(
    store: CheckpointStore, throttle: float = THROTTLE, clock: Clock | None = None
) -> Iterator[Interrupted[Checkpointer]]:
    """Yield interrupted runs, which this process then continues.

    If several processes recover at the same time, each run is yielded in only one of them, provided that the store supports this
    (`RedisStore` and `MemoryStore` do). A run is claimed when it is yielded: if this process stops in the middle, other processes
    can claim the remaining runs.

    Args:
        store: Where records are stored.
        throttle: Seconds between two saves of a run.
        clock: The time source. Only tests pass one.
    """
    found = store.claim_interrupted() if isinstance(store, ClaimingStore) else iter(store.list_interrupted())
    for record in found:
        yield Interrupted(record, Checkpointer(store, record.meta, throttle, clock))


async def recover_async(
    store: AsyncCheckpointStore, throttle: float = THROTTLE, clock: Clock | None = None
) -> AsyncIterator[Interrupted[AsyncCheckpointer]]:
    """Yield interrupted runs, which this process then continues in an event loop.

    If several processes recover at the same time, each run is yielded in only one of them, as with `recover`.

    Args:
        store: Where records are stored.
        throttle: Seconds between two saves of a run.
        clock: The time source. Only tests pass one.
    """
    if isinstance(store, AsyncClaimingStore):
        async for record in store.claim_interrupted():
            yield Interrupted(record, AsyncCheckpointer(store, record.meta, throttle, clock))
        return
    for record in await store.list_interrupted():
        yield Interrupted(record, AsyncCheckpointer(store, record.meta, throttle, clock))
