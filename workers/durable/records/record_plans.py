"""Plans for records: save, load, delete, list, claim, and renew the owner's lease (lua/record_*.lua).

A save sends a delta. The server applies a delta only to the exact state for which it was made. Otherwise it answers
`gap`, and the plan sends the whole record. So an edit of an old message is never lost, but needs a save of the whole record.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from coordinator.errors import BadCall, Unreadable
from coordinator.store.keys import Keys
from coordinator.store.replies import pairs, text, word
from coordinator.store.script import Call, Request, read
from coordinator.store.scripts import RECORD_CLAIM, RECORD_DELETE, RECORD_KEEP, RECORD_LIST, RECORD_LOAD, RECORD_SAVE
from workers.durable.records.record import taken_over
from workers.durable.records.record_delta import NOTHING, Acknowledged, make_delta
from workers.durable.records.record_format import PackedRecord
from workers.durable.records.stored_record import LoadedRecord, read_head, read_record

T = TypeVar("T")
Steps = Generator[Request | list[Request], Any, T]

PAGE_BYTES = 1024 * 1024  # the most bytes of messages in one reply of a load
RECORDS_PER_TRIP = 16  # records that are loaded in one trip
SCAN_COUNT = 500
_TRIES = 5


def save(
    keys: Keys, owner: str, packed: PackedRecord, known: Acknowledged, *, seq: int, ttl: float, now: str = ""
) -> Steps[Acknowledged]:
    """Save a record.

    Args:
        keys: The keys of partition 0.
        owner: The owner that saves.
        packed: The record.
        known: The state of the record that the server has acknowledged.
        seq: The number of the save, if the record has none.
        ttl: Seconds after which the server deletes a record that is not saved again.
        now: The time in ms for tests; the server's time by default.

    Returns:
        The acknowledged state after the save, or NOTHING if the stored record may be a different one.

    Raises:
        Fenced: If another owner has taken over the run.
        Unreadable: If the stored record is corrupt.
    """
    number = packed.seq or seq
    for _ in range(_TRIES):
        made, then = make_delta(known, packed, number)
        reply = yield RECORD_SAVE.call(
            keys.at, now=now, owner=owner, id=packed.run_id, seq=number, acked=known.seq, delta=made.wire(), meta=packed.meta,
            ttl=round(ttl * 1000),
        )  # fmt: skip
        match word(reply):
            case "ok":
                # If the program chose the number, it may have saved other content with the same number before.
                return NOTHING if packed.seq and text(reply[1]) == "again" else then
            case "old" if packed.seq:
                return NOTHING
            case "old":
                # The caller still waits for this save, so it is not late. The stored number is higher because an earlier owner's
                # clock was ahead.
                number = int(reply[1]) + 1
            case "gap":
                known = replace(NOTHING, generation=int(reply[1]) + 1)
            case "fenced":
                raise taken_over(packed.run_id)
            case "unreadable":
                raise Unreadable(f"the record of run {packed.run_id} is corrupt: delete it, then save again")
            case answer:
                raise BadCall(f"record_save answered {answer!r}")
    raise BadCall(f"the record of run {packed.run_id} was changed by others {_TRIES} times while it was saved")


def load(keys: Keys, id: str, room: int = PAGE_BYTES) -> Steps[LoadedRecord | None]:
    """Load a record.

    Args:
        keys: The keys of partition 0.
        id: The id of the run.
        room: The most bytes of messages in one reply.

    Returns:
        The record, or None if there is none.

    Raises:
        Unreadable: If the record is corrupt.
    """
    for _ in range(_TRIES):
        reply = yield _head(keys, id, room)
        found: LoadedRecord | str | None = yield from _load_rest(keys, id, reply, room)
        if not isinstance(found, str):
            return found
    raise Unreadable(f"the record of run {id} was changed {_TRIES} times while it was read")


def load_many(keys: Keys, ids: Sequence[str], room: int = PAGE_BYTES) -> Steps[list[LoadedRecord | Unreadable | None]]:
    """Load several records.

    Returns:
        For each id the record, None if there is none, or the error that says why it cannot be read.
    """
    found: list[LoadedRecord | Unreadable | None] = []
    for start in range(0, len(ids), RECORDS_PER_TRIP):
        part = ids[start : start + RECORDS_PER_TRIP]
        replies = yield [_head(keys, id, room) for id in part]
        for id, reply in zip(part, replies, strict=True):
            if isinstance(reply, Exception):
                raise reply
            try:
                one = yield from _load_rest(keys, id, reply, room)
                found.append((yield from load(keys, id, room)) if isinstance(one, str) else one)
            except Unreadable as error:
                found.append(error)
    return found


def _head(keys: Keys, id: str, room: int) -> Call:
    return RECORD_LOAD.call(keys.at, id=id, page="head", seq="", room=room)


def _load_rest(keys: Keys, id: str, reply: Any, room: int) -> Steps[LoadedRecord | str | None]:
    """Load the remaining parts of a record whose head was loaded.

    Returns:
        The record, 'changed' if it was saved again meanwhile, or None if there is no record.

    Raises:
        Unreadable: If the record is corrupt.
    """
    if word(reply) == "missing":
        return None
    if word(reply) != "ok":
        raise Unreadable(f"the record of run {id} is corrupt")
    content, inline = pairs(reply[1]), text(reply[2]) == "whole"
    chunks: dict[str, Any] | None = pairs(reply[3])
    if not inline:
        chunks = yield from _load_chunks(keys, id, read_head(id, content).seq, pairs(reply[3]), room)
    return "changed" if chunks is None else read_record(id, content, chunks)


def _load_chunks(keys: Keys, id: str, seq: int, sizes: dict[str, Any], room: int) -> Steps[dict[str, Any] | None]:
    """Load the chunks of messages, page by page, and return them by name; None if the record was saved again meanwhile."""
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


def delete(keys: Keys, owner: str, id: str, *, seq: int, now: str = "") -> Steps[None]:
    """Delete a record.

    Args:
        keys: The keys of partition 0.
        owner: The owner that deletes.
        id: The id of the run.
        seq: A number that is higher than the number of every earlier save, so that a late save does not restore the record.
        now: The time in ms for tests; the server's time by default.

    Raises:
        Fenced: If another owner has taken over the run.
    """
    reply = yield RECORD_DELETE.call(keys.at, now=now, owner=owner, id=id, seq=seq)
    if word(reply) == "fenced":
        raise taken_over(id)


def list_interrupted(keys: Keys, owner: str, now: str = "") -> Steps[dict[str, str]]:
    """Return the ids of the runs that no other live owner executes, each with its last owner."""
    found: dict[str, str] = {}
    cursor = "0"
    while True:
        reply = yield read(keys.at, "ZSCAN", keys.records(), cursor, "COUNT", SCAN_COUNT)
        cursor = text(reply[0])
        ids = [(text(id),) for id in reply[1][::2]]
        if ids:
            part = yield RECORD_LIST.call(keys.at, ids, now=now, owner=owner)
            found |= {id: text(seen) for id, seen in pairs(part[1]).items()}
        if cursor == "0":
            return found


def claim(keys: Keys, owner: str, id: str, *, seen: str, nonce: str, now: str = "") -> Steps[bool]:
    """Claim an interrupted run. If several owners claim the run, only one of them succeeds.

    Args:
        keys: The keys of partition 0.
        owner: The owner that claims.
        id: The id of the run.
        seen: The run's last owner, from `list_interrupted`.
        nonce: Identifies this claim, so that a repeated claim gets the same answer.
        now: The time in ms for tests; the server's time by default.

    Returns:
        True if the run belongs to this owner now.
    """
    reply = yield RECORD_CLAIM.call(keys.at, now=now, owner=owner, id=id, seen=seen, nonce=nonce)
    return word(reply) == "ok"


def renew_lease(keys: Keys, owner: str, now: str = "") -> Steps[None]:
    """Renew an owner's lease."""
    yield RECORD_KEEP.call(keys.at, now=now, owner=owner, mode="renew")


def end_lease(keys: Keys, owner: str, now: str = "") -> Steps[None]:
    """End an owner's lease. Other owners may claim its runs immediately."""
    yield RECORD_KEEP.call(keys.at, now=now, owner=owner, mode="leave")
