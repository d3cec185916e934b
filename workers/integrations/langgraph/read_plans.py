"""Plans that read checkpoints of a graph (coordinator/store/lua/graphs/graph_get.lua and graph_history.lua)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    writes_sort_key,
)

from coordinator.errors import Unreadable
from coordinator.store.keys import Keys
from coordinator.store.replies import require_all, text, word
from coordinator.store.script import Call, read
from coordinator.store.scripts import GRAPH_GET, GRAPH_HISTORY
from workers.integrations.langgraph.known import Dictionary, KnownThreads, StoredList
from workers.integrations.langgraph.packing import base_field, unpack
from workers.integrations.langgraph.save_plans import Place, Steps, unpack_path, unpack_version, versions_text
from workers.integrations.langgraph.values import Parts, Values, digests, list_chunks

ROOM = 4 * 1024 * 1024  # the most bytes of items in one reply
PAGE = 50  # names or checkpoints in one trip of a list
ANCESTORS = 200  # checkpoints that one call of graph_history visits


@dataclass(frozen=True, slots=True)
class Query:
    """A selection of the checkpoints of a thread, for a list.

    Attributes:
        ns: The namespace; None for all of them.
        id: The only checkpoint; None for all of them.
        before: Only checkpoints with a smaller id.
        filter: Values that the metadata must have.
        limit: The largest number of checkpoints.
    """

    ns: str | None = None
    id: str | None = None
    before: str | None = None
    filter: Mapping[str, Any] | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class _Write:
    sort_key: tuple[str, str, int]
    checkpoint: str
    task: str
    channel: str
    value: bytes


def get(place: Place, threads: KnownThreads, values: Values, ns: str, id: str) -> Steps[CheckpointTuple | None]:
    """Return a checkpoint with its values and writes, or None if there is none. An empty id means the newest checkpoint.

    Raises:
        Unreadable: If the stored checkpoint is damaged.
    """
    reply = yield _get_call(place, ns, id)
    return (yield from _read_tuple(place, threads, values, ns, reply))


def _get_call(place: Place, ns: str, id: str) -> Call:
    return GRAPH_GET.call(place.keys.at, owner=place.owner, thread=place.thread, ns=ns, id=id, room=ROOM)


def _read_tuple(
    place: Place, threads: KnownThreads, values: Values, ns: str, reply: Any
) -> Steps[CheckpointTuple | None]:
    if word(reply) == "missing":
        return None
    id, record, versions, parts = text(reply[1]), reply[2], split_refs(reply[3]), Parts(_pairs(reply[5]))
    channels: dict[str, bytes] = {}
    writes: list[_Write] = []
    for field, value in _pairs(reply[4]).items():
        if field[:1] == b"w":
            writes.append(_parse_write(field, value))
        else:
            channels[field.split(b"\0")[1].decode()] = value
    yield from _complete(place, [*channels.values(), *(write.value for write in writes)], parts)
    parent, checkpoint, metadata = _read_body(values, record, parts, versions)
    checkpoint |= {
        "id": id,
        "channel_values": {channel: values.read(value, parts) for channel, value in channels.items()},
        "channel_versions": {channel: unpack_version(version) for channel, version in versions.items()},
    }
    _remember(threads, place.thread, ns, (id, versions), channels, parts)
    return CheckpointTuple(
        config=config_of(place.thread, ns, id),
        checkpoint=cast("Checkpoint", checkpoint),
        metadata=cast("CheckpointMetadata", metadata),
        parent_config=config_of(place.thread, ns, parent) if parent else None,
        pending_writes=[_pending(values, write, parts) for write in sorted(writes, key=lambda one: one.sort_key)],
    )


def config_of(thread: str, ns: str, id: str) -> Any:
    """Return the configuration that names a checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}


def _pending(values: Values, write: _Write, parts: Parts) -> PendingWrite:
    return write.task, write.channel, values.read(write.value, parts)


def _remember(
    threads: KnownThreads, thread: str, ns: str, refs: tuple[str, dict[str, bytes]], channels: Mapping[str, bytes],
    parts: Parts,
) -> None:  # fmt: skip
    """Remember the parts of a checkpoint that the server has, so that the next save of the thread sends only new parts."""
    known = threads.of(thread)
    known.add_items([field for field in parts if field[:1] == b"i"])
    known.refs[ns] = refs
    for field in parts:
        if field[:1] == b"k" and ns not in known.dictionaries:
            known.dictionaries[ns] = Dictionary(field, unpack(parts[field]))
    for channel, value in channels.items():
        if value[:1] in b"ld":
            log, chunks = list_chunks(value)
            known.lists[ns, channel] = StoredList(log, chunks, parts.entries(value))


