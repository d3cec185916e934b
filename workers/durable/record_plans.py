"""The plans of the checkpoint battery: records that a program keeps of runs that it executes by itself (see lua/record_*.lua).

Only what is new is sent. What is new is told by comparing digests with what the server acknowledged last; a delta is applied to
exactly that or answered with a gap, and then everything is sent. So an edit of an old message costs a save of all, and is not lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgpack

from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.encoding.codec import decode, encode
from coordinator.errors import BadCall, CoordinatorError, TooLarge, Unreadable
from coordinator.store.keys import Keys
from coordinator.store.plans.attempts import Delta
from coordinator.store.replies import pairs, text, word
from coordinator.store.script import Call, Request, read
from coordinator.store.scripts import RECORD_CLAIM, RECORD_DELETE, RECORD_KEEP, RECORD_LIST, RECORD_LOAD, RECORD_SAVE
from workers.durable.record import Checkpoint, Fenced, Meta, Phase, Transcript

T = TypeVar("T")
Steps = Generator[Request | list[Request], Any, T]

CHECKPOINT_LIMIT = 64 * 1024 * 1024
ROOM = 1024 * 1024  # what one page of a load holds
RECORDS_PER_TRIP = 16  # records that are loaded in one trip
SCAN = 500
_TRIES = 5


# ---- checkpoints as bytes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packed:
    """A checkpoint as bytes, part by part."""

    run_id: str
    meta: bytes
    messages: Sequence[bytes]
    phases: Sequence[bytes]
    state: bytes
    iteration: int
    schema: int
    seq: int


def pack(checkpoint: Checkpoint) -> Packed:
    """What can't be kept, or is too large, is refused here with its place."""
    id = checkpoint.meta.run_id
    packed = Packed(
        id,
        encode([asdict(checkpoint.meta), checkpoint.updated_at], "meta"),
        Transcript(checkpoint.messages).packed,
        [encode([phase.name, phase.output], f"phase {phase.name!r}") for phase in checkpoint.phases],
        encode(dict(checkpoint.state), "state") if checkpoint.state else b"",
        checkpoint.iteration,
        checkpoint.schema,
        checkpoint.seq,
    )
    size = len(packed.meta) + len(packed.state) + sum(map(len, packed.messages)) + sum(map(len, packed.phases))
    if size > CHECKPOINT_LIMIT:
        raise TooLarge(f"the checkpoint of run {id} has {size:,} bytes, and the limit is {CHECKPOINT_LIMIT:,}")
    return packed


def unpack(packed: Packed, updated: datetime | None = None) -> Checkpoint:
    """The checkpoint; Unreadable where the bytes are not those of one. `updated` counts where it does not say itself."""
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
        raise Unreadable(f"the checkpoint of run {packed.run_id} can't be read: {error}") from error


# ---- what is new -----------------------------------------------------------------------------------------------------


def _digests(parts: Sequence[bytes]) -> list[bytes]:
    return [hashlib.blake2b(part, digest_size=16).digest() for part in parts]


@dataclass(frozen=True, slots=True)
class Known:
    """What the server has of a record, as far as its owner was told."""

    seq: int
    generation: int
    messages: Sequence[bytes]
    phases: Sequence[bytes]
    state: bytes

    @classmethod
    def of(cls, packed: Packed, seq: int, generation: int) -> Known:
        return cls(seq, generation, _digests(packed.messages), _digests(packed.phases), packed.state)


NOTHING = Known(0, 1, (), (), b"")


def delta(known: Known, packed: Packed, seq: int) -> tuple[Delta, Known]:
    """What is new against what is known, and what is known once it is acknowledged."""
    then = Known.of(packed, seq, known.generation)
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
        seq, known.seq, then.generation, base, len(fresh), _chunk(fresh), packed.iteration, packed.schema, state,
        tuple(changed), drop,
    )  # fmt: skip
    return made, then


