"""Plans that delete, prune and copy threads of a graph (coordinator/store/lua/graphs/graph_delete.lua and graph_copy.lua)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b

from coordinator.errors import BadCall
from coordinator.store.keys import Keys
from coordinator.store.replies import require_all, text, word
from coordinator.store.script import read
from coordinator.store.scripts import GRAPH_COPY, GRAPH_DELETE
from workers.integrations.langgraph.packing import base_field, bases_first
from workers.integrations.langgraph.read_plans import Query, list_names, read_metadata
from workers.integrations.langgraph.save_plans import Place, Steps, TakenOver
from workers.integrations.langgraph.values import LOG, Values

COPIED = 500  # fields in one call of a copy
COPIED_BYTES = 1024 * 1024
_TRIES = 6


def delete_thread(place: Place) -> Steps[None]:
    """Delete a thread with all its checkpoints, writes and values.

    Raises:
        TakenOver: If the run of the graph belongs to another worker now.
    """
    yield from _delete(place, "thread", [])


def delete_checkpoints(place: Place, names: Sequence[tuple[str, str]]) -> Steps[None]:
    """Delete checkpoints by namespace and id, with their writes and the values that no other checkpoint uses.

    Raises:
        TakenOver: If the run of the graph belongs to another worker now.
    """
    if names:
        yield from _delete(place, "checkpoints", names)


def _delete(place: Place, mode: str, names: Sequence[tuple[str, str]]) -> Steps[None]:
    items = [(f"{ns}\0{id}",) for ns, id in names]
    reply = yield GRAPH_DELETE.call(place.keys.at, items, claim=place.claim, thread=place.thread, mode=mode)
    if word(reply) == "fenced":
        raise TakenOver


def prune(place: Place, values: Values) -> Steps[None]:
    """Delete all checkpoints except the newest one of each namespace.

    The value of a delta channel is made from the writes of earlier checkpoints. So the checkpoints since the last stored value of
    each delta channel are kept too.
    """
    names = yield from list_names(place, Query())
    kept: set[tuple[str, str]] = set()
    for ns in {ns for ns, _ in names}:
        newest = next(name for name in names if name[0] == ns)
        kept.add(newest)
        kept |= yield from _delta_ancestors(place, values, newest)
    yield from delete_checkpoints(place, [name for name in names if name not in kept])


def _delta_ancestors(place: Place, values: Values, newest: tuple[str, str]) -> Steps[set[tuple[str, str]]]:
    """Return the ancestors of a checkpoint that its delta channels need."""
    kept: set[tuple[str, str]] = set()
    (found,) = yield from read_metadata(place, values, [newest])
    if found is None:
        return kept
    ns = newest[0]
    open_channels = set(found[1].get("counters_since_delta_snapshot") or ())
    while open_channels:
        parent, _, versions = found
        stored = [one for one in open_channels if one in versions]
        for channel in stored:
            field = b"b" + ns.encode() + b"\0" + channel.encode() + b"\0" + versions[channel]
            if (yield read(place.keys.at, "HEXISTS", place.hash, field)):
                open_channels.discard(channel)
        if not open_channels or not parent:
            break
        (found,) = yield from read_metadata(place, values, [(ns, parent)])
        if found is None:
            break
        kept.add((ns, parent))
    return kept


def find_runs(keys: Sequence[Keys], runs: Sequence[str]) -> Steps[list[tuple[Keys, str, str]]]:
    """Return the threads in which runs of LangGraph have stored checkpoints, each with its keys and the run."""
    wanted = [(one, run) for run in runs for one in keys]
    if not wanted:
        return []
    replies = yield [read(one.at, "SMEMBERS", one.graph_run(run)) for one, run in wanted]
    found = zip(wanted, require_all(replies), strict=True)
    return [(one, text(thread), run) for (one, run), threads in found for thread in threads]


def delete_run(place: Place, run: str) -> Steps[None]:
    """Delete the checkpoints of a thread that a run of LangGraph has stored."""
    start = f"u{run}\0".encode()
    found = yield read(place.keys.at, "ZRANGE", place.index, b"[" + start, b"(" + start + b"\xff", "BYLEX")
    names = []
    for member in found:
        _, ns, id = text(member).split("\0")
        names.append((ns, id))
    yield from delete_checkpoints(place, names)


def copy_thread(source: Place, target: Place) -> Steps[None]:
    """Copy the content of a thread to another thread. Readers find a checkpoint of the copy only when all its values are stored.

    A checkpoint that another process deletes from the source during the copy is not copied. If another process deletes content of
    the target, the copy starts again.

    Raises:
        TakenOver: If the run of the graph belongs to another worker now.
        BadCall: If other processes deleted content of the target during each try.
    """
    for _ in range(_TRIES):
        if (yield from _try_copy(source, target, os.urandom(LOG))):
            return
    raise BadCall(f"thread {target.thread} was changed by others {_TRIES} times while another thread was copied to it")


def _try_copy(source: Place, target: Place, copy: bytes) -> Steps[bool]:
    """Copy the content of a thread. Return False if content of the target was deleted during the copy.

    Args:
        source: The thread that is copied.
        target: The thread to which content is added.
        copy: A random name.
    """
    before = yield read(source.keys.at, "ZRANGE", source.index, 0, -1)
    if not before:
        return True
    mark = b"x" + copy
    yield from _add_all(target, copy, [(mark, b"1")])
    cursor = "0"
    compressed: dict[bytes, bytes] = {}
    while True:
        reply = yield read(source.keys.at, "HSCAN", source.hash, cursor, "COUNT", COPIED)
        cursor = text(reply[0])
        found = dict(_rename_list(*pair, copy) for pair in zip(reply[1][::2], reply[1][1::2], strict=True))
        later = {field: value for field, value in found.items() if field[:1] == b"i" and base_field(value)}
        compressed |= later
        now = [(field, value) for field, value in found.items() if field not in later and field[:1] != b"x" and value]
        yield from _add_all(target, copy, now)
        if cursor == "0":
            break
    # An item is stored after its base, the item that it is compressed against. Otherwise a process that saves at the same time
    # could find the item alone, and store its base as compressed against the item.
    yield from _add_all(target, copy, bases_first(compressed))
    # If a checkpoint still exists, the server had all values to which it refers during the whole copy.
    after = yield read(source.keys.at, "ZRANGE", source.index, 0, -1)
    names = sorted(set(before) & set(after))
    if not (yield from _add_all(target, copy, [*((b"", name) for name in names), (mark, b"")])):
        return False
    if len(names) < len(before):
        yield from _delete(target, "checkpoints", [])  # the values of the checkpoints that are not copied
    return True


def _rename_list(field: bytes, value: bytes, copy: bytes) -> tuple[bytes, bytes]:
    """Return a field and its value for a copy. The lists of the copy get other names.

    The source and the copy can both be continued, and the copy can be copied back. Then chunks of the same name would differ.
    """
    if field[:1] == b"l":
        return b"l" + _other_log(field[1 : 1 + LOG], copy) + field[1 + LOG :], value
    if field[:1] == b"b" and value[:1] in (b"l", b"d"):
        return field, value[:1] + _other_log(value[1 : 1 + LOG], copy) + value[1 + LOG :]
    return field, value


def _other_log(log: bytes, copy: bytes) -> bytes:
    return blake2b(log + copy, digest_size=LOG).digest()


def _add_all(target: Place, copy: bytes, fields: Sequence[tuple[bytes, bytes]]) -> Steps[bool]:
    """Add fields to a thread, in calls of a bounded size. Return False if content of the thread was deleted during the copy."""
    batch: list[tuple[bytes, bytes]] = []
    size = 0
    for field, value in fields:
        batch.append((field, value))
        size += len(value)
        if size > COPIED_BYTES or len(batch) == COPIED:
            if not (yield from _add(target, copy, batch)):
                return False
            batch, size = [], 0
    return not batch or (yield from _add(target, copy, batch))


def _add(target: Place, copy: bytes, batch: Sequence[tuple[bytes, bytes]]) -> Steps[bool]:
    reply = yield GRAPH_COPY.call(
        target.keys.at, batch, claim=target.claim, thread=target.thread, ttl=target.ttl_ms, copy=copy
    )
    if word(reply) == "fenced":
        raise TakenOver
    return word(reply) == "ok"
