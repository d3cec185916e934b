"""Build a record from its stored fields. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.encoding.codec import decode, encode
from coordinator.errors import Unreadable
from workers.durable.records.record import Checkpoint
from workers.durable.records.record_delta import Acknowledged
from workers.durable.records.record_format import PackedRecord, unpack


@dataclass(frozen=True, slots=True)
class LoadedRecord:
    """A record, and its acknowledged state, with which the next save is compared."""

    checkpoint: Checkpoint
    known: Acknowledged


def read_head(id: str, content: Mapping[str, Any]) -> CheckpointHead:
    """Return the head of a record, which holds its numbers, for example its seq, length and schema.

    Raises:
        Unreadable: If the head is missing or not valid.
    """
    try:
        return CheckpointHead.parse(content["head"])
    except (KeyError, Unreadable):
        raise Unreadable(f"the head of the record of run {id} can't be read") from None


def read_record(id: str, content: Mapping[str, Any], chunks: Mapping[str, Any]) -> LoadedRecord:
    """Build a record from its stored fields and chunks, and return it.

    Raises:
        Unreadable: If the fields and chunks are not a valid record.
    """
    try:
        return _build(id, content, chunks)
    except (ValueError, OverflowError, OSError) as error:  # not a number, or a time outside of the clock's range
        raise Unreadable(f"the record of run {id} is corrupt: {error}") from error


def _build(id: str, content: Mapping[str, Any], chunks: Mapping[str, Any]) -> LoadedRecord:
    head = read_head(id, content)
    messages: list[bytes] = []
    for base in sorted(chunks, key=int):
        if int(base) != len(messages) or chunks[base] is None:
            raise Unreadable(f"the record of run {id} has no messages from number {len(messages)} on")
        part = decode(chunks[base], f"messages[{base}] of run {id}")
        if not isinstance(part, list):
            raise Unreadable(f"the messages of run {id} from number {base} on are not a list")
        messages += [encode(item, "message") for item in part]
    if len(messages) != head.length:
        raise Unreadable(f"the record of run {id} has {len(messages)} messages, and its head says {head.length}")
    count = sum(field.startswith("phase:") for field in content)
    if "meta" not in content or any(f"phase:{i}" not in content for i in range(count)):
        raise Unreadable(f"parts of the record of run {id} are missing")
    packed = PackedRecord(
        id, content["meta"], messages, [content[f"phase:{i}"] for i in range(count)], content.get("state") or b"",
        head.iteration, head.schema, head.seq,
    )  # fmt: skip
    record = unpack(packed, datetime.fromtimestamp(head.updated / 1000, UTC))
    return LoadedRecord(record, Acknowledged.of(packed, head.seq, head.generation))
