"""The delta of a save: the parts of a record that the server does not have yet. This module does no I/O.

A save compares digests of the record's parts with the digests of the parts that the server acknowledged last, and sends
only the parts that differ. If an old message was edited, all messages are sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgpack

from coordinator.store.plans.attempts import Delta
from workers.durable.records.record_format import PackedRecord


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The state of a record that the server has acknowledged to the record's owner.

    Attributes:
        seq: The number of the last acknowledged save; 0 if there is none.
        generation: The number of the transcript. It grows whenever all messages are sent again.
        messages: Digests of the messages.
        phases: Digests of the phases.
        state: The encoded state.
    """

    seq: int
    generation: int
    messages: Sequence[bytes]
    phases: Sequence[bytes]
    state: bytes

    @classmethod
    def of(cls, packed: PackedRecord, seq: int, generation: int) -> Acknowledged:
        """Return the acknowledged state after the server has acknowledged this record."""
        return cls(seq, generation, _digests(packed.messages), _digests(packed.phases), packed.state)


NOTHING = Acknowledged(0, 1, (), (), b"")


def make_delta(known: Acknowledged, packed: PackedRecord, seq: int) -> tuple[Delta, Acknowledged]:
    """Compare a record with its acknowledged state.

    Returns:
        The delta to send, and the acknowledged state after the server has acknowledged the delta.
    """
    then = Acknowledged.of(packed, seq, known.generation)
    base = len(known.messages)
    if then.messages[:base] != list(known.messages):
        base, then = 0, replace(then, generation=known.generation + 1)
    fresh = packed.messages[base:]
    changed = [
        (f"phase:{i}", data)
        for i, data in enumerate(packed.phases)
        if i >= len(known.phases) or known.phases[i] != then.phases[i]
    ]
    state = None if known.seq and packed.state == known.state else packed.state
    drop = tuple(f"phase:{i}" for i in range(len(packed.phases), len(known.phases)))
    made = Delta(
        seq, known.seq, then.generation, base, len(fresh), _join(fresh), packed.iteration, packed.schema, state,
        tuple(changed), drop,
    )  # fmt: skip
    return made, then


def _digests(parts: Sequence[bytes]) -> list[bytes]:
    return [hashlib.blake2b(part, digest_size=16).digest() for part in parts]


def _join(messages: Sequence[bytes]) -> bytes:
    """Return encoded messages as one msgpack array, without encoding them again."""
    header: bytes = msgpack.Packer().pack_array_header(len(messages))
    return header + b"".join(messages) if messages else b""
