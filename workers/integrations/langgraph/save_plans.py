"""Plans that save checkpoints and writes of a graph (coordinator/store/lua/graphs/graph_save.lua).

A save sends only the data that the server does not have: changed channels, new items of lists, and the difference between the
checkpoint's body and an earlier one. The server checks that it has everything else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from langgraph.checkpoint.base import WRITES_IDX_MAP, Checkpoint
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from coordinator.errors import BadCall, BadName
from coordinator.store.keys import Keys
from coordinator.store.plans.attempts import netstrings
from coordinator.store.replies import text, word
from coordinator.store.script import Request
from coordinator.store.scripts import GRAPH_SAVE
from workers.integrations.langgraph.known import Dictionary, KnownThread, KnownThreads, StoredList
from workers.integrations.langgraph.packing import base_field, pack, pack_item
from workers.integrations.langgraph.values import LOG, Items, Values, chunk_field, is_listed

T = TypeVar("T")
Steps = Generator[Request | list[Request], Any, T]
Version = str | int | float

_TRIES = 6
_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIMED_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-6[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")  # UUID version 6
_MOST_CHUNKS = 1000  # a list with more chunks gets one new chunk with all entries, so that reading the list stays fast
_PULL = "~__pregel_pull, "  # the path of most tasks begins so; it is stored as one character
_OUTSIDE_OF_BODY = ("id", "channel_values", "channel_versions")


class TakenOver(Exception):
    """The error of a call that the server refused, because the run belongs to another worker now."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place where a thread is stored.

    Attributes:
        keys: The keys of the hash slot.
        thread: The id of the thread.
        owner: The run that the thread belongs to. Empty if it belongs to no run.
        token: The token of the run's owner.
        ttl: Seconds that the thread is kept after a write. None if it does not expire.
    """

    keys: Keys
    thread: str
    owner: str = ""
    token: str = ""
    ttl: float | None = None

    @property
    def ttl_ms(self) -> int:
        """The ttl in ms; 0 if the thread does not expire."""
        return 0 if self.ttl is None else max(1, round(self.ttl * 1000))

    @property
    def claim(self) -> str:
        """The run and its token, as the scripts expect them; empty if the thread belongs to no run."""
        return f"{self.owner} {self.token}" if self.owner else ""

    @property
    def hash(self) -> str:
        """The key of the thread's content."""
        return self.keys.graph(self.owner, self.thread)

    @property
    def index(self) -> str:
        """The key of the names of the thread's checkpoints and writes."""
        return self.keys.graph_index(self.owner, self.thread)


@dataclass(frozen=True, slots=True)
class CheckpointToSave:
    """A checkpoint of a graph that is to be saved.

    Attributes:
        ns: The checkpoint namespace.
        checkpoint: The checkpoint.
        metadata: Its metadata.
        new_versions: The versions of the channels that have changed.
        parent: The id of the checkpoint before it; empty if there is none.
    """

    ns: str
    checkpoint: Checkpoint
    metadata: Mapping[str, Any]
    new_versions: Mapping[str, Version]
    parent: str


@dataclass(frozen=True, slots=True)
class WritesToSave:
    """Writes of a task of a graph that are to be saved.

    Attributes:
        ns: The checkpoint namespace.
        checkpoint_id: The checkpoint to which the task belongs.
        writes: Pairs of a channel and a value.
        task_id: The id of the task.
        task_path: The path of the task, by which writes are sorted.
    """

    ns: str
    checkpoint_id: str
    writes: Sequence[tuple[str, Any]]
    task_id: str
    task_path: str


def pack_version(version: Version) -> bytes:
    """Return the version of a channel as bytes: a letter for its type (s, i or f), and its text."""
    letter = "s" if isinstance(version, str) else "i" if isinstance(version, int) else "f"
    return (letter + str(version)).encode()


def unpack_version(packed: bytes) -> Version:
    """Return the version of a channel from the bytes that `pack_version` has made."""
    content = packed[1:].decode()
    return int(content) if packed[:1] == b"i" else float(content) if packed[:1] == b"f" else content


def check_names(*parts: str) -> None:
    """Check the names of threads, namespaces, checkpoints, tasks and channels.

    Raises:
        BadName: If a name contains a NUL character, which separates the parts of stored names.
    """
    for part in parts:
        if "\0" in part:
            raise BadName(f"{part!r} contains a NUL character")


