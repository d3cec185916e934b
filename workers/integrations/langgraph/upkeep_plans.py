"""Plans that delete, prune and copy threads of a graph (coordinator/store/lua/graphs/graph_delete.lua and graph_copy.lua)."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.store.keys import Keys
from coordinator.store.replies import require_all, text, word
from coordinator.store.script import read
from coordinator.store.scripts import GRAPH_COPY, GRAPH_DELETE
from workers.integrations.langgraph.packing import base_field, bases_first
from workers.integrations.langgraph.read_plans import Query, list_names, read_metadata
from workers.integrations.langgraph.save_plans import Place, Steps, TakenOver
from workers.integrations.langgraph.values import Values

COPIED = 500  # fields in one call of a copy
COPIED_BYTES = 1024 * 1024


def delete_thread(place: Place) -> Steps[None]:
    """Delete a thread with all its checkpoints, writes and values.

    Raises:
        TakenOver: The run of the graph belongs to another worker now.
    """
    yield from _delete(place, "thread", [])


def delete_checkpoints(place: Place, names: Sequence[tuple[str, str]]) -> Steps[None]:
    """Delete checkpoints by namespace and id, with their writes and the values that no other checkpoint uses.

    Raises:
        TakenOver: The run of the graph belongs to another worker now.
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

    Raises:
        TakenOver: The run of the graph belongs to another worker now.
    """
    members = yield read(source.keys.at, "ZRANGE", source.index, 0, -1)
    if not members:
        return
    cursor = "0"
    compressed: dict[bytes, bytes] = {}
    while True:
        reply = yield read(source.keys.at, "HSCAN", source.hash, cursor, "COUNT", COPIED)
        cursor = text(reply[0])
        found = dict(zip(reply[1][::2], reply[1][1::2], strict=True))
        later = {field: value for field, value in found.items() if field[:1] == b"i" and base_field(value)}
        compressed |= later
        yield from _add_all(target, [(field, value) for field, value in found.items() if field not in later])
        if cursor == "0":
            break
    # An item is stored after the item that it is compressed against. So another process that saves at the same time never finds
    # an item whose base it could store as compressed against that item.
    yield from _add_all(target, bases_first(compressed))
    yield from _add_all(target, [(b"", member) for member in members])


def _add_all(target: Place, fields: Sequence[tuple[bytes, bytes]]) -> Steps[None]:
    """Add fields to a thread, in calls of a bounded size."""
    batch: list[tuple[bytes, bytes]] = []
    size = 0
    for field, value in fields:
        batch.append((field, value))
        size += len(value)
        if size > COPIED_BYTES or len(batch) == COPIED:
            yield from _add(target, batch)
            batch, size = [], 0
    if batch:
        yield from _add(target, batch)


def _add(target: Place, batch: Sequence[tuple[bytes, bytes]]) -> Steps[None]:
    reply = yield GRAPH_COPY.call(target.keys.at, batch, claim=target.claim, thread=target.thread, ttl=target.ttl_ms)
    if word(reply) == "fenced":
        raise TakenOver
