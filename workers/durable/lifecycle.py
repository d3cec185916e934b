"""Durable runs in a program with an executor of its own: begin one, finalise it on every way out, recover those that were cut off.

checkpointer = begin(factory, meta)         # None: this run is not durable
try: ...                                    # checkpointer.save(messages, iteration)
finally: finalise(checkpointer, error, stopping=…)
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
from workers.durable.record import (
    AsyncCheckpointStore,
    AsyncClaims,
    Checkpoint,
    CheckpointStore,
    Claims,
    Meta,
)

logger = logging.getLogger(__name__)
H = TypeVar("H")
H_co = TypeVar("H_co", covariant=True)
RunInfo = Meta | Mapping[str, Any]


# ---- beginning -------------------------------------------------------------------------------------------------------


class Factory(Protocol[H_co]):
    """Gives each run its handle; None for a run that is not durable."""

    def begin(self, info: RunInfo, /) -> H_co | None: ...


def _every(meta: Meta) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class CheckpointerFactory:
    """A Checkpointer for each run that `durable` says yes to. Without a store they do nothing."""

    store: CheckpointStore | None
    throttle: float = THROTTLE
    durable: Callable[[Meta], bool] = _every
    clock: Clock | None = None

    def begin(self, info: RunInfo, /) -> Checkpointer | None:
        meta = Meta.of(info)
        return Checkpointer(self.store, meta, self.throttle, self.clock) if self.durable(meta) else None


@dataclass(frozen=True, slots=True)
class AsyncCheckpointerFactory:
    """An AsyncCheckpointer for each run that `durable` says yes to. Without a store they do nothing."""

    store: AsyncCheckpointStore | None
    throttle: float = THROTTLE
    durable: Callable[[Meta], bool] = _every
    clock: Clock | None = None

    def begin(self, info: RunInfo, /) -> AsyncCheckpointer | None:
        meta = Meta.of(info)
        return AsyncCheckpointer(self.store, meta, self.throttle, self.clock) if self.durable(meta) else None


def begin(factory: Factory[H] | None, info: RunInfo, existing: H | None = None) -> H | None:
    """The handle of a run; `existing` is that of a recovered one, so that the same record goes on.

    A factory that raises costs the run its durability, not its life: that is logged, and the answer is None."""
    if existing is not None or factory is None:
        return existing
    try:
        return factory.begin(info)
    except Exception:
        logger.warning("the run goes on without checkpoints: they could not be begun", exc_info=True)
        return None


# ---- ending ----------------------------------------------------------------------------------------------------------


class Finish(StrEnum):
    """What becomes of a checkpoint when its run is over here."""

    COMPLETE = "complete"
    LEAVE = "leave"
    FAIL = "fail"


def finish(error: BaseException | None, *, stopping: bool) -> Finish:
    """Done is done, also while the program stops. An error because it stops leaves the checkpoint for the next start; every
    other one is final: a model's error, the run's own deadline, a caller's cancel."""
    if error is None:
        return Finish.COMPLETE
    return Finish.LEAVE if stopping else Finish.FAIL


def finalise(
    checkpointer: Checkpointer | None, error: BaseException | None = None, *, stopping: bool = False
) -> Finish:
    """To be called on every way out of a run. What goes wrong here is logged: it costs a needless recovery, not the run."""
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
            logger.warning(
                "run %s: its checkpoint could not be finalised (%s)", checkpointer.meta.run_id, how, exc_info=True
            )
    return how


async def finalise_async(
    checkpointer: AsyncCheckpointer | None, error: BaseException | None = None, *, stopping: bool = False
) -> Finish:
    """To be called on every way out of a run. What goes wrong here is logged: it costs a needless recovery, not the run.

    A cancellation of the run does not reach it."""
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
        logger.warning(
            "run %s: its checkpoint could not be finalised (%s)", checkpointer.meta.run_id, how, exc_info=True
        )


# ---- recovering ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interrupted(Generic[H]):
    """A run that was cut off: what is left of it, and the handle with which its record goes on."""

    checkpoint: Checkpoint
    checkpointer: H


def recover(
    store: CheckpointStore, throttle: float = THROTTLE, clock: Clock | None = None
) -> Iterator[Interrupted[Checkpointer]]:
    """Interrupted runs, to be continued by this process. Of several that start at once, each run goes to one, where the store
    can see to that; it is taken when it is given out, so whoever stops half-way leaves the rest to others."""
    left = store.claim_interrupted() if isinstance(store, Claims) else iter(store.list_interrupted())
    for checkpoint in left:
        yield Interrupted(checkpoint, Checkpointer(store, checkpoint.meta, throttle, clock))


async def recover_async(
    store: AsyncCheckpointStore, throttle: float = THROTTLE, clock: Clock | None = None
) -> AsyncIterator[Interrupted[AsyncCheckpointer]]:
    """Interrupted runs, to be continued by this process. Of several that start at once, each run goes to one, where the store
    can see to that; it is taken when it is given out, so whoever stops half-way leaves the rest to others."""
    if isinstance(store, AsyncClaims):
        async for checkpoint in store.claim_interrupted():
            yield Interrupted(checkpoint, AsyncCheckpointer(store, checkpoint.meta, throttle, clock))
        return
    for checkpoint in await store.list_interrupted():
        yield Interrupted(checkpoint, AsyncCheckpointer(store, checkpoint.meta, throttle, clock))
