"""Encode and decode records. This module does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from coordinator.encoding.codec import decode, encode
from coordinator.errors import CoordinatorError, TooLarge, Unreadable
from workers.durable.records.record import Checkpoint, Meta, Phase, Transcript

RECORD_LIMIT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PackedRecord:
    """The encoded parts of a record."""

    run_id: str
    meta: bytes
    messages: Sequence[bytes]
    phases: Sequence[bytes]
    state: bytes
    iteration: int
    schema: int
    seq: int


def pack(record: Checkpoint) -> PackedRecord:
    """Return the encoded parts of a record.

    Raises:
        NotPlain: If a value is not plain data. The message names its place.
        TooLarge: If a value, or the whole record, is too large.
    """
    id = record.meta.run_id
    packed = PackedRecord(
        id,
        encode([asdict(record.meta), record.updated_at], "meta"),
        Transcript(record.messages).packed,
        [encode([phase.name, phase.output], f"phase {phase.name!r}") for phase in record.phases],
        encode(dict(record.state), "state") if record.state else b"",
        record.iteration,
        record.schema,
        record.seq,
    )
    size = len(packed.meta) + len(packed.state) + sum(map(len, packed.messages)) + sum(map(len, packed.phases))
    if size > RECORD_LIMIT:
        raise TooLarge(f"the record of run {id} has {size:,} bytes, and the limit is {RECORD_LIMIT:,}")
    return packed


def unpack(packed: PackedRecord, updated: datetime | None = None) -> Checkpoint:
    """Return the record from its encoded parts.

    Args:
        packed: The encoded parts.
        updated: The time of the last save, for a record that does not contain this time.

    Raises:
        Unreadable: If the bytes are not a valid record.
    """
    try:
        meta, at = decode(packed.meta, "meta")
        phases = [decode(data, f"phases[{i}]") for i, data in enumerate(packed.phases)]
        state = decode(packed.state, "state") if packed.state else {}
        if not isinstance(state, dict):
            raise Unreadable("its state is not a dict")
        return Checkpoint(
            Meta(**meta),
            [decode(data, f"messages[{i}]") for i, data in enumerate(packed.messages)],
            packed.iteration,
            tuple(Phase(name, output) for name, output in phases),
            state,
            at if at is not None else updated,
            packed.schema,
            packed.seq,
        )
    except (CoordinatorError, TypeError, ValueError) as error:
        raise Unreadable(f"the record of run {packed.run_id} can't be read: {error}") from error