class _Draft:
    """The arguments of one call of graph_save.

    Attributes:
        known: The content of the thread that the server has, as far as this process knows.
        items: The items that the save refers to.
        fields: The other fields to send, with their values.
        lists: The lists that the server has after the call.
    """

    def __init__(self, known: KnownThread) -> None:
        self.known = known
        self.items = Items()
        self.fields: dict[bytes, bytes] = {}
        self.lists: dict[tuple[str, str], StoredList] = {}

    def list_value(self, ns: str, channel: str, entries: list[bytes], letter: bytes) -> bytes:
        """Add the value of a channel that is a list, and return its stored form.

        If the list extends the stored list of the channel, only the new entries are sent.

        Args:
            ns: The checkpoint namespace.
            channel: The channel.
            entries: All entries of the list.
            letter: The first byte of the stored form: l for a list, d for a snapshot of a delta channel.
        """
        stored = self.known.lists.get((ns, channel))
        if stored and stored.chunks < _MOST_CHUNKS and list(stored.entries) == entries[: len(stored.entries)]:
            log, chunks, new = stored.log, stored.chunks, entries[len(stored.entries) :]
        else:
            log, chunks, new = os.urandom(LOG), 0, entries
        if new:
            self.fields[chunk_field(log, chunks)] = b"".join(new)
            chunks += 1
        self.lists[ns, channel] = StoredList(log, chunks, entries)
        return letter + log + b"%d" % chunks

    def pack_items(self, *, encrypted: bool) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Return the fields to send with their values, and the fields of the items among them.

        From now on these items count as known to the server.

        Args:
            encrypted: True if the contents are encrypted. Then no item is compressed against another item, because the content
                that the server has of the other item may be encrypted differently.
        """
        # LangGraph saves the writes of a task and the next checkpoint in threads, at the same time. The second one waits here, so
        # that it is compressed against the items of the first.
        with self.known.lock:
            new = [field for field in self.items.contents if field not in self.known.items]
            self.known.add_items(new)
            items = []
            for field in new:
                content = self.items.contents[field]()
                packed = pack(content) if encrypted else pack_item(content, self.known.recent)
                items.append((field, packed))
                # An item is compressed against the first item of the thread, and a later version of it against the item. So a chain
                # has at most three items, unless another process has compressed one of them against yet another item.
                if not base_field(packed) or (self.known.recent and base_field(packed) == self.known.recent[0][0]):
                    self.known.add_recent(field, content)
        return [*items, *self.fields.items()], new


def save_checkpoint(place: Place, threads: KnownThreads, values: Values, saved: CheckpointToSave) -> Steps[None]:
    """Save a checkpoint.

    Raises:
        TakenOver: If the run of the graph belongs to another worker now.
    """
    ns, checkpoint = saved.ns, saved.checkpoint
    id, versions = checkpoint["id"], {name: pack_version(v) for name, v in checkpoint["channel_versions"].items()}
    check_names(place.thread, ns, id, saved.parent, *versions, *saved.new_versions)
    body = _body(values, checkpoint, saved.metadata)
    run = str(saved.metadata.get("run_id") or "")
    shorten, whole = True, False
    for attempt in range(_TRIES):
        known = threads.of(place.thread)
        draft = _Draft(known)
        before = known.refs.get(ns)
        mode, refs = "w", versions
        if before and before[0] == saved.parent and before[1].keys() <= versions.keys():
            mode, refs = "p", {one: v for one, v in versions.items() if before[1].get(one) != v}
        _add_channels(draft, values, saved, refs, whole=whole)
        dictionary, packed = _pack_body(
            draft,
            known.dictionaries.get(ns),
            body,
            versions_text(versions),
            plain=values.encrypted,
        )
        items, new = draft.pack_items(encrypted=values.encrypted)
        parent = short_id(saved.parent) if mode == "p" and shorten else saved.parent
        gap = yield from _send(place, known, items, new, mode, ns, id, parent, run, packed, _pack_refs(refs))
        if not gap:
            known.lists.update(draft.lists)
            known.refs[ns] = (id, versions)
            if dictionary:
                known.dictionaries[ns] = dictionary
            return
        # The server lacks the parent or the value of a channel, for example because the thread has expired during a step.
        shorten, whole = shorten and gap != "n", whole or gap in ("r", "b") or attempt == _TRIES - 2
        _forget(threads, place.thread, attempt, gap)
    raise BadCall(f"thread {place.thread} was changed by others {_TRIES} times while a checkpoint was saved")


def save_writes(place: Place, threads: KnownThreads, values: Values, saved: WritesToSave) -> Steps[None]:
    """Save the writes of a task. Regular writes that are saved already stay as they are, special writes are replaced.

    Raises:
        TakenOver: If the run of the graph belongs to another worker now.
    """
    check_names(place.thread, saved.ns, saved.checkpoint_id, saved.task_id, *(channel for channel, _ in saved.writes))
    shorten = True
    for attempt in range(_TRIES):
        known = threads.of(place.thread)
        draft = _Draft(known)
        for number, (channel, value) in enumerate(saved.writes):
            field = b"w%d" % WRITES_IDX_MAP.get(channel, number)
            draft.fields[field] = netstrings([channel.encode()]) + values.value(value, draft.items)
        items, new = draft.pack_items(encrypted=values.encrypted)
        newest = shorten and known.refs.get(saved.ns, ("",))[0] == saved.checkpoint_id
        id = short_id(saved.checkpoint_id) if newest else saved.checkpoint_id
        path = pack_path(saved.task_path)
        gap = yield from _send(place, known, items, new, "t", saved.ns, id, "", saved.task_id, b"", path)
        if not gap:
            return
        shorten = shorten and gap != "n"
        _forget(threads, place.thread, attempt, gap)
    raise BadCall(f"thread {place.thread} was changed by others {_TRIES} times while writes were saved")


def pack_path(path: str) -> str:
    """Return the path of a task in its stored form. Most paths begin with the same text, which is replaced by the byte 1."""
    if path.startswith(_PULL):
        return "\1" + path.removeprefix(_PULL)
    return "\2" + path if path[:1] in ("\1", "\2") else path


def unpack_path(stored: str) -> str:
    """Return the path of a task from its stored form."""
    if stored[:1] == "\1":
        return _PULL + stored[1:]
    return stored.removeprefix("\2")


def _pack_refs(refs: Mapping[str, bytes]) -> bytes:
    """Return the references in the form that the script expects.

    They are sorted by version, and channels of the same version name the version once.
    """
    parts, before = [], b""
    for channel, version in sorted(refs.items(), key=lambda ref: ref[1]):
        parts.append(channel.encode() + (b"" if version == before else b"\0" + version))
        before = version
    return netstrings(parts)


def short_id(id: str) -> str:
    """Return a short form of a checkpoint's id. The server understands the short form if the checkpoint is the newest one.

    The ids of LangGraph are UUIDs of version 6, which begin with a time. The short form consists of the nine characters that hold
    the lowest part of the time, in steps of 100 ns. Any other id is returned unchanged, because the same characters may be in
    another id.
    """
    return "=" + id[9:18] if _TIMED_ID.fullmatch(id) else id


def _packed_id(id: str | bytes) -> bytes:
    """Return the short form of an id: for a UUID a NUL character, which no other id contains, and its 16 bytes.

    Any other id is returned unchanged, as bytes.
    """
    text = id if isinstance(id, bytes) else id.encode()
    if len(text) == 36 and _UUID.fullmatch(text):
        return b"\0" + bytes.fromhex(text.replace(b"-", b"").decode())
    return text


def _send(
    place: Place, known: KnownThread, items: list[tuple[bytes, bytes]], new: list[bytes], *parts: str | bytes
) -> Steps[str]:
    """Send a save. If the save fails, forget its new items.

    Returns:
        An empty text if the server carried out the save, otherwise the letter of the kind of field that the server lacks.

    Raises:
        TakenOver: If the run of the graph belongs to another worker now.
    """
    mode, ns, id, parent, by, *rest = parts
    head = [place.claim, place.thread, str(place.ttl_ms), mode, ns, *map(_packed_id, (id, parent, by)), *rest]
    fields = [part for pair in items for part in pair]
    call = netstrings([part.encode() if isinstance(part, str) else part for part in (*head, *fields)])
    try:
        reply = yield GRAPH_SAVE.call(place.keys.at, call=call)
    except BaseException:
        known.forget_items(new)
        raise
    if word(reply) == "ok":
        return ""
    known.forget_items(new)
    if word(reply) == "fenced":
        raise TakenOver
    return text(reply[1])


def _forget(threads: KnownThreads, thread: str, attempt: int, gap: str) -> None:
    """Forget the content that the server does not have, by the letter of the missing field.

    Before the last try, forget all content.
    """
    known = threads.of(thread)
    match gap:
        case "i" if attempt < _TRIES - 2:
            known.forget_all_items()
        case "l" if attempt < _TRIES - 2:
            known.lists = {}
        case "k" if attempt < _TRIES - 2:
            known.dictionaries = {}
        case "r" if attempt < _TRIES - 2:
            known.refs = {}
        case "n" | "b" if attempt < _TRIES - 2:
            pass
        case _:
            threads.forget(thread)


def _add_channels(
    draft: _Draft, values: Values, saved: CheckpointToSave, refs: Mapping[str, bytes], *, whole: bool
) -> None:
    """Add the values of the channels that have a new version to the draft of a save.

    If the save names the versions of other channels too, the server checks that it has their values.

    Args:
        draft: The draft of the save.
        values: Encodes the values.
        saved: The checkpoint.
        refs: The versions that the save names.
        whole: True to add the values of all channels.
    """
    versions = {**saved.checkpoint["channel_versions"], **saved.new_versions}
    for channel, version in versions.items():
        if channel not in saved.checkpoint["channel_values"]:
            continue  # The channel is empty, or a delta channel.
        if not whole and channel not in saved.new_versions:
            if channel in refs:
                draft.fields[b"b" + channel.encode()] = b""
            continue
        value = saved.checkpoint["channel_values"][channel]
        snapshot = isinstance(value, _DeltaSnapshot)
        inner = value.value if snapshot else value
        if is_listed(inner):
            entries = [values.entry(one, draft.items) for one in inner]
            stored = draft.list_value(saved.ns, channel, entries, b"d" if snapshot else b"l")
            _drop_stored_items(draft, saved.ns, channel)
        else:
            stored = b"e" + values.entry(value, draft.items)
        named = b"" if refs.get(channel) == pack_version(version) else b"\0" + pack_version(version)
        draft.fields[b"b" + channel.encode() + named] = stored


def _drop_stored_items(draft: _Draft, ns: str, channel: str) -> None:
    """Remove those items from the save to which the stored part of an extended list refers.

    The server has these items, because it keeps them as long as it keeps the list.
    """
    before, now = draft.known.lists.get((ns, channel)), draft.lists[ns, channel]
    if before is not None and before.log == now.log:
        added = set(now.entries[len(before.entries) :])
        for entry in before.entries:
            if entry not in added:
                draft.items.contents.pop(b"i" + entry[1:], None)


def _body(values: Values, checkpoint: Checkpoint, metadata: Mapping[str, Any]) -> bytes:
    rest = {name: value for name, value in checkpoint.items() if name not in _OUTSIDE_OF_BODY}
    return netstrings([values.typed(rest), values.typed(dict(metadata))])


def versions_text(versions: Mapping[str, bytes]) -> bytes:
    """Return the versions of a checkpoint's channels as one text, against which the body is compressed.

    The body contains most versions too, so this makes it shorter.
    """
    return b"".join(channel.encode() + version for channel, version in sorted(versions.items()))


def _pack_body(
    draft: _Draft, dictionary: Dictionary | None, body: bytes, versions: bytes, *, plain: bool
) -> tuple[Dictionary | None, bytes]:
    """Compress the body of a checkpoint against a dictionary of the namespace, which consists of earlier bodies.

    The first body is the first dictionary. The bodies of other steps of the graph differ from it. So after six saves, the collected
    bodies become the second dictionary.

    Args:
        draft: The draft of the save, to which a new dictionary is added.
        dictionary: The dictionary that the server has; None if there is none.
        body: The body.
        versions: The text of `versions_text`.
        plain: True to use no dictionary, for encrypted bodies.

    Returns:
        The dictionary to remember if the save succeeds, and the packed body.
    """
    if plain:  # Encrypted text can't be compressed.
        return None, b"p" + pack(body)
    if dictionary is not None:
        packed = pack(body, dictionary.text + versions)
        fits = len(packed) < len(body) // 2 or len(body) < 2 * len(dictionary.text)
        if fits and not dictionary.is_ready():
            return dictionary.seen(body), b"z" + dictionary.field[1:] + packed
    made = Dictionary.of(b"k" + os.urandom(LOG), dictionary, body)
    draft.fields[made.field] = pack(made.text)
    return made, b"z" + made.field[1:] + pack(body, made.text + versions)