def _complete(place: Place, stored: Sequence[bytes], parts: Parts) -> Steps[None]:
    """Read the items that did not fit into the reply, and add them to `parts`."""
    missing = [field for value in stored for field in digests(value, parts)]
    missing += [base for field, packed in parts.items() if field[:1] == b"i" and (base := base_field(packed))]
    while missing := [field for field in dict.fromkeys(missing) if field not in parts]:
        page = missing[:PAGE]
        found = yield read(place.keys.at, "HMGET", place.hash, *page)
        parts.update((field, value) for field, value in zip(page, found, strict=True) if value is not None)
        missing = missing[PAGE:] + [base for packed in found if packed is not None and (base := base_field(packed))]


def _read_body(
    values: Values, record: bytes, parts: Mapping[bytes, bytes], versions: Mapping[str, bytes]
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the id of the parent, the checkpoint without its channels, and the metadata from a stored checkpoint.

    Raises:
        Unreadable: If the checkpoint is damaged.
    """
    size, _, rest = record.partition(b":")
    parent, body = rest[: int(size)].decode(), rest[int(size) :]
    if body[:1] == b"z":
        dictionary = parts.get(b"k" + body[1:9])
        if dictionary is None:
            raise Unreadable("a part of the graph's checkpoint is missing on the server")
        packed = unpack(body[9:], unpack(dictionary) + versions_text(versions))
    else:
        packed = unpack(body[1:])
    checkpoint, metadata = split_netstrings(packed)
    return parent, values.load(checkpoint), values.load(metadata)


def _parse_write(field: bytes, value: bytes) -> _Write:
    _, checkpoint, task, number = field.decode().split("\0")
    size, _, rest = value.partition(b":")
    channel, rest = rest[: int(size)].decode(), rest[int(size) :]
    size, _, rest = rest.partition(b":")
    path = unpack_path(rest[: int(size)].decode())
    return _Write(writes_sort_key(path, task, int(number)), checkpoint, task, channel, rest[int(size) :])


def split_netstrings(packed: bytes) -> list[bytes]:
    """Return the parts of a row of netstrings."""
    parts, place = [], 0
    while place < len(packed):
        colon = packed.index(b":", place)
        end = colon + 1 + int(packed[place:colon])
        parts.append(packed[colon + 1 : end])
        place = end
    return parts


def _pairs(flat: Sequence[Any]) -> dict[bytes, bytes]:
    return {flat[i]: flat[i + 1] for i in range(0, len(flat), 2)}


def list_pages(
    place: Place, threads: KnownThreads, values: Values, query: Query
) -> Iterator[Callable[[], Steps[list[CheckpointTuple]]]]:
    """Yield a function for each page of the checkpoints of a thread, newest first.

    The function returns the plan that reads the page.

    The caller must run the plan of a page before it takes the next function.
    """
    left = query.limit
    names: list[tuple[str, str]] = []
    loaded = False
    while not (left is not None and left <= 0):

        def page() -> Steps[list[CheckpointTuple]]:
            nonlocal names, left, loaded
            all_names = names if loaded else (yield from list_names(place, query))
            taken = all_names[:PAGE]
            if query.filter:
                taken = yield from _matching(place, values, taken, query.filter)
            taken = taken[:left]
            replies = (yield [_get_call(place, ns, id) for ns, id in taken]) if taken else []
            found = []
            for (ns, _), reply in zip(taken, require_all(replies), strict=True):
                if (one := (yield from _read_tuple(place, KnownThreads(), values, ns, reply))) is not None:
                    found.append(one)
            # The state changes at the end only, so that a plan can be repeated.
            names, loaded = all_names[PAGE:], True
            left = None if left is None else left - len(taken)
            return found

        yield page
        if loaded and not names:
            return


def list_names(place: Place, query: Query) -> Steps[list[tuple[str, str]]]:
    """Return the namespaces and ids of the checkpoints that a query selects, newest first."""
    start = "c" if query.ns is None else f"c{query.ns}\0"
    found = yield read(place.keys.at, "ZRANGE", place.index, f"[{start}", b"(" + start.encode() + b"\xff", "BYLEX")
    names = []
    for member in found:
        ns, _, id = text(member)[1:].partition("\0")
        if (query.before is None or id < query.before) and (query.id is None or id == query.id):
            names.append((ns, id))
    return sorted(names, key=lambda name: name[1], reverse=True)


def read_metadata(place: Place, values: Values, names: Sequence[tuple[str, str]]) -> Steps[list[Any]]:
    """Return the parent's id, the metadata and the versions of checkpoints; None for a checkpoint that does not exist."""
    if not names:
        return []
    fields = [f"{letter}{ns}\0{id}" for ns, id in names for letter in "cr"]
    found = yield read(place.keys.at, "HMGET", place.hash, *fields)
    records = list(zip(found[::2], found[1::2], strict=True))
    wanted = {b"k" + body[1:9]: None for one, _ in records if one and (body := _body_of(one))[:1] == b"z"}
    parts = {}
    if wanted:
        parts = dict(zip(wanted, (yield read(place.keys.at, "HMGET", place.hash, *wanted)), strict=True))
    result: list[Any] = []
    for record, refs in records:
        if record is None or refs is None:
            result.append(None)
            continue
        versions = split_refs(refs)
        parent, _, metadata = _read_body(values, record, parts, versions)
        result.append((parent, metadata, versions))
    return result


def split_refs(refs: bytes) -> dict[str, bytes]:
    """Return the version of each channel from the references of a checkpoint."""
    return {channel.decode(): version for channel, _, version in (r.partition(b"\0") for r in split_netstrings(refs))}


def _body_of(record: bytes) -> bytes:
    size, _, rest = record.partition(b":")
    return rest[int(size) :]


def _matching(
    place: Place, values: Values, names: Sequence[tuple[str, str]], wanted: Mapping[str, Any]
) -> Steps[list[tuple[str, str]]]:
    found = yield from read_metadata(place, values, names)
    return [
        name
        for name, one in zip(names, found, strict=True)
        if one is not None and all(one[1].get(key) == value for key, value in wanted.items())
    ]


def list_threads(keys: Sequence[Keys], owner: str) -> Steps[list[tuple[Keys, str]]]:
    """Return all threads of an owner, each with its keys."""
    replies = yield [read(one.at, "ZRANGE", one.graph_threads(owner), 0, -1) for one in keys]
    found = zip(keys, require_all(replies), strict=True)
    return [(one, text(thread)) for one, threads in found for thread in threads]


def history(
    place: Place, values: Values, ns: str, id: str, channels: Sequence[str]
) -> Steps[dict[str, DeltaChannelHistory]]:
    """Return the history of channels before a checkpoint: their writes, oldest first, and the last stored value of each.

    Args:
        place: The thread.
        values: Decodes the values.
        ns: The namespace of the checkpoint.
        id: The id of the checkpoint; empty for the newest one.
        channels: The names of the channels.
    """
    writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
    seeds: dict[str, Any] = {}
    if not id:
        newest = yield from list_names(place, Query(ns=ns))
        id = newest[0][1] if newest else ""
    parents = yield from read_metadata(place, values, [(ns, id)] if id else [])
    next_id = parents[0][0] if parents and parents[0] else ""
    while next_id and len(seeds) < len(channels):
        reply = yield GRAPH_HISTORY.call(
            place.keys.at, [(channel,) for channel in channels if channel not in seeds], owner=place.owner,
            thread=place.thread, ns=ns, id=next_id, most=ANCESTORS, room=ROOM,
        )  # fmt: skip
        next_id, found, parts = text(reply[1]), _pairs(reply[2]), Parts(_pairs(reply[4]))
        stored = [_parse_write(field, value) for field, value in _pairs(reply[3]).items()]
        yield from _complete(place, [*found.values(), *(write.value for write in stored)], parts)
        for checkpoint in dict.fromkeys(write.checkpoint for write in stored):  # newest first
            own = [write for write in stored if write.checkpoint == checkpoint]
            for write in sorted(own, key=lambda one: one.sort_key, reverse=True):
                writes[write.channel].append(_pending(values, write, parts))
        seeds |= {text(channel): values.read(value, parts) for channel, value in found.items()}
    result: dict[str, DeltaChannelHistory] = {}
    for channel in channels:
        result[channel] = {"writes": writes[channel][::-1]}
        if channel in seeds:
            result[channel]["seed"] = seeds[channel]
    return result
