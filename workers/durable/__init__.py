"""Keep checkpoints for programs that execute their runs themselves, without workers.

This package is the public module for stand-alone checkpoints. See docs/guides/checkpoints-alone.md.
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
from workers.durable.memory_store import AsyncMemoryStore, MemoryStore
from workers.durable.record import AsyncCheckpointStore, Checkpoint, CheckpointStore, Fenced, Meta, Phase, Phases
from workers.durable.redis_store import AsyncRedisStore, RedisStore

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
