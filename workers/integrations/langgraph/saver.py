"""The common base of the savers: the interface of LangGraph's checkpointers on top of the plans, for threads and event loops."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from coordinator.errors import BadOption
from workers.integrations.langgraph import read_plans, save_plans, upkeep_plans
from workers.integrations.langgraph.known import KnownThreads
from workers.integrations.langgraph.save_plans import CheckpointToSave, Place, Steps, WritesToSave
from workers.integrations.langgraph.values import Values
from workers.integrations.langgraph.versions import next_version

T = TypeVar("T")

# Seconds for which a save waits for earlier saves of its thread. The order saves bytes. A save is right without it: the server
# refuses a save that comes too early, and the saver then sends more.
PATIENCE = 1.0


class PlainSaver(BaseCheckpointSaver[str]):
    """A checkpointer on plain Redis or Valkey. Each method has an async form, whose name starts with `a`.

    Subclasses define where a thread is stored, and how a plan is run.
    """

    def __init__(self, *, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        self._threads = KnownThreads()
        self._own_values: Values | None = None

    @property
    def _values(self) -> Values:
        """The encoder of values with the present serializer. `with_allowlist` gives a clone of the saver another serializer."""
        if self._own_values is None or self._own_values.serde is not self.serde:
            self._own_values = Values(self.serde)
        return self._own_values

    @abstractmethod
    def _place(self, thread: str) -> Steps[Place]:
        """Return a plan that returns the place where a thread is stored."""

    @abstractmethod
    def _all_places(self) -> Steps[list[Place]]:
        """Return a plan that returns all places where threads may be stored. The field `thread` of these places has no meaning."""

    @abstractmethod
    def _drive(self, make_plan: Callable[[], Steps[T]]) -> T:
        """Run a plan from a thread. The plan is made again if it must be repeated."""

    @abstractmethod
    async def _drive_async(self, make_plan: Callable[[], Steps[T]]) -> T:
        """Run a plan from an event loop. The plan is made again if it must be repeated."""

    # ---- one checkpoint

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the configuration names, or the newest one of its thread; None if there is none."""
        return self._drive(lambda: self._get(config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the configuration names, or the newest one of its thread; None if there is none."""
        return await self._drive_async(lambda: self._get(config))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, and return the configuration that names it."""
        with self._threads.of(_thread(config)).in_order(checkpoint=True) as earlier:
            futures.wait(earlier, timeout=PATIENCE)
            return self._drive(lambda: self._put(config, checkpoint, metadata, new_versions))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, and return the configuration that names it."""
        with self._threads.of(_thread(config)).in_order(checkpoint=True) as earlier:
            await _wait_for(earlier)
            return await self._drive_async(lambda: self._put(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task that belongs to a checkpoint."""
        with self._threads.of(_thread(config)).in_order(checkpoint=False) as earlier:
            futures.wait(earlier, timeout=PATIENCE)
            self._drive(lambda: self._put_writes(config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task that belongs to a checkpoint."""
        with self._threads.of(_thread(config)).in_order(checkpoint=False) as earlier:
            await _wait_for(earlier)
            await self._drive_async(lambda: self._put_writes(config, writes, task_id, task_path))

    # ---- many checkpoints

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Iterate over checkpoints, newest first: of one thread, or of all threads if there is no configuration."""
        for place in self._drive(lambda: self._listed_places(config)):
            for page in read_plans.list_pages(
                place, self._threads, self._values, _query(config, filter, before, limit)
            ):
                found = self._drive(page)
                limit = None if limit is None else limit - len(found)
                yield from found

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Iterate over checkpoints, newest first: of one thread, or of all threads if there is no configuration."""
        for place in await self._drive_async(lambda: self._listed_places(config)):
            for page in read_plans.list_pages(
                place, self._threads, self._values, _query(config, filter, before, limit)
            ):
                found = await self._drive_async(page)
                limit = None if limit is None else limit - len(found)
                for one in found:
                    yield one

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes of delta channels before a checkpoint, and the last stored value of each channel."""
        return self._drive(lambda: self._history(config, channels)) if channels else {}

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes of delta channels before a checkpoint, and the last stored value of each channel."""
        return await self._drive_async(lambda: self._history(config, channels)) if channels else {}

    # ---- threads

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its checkpoints and writes."""
        self._drive(lambda: self._delete_threads([thread_id]))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its checkpoints and writes."""
        await self._drive_async(lambda: self._delete_threads([thread_id]))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata names one of these runs of LangGraph, with their writes."""
        self._drive(lambda: self._delete_for_runs(run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata names one of these runs of LangGraph, with their writes."""
        await self._drive_async(lambda: self._delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another thread."""
        self._drive(lambda: self._copy(source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another thread."""
        await self._drive_async(lambda: self._copy(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints of threads.

        Args:
            thread_ids: The threads.
            strategy: "keep_latest" keeps the newest checkpoint of each namespace, and the earlier ones that its delta channels
                need. "delete" deletes the threads.

        Raises:
            BadOption: If the strategy is not known.
        """
        self._drive(lambda: self._prune(thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints of threads, as `prune` does."""
        await self._drive_async(lambda: self._prune(thread_ids, strategy))

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return the next version of a channel. Two processes that extend the same checkpoint get different versions."""
        return next_version(current)

    # ---- plans

    def _get(self, config: RunnableConfig) -> Steps[CheckpointTuple | None]:
        thread, ns = _thread(config), _namespace(config)
        place = yield from self._place(thread)
        found = yield from read_plans.get(place, self._threads, self._values, ns, get_checkpoint_id(config) or "")
        if found is not None and get_checkpoint_id(config):
            return found._replace(config=config)
        return found

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Steps[RunnableConfig]:
        thread, ns = _thread(config), _namespace(config)
        saved = CheckpointToSave(
            ns,
            checkpoint,
            dict(get_checkpoint_metadata(config, metadata)),
            new_versions,
            get_checkpoint_id(config) or "",
        )
        place = yield from self._place(thread)
        yield from save_plans.save_checkpoint(place, self._threads, self._values, saved)
        named: RunnableConfig = read_plans.config_of(config["configurable"]["thread_id"], ns, checkpoint["id"])
        return named

    def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Steps[None]:
        id = config["configurable"]["checkpoint_id"]
        saved = WritesToSave(_namespace(config), id, list_of(writes), task_id, task_path)
        place = yield from self._place(_thread(config))
        yield from save_plans.save_writes(place, self._threads, self._values, saved)

    def _listed_places(self, config: RunnableConfig | None) -> Steps[Sequence[Place]]:
        if config is not None:
            return [(yield from self._place(_thread(config)))]
        places = yield from self._all_places()
        found = yield from read_plans.list_threads([one.keys for one in places], places[0].owner)
        return [_at(places[0], keys, thread) for keys, thread in found]

    def _history(self, config: RunnableConfig, channels: Sequence[str]) -> Steps[Mapping[str, DeltaChannelHistory]]:
        place = yield from self._place(_thread(config))
        return (
            yield from read_plans.history(
                place, self._values, _namespace(config), get_checkpoint_id(config) or "", channels
            )
        )

    def _delete_threads(self, threads: Sequence[str]) -> Steps[None]:
        for thread in threads:
            place = yield from self._place(str(thread))
            self._threads.forget(place.thread)
            yield from upkeep_plans.delete_thread(place)

    def _delete_for_runs(self, runs: Sequence[str]) -> Steps[None]:
        places = yield from self._all_places()
        found = yield from upkeep_plans.find_runs([one.keys for one in places], runs)
        for keys, thread, run in found:
            yield from upkeep_plans.delete_run(_at(places[0], keys, thread), run)

    def _copy(self, source: str, target: str) -> Steps[None]:
        first, second = (yield from self._place(str(source))), (yield from self._place(str(target)))
        yield from upkeep_plans.copy_thread(first, second)

    def _prune(self, threads: Sequence[str], strategy: str) -> Steps[None]:
        if strategy not in ("keep_latest", "delete"):
            raise BadOption(f"strategy {strategy!r} is not known: use keep_latest or delete")
        if strategy == "delete":
            return (yield from self._delete_threads(threads))
        for thread in threads:
            yield from upkeep_plans.prune((yield from self._place(str(thread))), self._values)


async def _wait_for(earlier: Sequence[futures.Future[None]]) -> None:
    if earlier:
        await asyncio.wait([asyncio.wrap_future(one) for one in earlier], timeout=PATIENCE)


def list_of(writes: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
    """Return writes as a tuple, because LangGraph may pass an iterator, and a plan may be repeated."""
    return tuple(writes)


def _at(place: Place, keys: Any, thread: str) -> Place:
    return Place(keys, thread, place.owner, place.token, place.ttl)


def _thread(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])


def _namespace(config: RunnableConfig) -> str:
    return str(config["configurable"].get("checkpoint_ns") or "")


def _query(
    config: RunnableConfig | None, filter: dict[str, Any] | None, before: RunnableConfig | None, limit: int | None
) -> read_plans.Query:
    named = config["configurable"] if config is not None else {}
    return read_plans.Query(
        named.get("checkpoint_ns"),
        named.get("checkpoint_id"),
        get_checkpoint_id(before) if before else None,
        filter,
        limit,
    )
