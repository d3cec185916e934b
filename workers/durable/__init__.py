"""Save the state of runs that a program executes itself, without workers, and find interrupted runs after a restart.

The program saves a record of each run while it works. See docs/guides/checkpoints-alone.md.
"""

from workers.durable.checkpointer import AsyncCheckpointer, Checkpointer
from workers.durable.lifecycle import (
    AsyncCheckpointerFactory,
    CheckpointerFactory,
    Factory,
    Finish,
    Interrupted,
    begin,
    finalise,
    finalise_async,
    finish,
    recover,
    recover_async,
)
from workers.durable.records.record import Checkpoint, Fenced, Meta, Phase, Phases
from workers.durable.stores.memory_store import AsyncMemoryStore, MemoryStore
from workers.durable.stores.redis_store import AsyncRedisStore, RedisStore
from workers.durable.stores.store_protocols import AsyncCheckpointStore, CheckpointStore

__all__ = [
    "AsyncCheckpointStore",
    "AsyncCheckpointer",
    "AsyncCheckpointerFactory",
    "AsyncMemoryStore",
    "AsyncRedisStore",
    "Checkpoint",
    "CheckpointStore",
    "Checkpointer",
    "CheckpointerFactory",
    "Factory",
    "Fenced",
    "Finish",
    "Interrupted",
    "MemoryStore",
    "Meta",
    "Phase",
    "Phases",
    "RedisStore",
    "begin",
    "finalise",
    "finalise_async",
    "finish",
    "recover",
    "recover_async",
]