def _chunk(packed: Sequence[bytes]) -> bytes:
    """Packed messages as one array, without packing them again."""
    header: bytes = msgpack.Packer().pack_array_header(len(packed))
    return header + b"".join(packed) if packed else b""


# ---- plans -----------------------------------------------------------------------------------------------------------


def save(keys: Keys, owner: str, packed: Packed, known: Known, *, seq: int, ttl: float, now: str = "") -> Steps[Known]:
    """What is known afterwards; nothing, where something newer is stored. `seq` is taken where the checkpoint has none."""
    number = packed.seq or seq
    for _ in range(_TRIES):
        made, then = delta(known, packed, number)
        reply = yield RECORD_SAVE.call(
            keys.at, now=now, owner=owner, id=packed.run_id, seq=number, acked=known.seq, delta=made.wire(), meta=packed.meta,
            ttl=round(ttl * 1000),
        )  # fmt: skip
        match word(reply):
            case "ok":
                # a number that somebody else chose may have been given to other content
                return NOTHING if packed.seq and text(reply[1]) == "again" else then
            case "old" if packed.seq:
                return NOTHING
            case "old":  # it can't be late, since its caller waits for it: another clock was ahead of ours
                number = int(reply[1]) + 1
            case "gap":
                known = replace(NOTHING, generation=int(reply[1]) + 1)
            case "fenced":
                raise _fenced(packed.run_id)
            case "unreadable":
                raise Unreadable(f"the record of run {packed.run_id} is corrupt: delete it to save anew")
            case answer:
                raise BadCall(f"record_save answered {answer!r}")
    raise BadCall(f"the record of run {packed.run_id} changed again and again while it was saved")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A record as it was read."""

    checkpoint: Checkpoint
    known: Known


def load(keys: Keys, id: str, room: int = ROOM) -> Steps[Loaded | None]:
    """The record; None where there is none."""
    for _ in range(_TRIES):
        reply = yield _head(keys, id, room)
        found: Loaded | str | None = yield from _rest(keys, id, reply, room)
        if not isinstance(found, str):
            return found
    raise Unreadable(f"the record of run {id} changed again and again while it was read")


def load_many(keys: Keys, ids: Sequence[str], room: int = ROOM) -> Steps[list[Loaded | Unreadable | None]]:
    """Each record, None where there is none, or why it can't be read."""
    found: list[Loaded | Unreadable | None] = []
    for start in range(0, len(ids), RECORDS_PER_TRIP):
        part = ids[start : start + RECORDS_PER_TRIP]
        replies = yield [_head(keys, id, room) for id in part]
        for id, reply in zip(part, replies, strict=True):
            if isinstance(reply, Exception):
                raise reply
            try:
                one = yield from _rest(keys, id, reply, room)
                found.append((yield from load(keys, id, room)) if isinstance(one, str) else one)
            except Unreadable as error:
                found.append(error)
    return found


def _head(keys: Keys, id: str, room: int) -> Call:
    return RECORD_LOAD.call(keys.at, id=id, page="head", seq="", room=room)


def _rest(keys: Keys, id: str, reply: Any, room: int) -> Steps[Loaded | str | None]:
    """What belongs to the head of a record; 'changed' where it was saved anew meanwhile."""
    if word(reply) == "missing":
        return None
    if word(reply) != "ok":
        raise Unreadable(f"the record of run {id} is corrupt")
    content, inline = pairs(reply[1]), text(reply[2]) == "whole"
    chunks: dict[str, Any] | None = pairs(reply[3])
    if not inline:
        chunks = yield from _pages(keys, id, _head_of(id, content).seq, pairs(reply[3]), room)
    return "changed" if chunks is None else _loaded(id, content, chunks)


def _pages(keys: Keys, id: str, seq: int, sizes: dict[str, Any], room: int) -> Steps[dict[str, Any] | None]:
    """The chunks, page by page; None where the record was saved anew meanwhile."""
    chunks: dict[str, Any] = {}
    page: list[str] = []
    left = room
    for field in [*sizes, ""]:
        size = int(sizes.get(field, 0))
        if page and (not field or size > left):
            reply = yield RECORD_LOAD.call(keys.at, [(one,) for one in page], id=id, page="chunks", seq=seq, room=room)
            if word(reply) != "ok":
                return None
            chunks |= zip(page, reply[1], strict=True)
            page, left = [], room
        page.append(field)
        left -= size
    return chunks


def _head_of(id: str, content: dict[str, Any]) -> CheckpointHead:
    try:
        return CheckpointHead.parse(content["head"])
    except (KeyError, Unreadable):
        raise Unreadable(f"the head of the record of run {id} can't be read") from None


def _loaded(id: str, content: dict[str, Any], chunks: dict[str, Any]) -> Loaded:
    try:
        return _read(id, content, chunks)
    except (ValueError, OverflowError, OSError) as error:  # numbers that are none, or that no clock knows
        raise Unreadable(f"the record of run {id} is corrupt: {error}") from error


def _read(id: str, content: dict[str, Any], chunks: dict[str, Any]) -> Loaded:
    head = _head_of(id, content)
    messages: list[bytes] = []
    for base in sorted(chunks, key=int):
        if int(base) != len(messages) or chunks[base] is None:
            raise Unreadable(f"messages {len(messages)} and on are missing in the record of run {id}")
        part = decode(chunks[base], f"messages[{base}] of run {id}")
        if not isinstance(part, list):
            raise Unreadable(f"messages {base} and on of run {id} are not a list")
        messages += [encode(item, "message") for item in part]
    if len(messages) != head.length:
        raise Unreadable(f"the record of run {id} has {len(messages)} messages, and its head says {head.length}")
    count = sum(field.startswith("phase:") for field in content)
    if "meta" not in content or any(f"phase:{i}" not in content for i in range(count)):
        raise Unreadable(f"parts of the record of run {id} are missing")
    packed = Packed(
        id, content["meta"], messages, [content[f"phase:{i}"] for i in range(count)], content.get("state") or b"",
        head.iteration, head.schema, head.seq,
    )  # fmt: skip
    checkpoint = unpack(packed, datetime.fromtimestamp(head.updated / 1000, UTC))
    return Loaded(checkpoint, Known.of(packed, head.seq, head.generation))


def delete(keys: Keys, owner: str, id: str, *, seq: int, now: str = "") -> Steps[None]:
    """Forgets a record. `seq` is above that of every save before it."""
    reply = yield RECORD_DELETE.call(keys.at, now=now, owner=owner, id=id, seq=seq)
    if word(reply) == "fenced":
        raise _fenced(id)


def interrupted(keys: Keys, owner: str, now: str = "") -> Steps[dict[str, str]]:
    """The runs that no other live process executes -> the owner that each had."""
    found: dict[str, str] = {}
    cursor = "0"
    while True:
        reply = yield read(keys.at, "ZSCAN", keys.records(), cursor, "COUNT", SCAN)
        cursor = text(reply[0])
        ids = [(text(id),) for id in reply[1][::2]]
        if ids:
            part = yield RECORD_LIST.call(keys.at, ids, now=now, owner=owner)
            found |= {id: text(seen) for id, seen in pairs(part[1]).items()}
        if cursor == "0":
            return found


def claim(keys: Keys, owner: str, id: str, *, seen: str, nonce: str, now: str = "") -> Steps[bool]:
    """Whether the run is this owner's now: only one of those that saw it interrupted gets it."""
    reply = yield RECORD_CLAIM.call(keys.at, now=now, owner=owner, id=id, seen=seen, nonce=nonce)
    return word(reply) == "ok"


def keep(keys: Keys, owner: str, mode: str = "renew", now: str = "") -> Steps[None]:
    """Renews an owner's lease, or gives it up (`leave`)."""
    yield RECORD_KEEP.call(keys.at, now=now, owner=owner, mode=mode)


def _fenced(id: str) -> Fenced:
    return Fenced(f"run {id} was taken over by another process: this one has to stop, and nothing of it was kept")
