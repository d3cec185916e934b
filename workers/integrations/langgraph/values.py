"""The stored form of values of a graph: entries, items and lists (see coordinator/store/lua/shared/graph.lua).

A value that is longer than a few bytes is an item. An item is stored once in its thread, under the digest of its content. So a
message is sent once, although it occurs in the writes of a task and in many versions of a list.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from coordinator.errors import Unreadable

INLINE = 40  # bytes of a value that is stored where it is used
SMALL = 64  # shorter texts are not compressed
DIGEST = 12
PROBE = 32  # bytes that two items must have in common, so that one is compressed against the other
LOG = 8  # bytes of the name of a list's chunks
# Text that most messages of LangChain have in common. It is part of the stored format, and must never change.
MESSAGE_TEXT = (
    b"msgpack\x00langchain_core.messages.tool\xabToolMessage\xactool_call_id\xa6status\xa7success\xa8artifact"
    b"langchain_core.messages.system\xadSystemMessage\xb8langchain_core.messages.human\xacHumanMessage\xa7example\xc2"
    b"\xb5langchain_core.messages.ai\xa9AIMessage\xaatool_calls\x90\xb2invalid_tool_calls\x90\xa4args\xafusage_metadata"
    b"\xacinput_tokens\xadoutput_tokens\xactotal_tokens\xb3input_token_details\xb4output_token_details\xaacache_read"
    b"\xacfinish_reason\xa4stop\xaatool_calls\xaamodel_name\xaemodel_provider\xa9lc_run--\xa8reasoning"
    b"\x97\xa7content\xb1additional_kwargs\x80\xb1response_metadata\x80\xa4type\xa2ai\xa5human\xa4tool\xa4name\xc0\xa2id"
    b"\xb3model_validate_json\xa4role\xa9assistant\xa4user\xa7content\xd9"
)


class Items:
    """The items that a call refers to: their content by field, in the order of their first use."""

    def __init__(self) -> None:
        self.contents: dict[bytes, Callable[[], bytes]] = {}

    def add(self, digest: bytes, content: Callable[[], bytes]) -> None:
        """Add an item. Its content is made only if it must be sent."""
        self.contents.setdefault(b"i" + digest, content)


class Values:
    """Encode and decode the values of a graph with its serializer.

    Args:
        serde: The serializer of the saver.
    """

    def __init__(self, serde: SerializerProtocol) -> None:
        self.serde = serde
        # An encrypted text differs each time. So items are recognised by their plain content, with a key that leaves the process
        # never: the digest of a secret that can be guessed would reveal the secret.
        self._plain = serde.serde if isinstance(serde, EncryptedSerializer) else None
        self._key = os.urandom(16) if self._plain is not None else b""

    def typed(self, value: Any) -> bytes:
        """Return a value as bytes that start with the name of its type."""
        kind, data = self.serde.dumps_typed(value)
        return kind.encode() + b"\0" + data

    def load(self, typed: bytes) -> Any:
        """Return the value from the bytes that `typed` has made."""
        kind, _, data = typed.partition(b"\0")
        return self.serde.loads_typed((kind.decode(), data))

    def entry(self, value: Any, items: Items) -> bytes:
        """Return the entry of a value. A value that is not short becomes an item."""
        if self._plain is not None:
            kind, data = self._plain.dumps_typed(value)
            digest = blake2b(kind.encode() + b"\0" + data, digest_size=DIGEST, key=self._key).digest()
            items.add(digest, lambda: self.typed(value))
            return b"r" + digest
        typed = self.typed(value)
        if len(typed) <= INLINE:
            return b"s" + len(typed).to_bytes(2, "big") + typed
        digest = blake2b(typed, digest_size=DIGEST).digest()
        items.add(digest, lambda: typed)
        return b"r" + digest

    def value(self, value: Any, items: Items) -> bytes:
        """Return the stored form of a value outside of a channel: one entry, or a row of entries for a list."""
        if is_listed(value):
            return b"c" + b"".join(self.entry(one, items) for one in value)
        return b"e" + self.entry(value, items)

    def read(self, stored: bytes, parts: Mapping[bytes, bytes]) -> Any:
        """Return a value from its stored form.

        Args:
            stored: The stored form.
            parts: The chunks and items that it refers to, by field.

        Raises:
            Unreadable: A chunk or an item is missing.
        """
        texts: dict[bytes, bytes] = {}
        match stored[:1]:
            case b"e":
                return self._read_entry(next(split_entries(stored[1:])), parts, texts)
            case b"c":
                return [self._read_entry(entry, parts, texts) for entry in split_entries(stored[1:])]
            case _:
                found = [self._read_entry(entry, parts, texts) for entry in read_list(stored, parts)]
                return _DeltaSnapshot(found) if stored[:1] == b"d" else found

    def _read_entry(self, entry: bytes, parts: Mapping[bytes, bytes], texts: dict[bytes, bytes]) -> Any:
        if entry[:1] == b"s":
            return self.load(entry[3:])
        return self.load(unpack_item(b"i" + entry[1:], parts, texts))


def is_listed(value: Any) -> bool:
    """Return True if a value is stored item by item: a list that does not consist of numbers."""
    return type(value) is list and not all(isinstance(one, int | float) or one is None for one in value)


def split_entries(text: bytes) -> Iterator[bytes]:
    """Yield the entries of a row of entries."""
    place = 0
    while place < len(text):
        if text[place : place + 1] == b"r":
            end = place + 1 + DIGEST
        else:
            end = place + 3 + int.from_bytes(text[place + 1 : place + 3], "big")
        yield text[place:end]
        place = end


def read_list(stored: bytes, parts: Mapping[bytes, bytes]) -> list[bytes]:
    """Return the entries of a list from its stored form and its chunks.

    Raises:
        Unreadable: A chunk is missing.
    """
    log, chunks = list_chunks(stored)
    rows = [parts.get(chunk_field(log, number)) for number in range(chunks)]
    if None in rows:
        raise Unreadable("a part of a list of the graph's checkpoint is missing on the server")
    return list(split_entries(b"".join(row for row in rows if row is not None)))


def list_chunks(stored: bytes) -> tuple[bytes, int]:
    """Return the name of a list's chunks and their number from the stored form of the list."""
    return stored[1 : 1 + LOG], int(stored[1 + LOG :])


def chunk_field(log: bytes, number: int) -> bytes:
    """Return the field of a chunk of a list."""
    return b"l" + log + b"%d" % number


def digests(stored: bytes, parts: Mapping[bytes, bytes]) -> Iterable[bytes]:
    """Return the fields of the items that a stored value refers to."""
    entries = split_entries(stored[1:]) if stored[:1] in b"ec" else read_list(stored, parts)
    return [b"i" + entry[1:] for entry in entries if entry[:1] == b"r"]


def pack_item(text: bytes, recent: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the packed form of an item, compressed against another item of the thread if that saves bytes.

    A message is often saved twice with small differences: LangGraph gives it an id after its task has written it. And messages of
    a thread have words in common.

    Args:
        text: The content of the item.
        recent: Fields and contents of items that the server has: the first long one of the thread, and the last ones.
    """
    middle = text[len(text) // 2 :][:PROBE]
    similar = [one for one in recent if len(middle) == PROBE and middle in one[1]]
    plain = pack(text)
    for field, content in similar[:1] or recent[:1]:
        derived = b"2" + field[1:] + pack(text, content)
        if len(derived) < len(plain):
            return derived
    return plain


def unpack_item(field: bytes, parts: Mapping[bytes, bytes], texts: dict[bytes, bytes]) -> bytes:
    """Return the content of an item.

    Args:
        field: The field of the item.
        parts: The packed items by field.
        texts: Contents that were unpacked before. Many items are compressed against the same one.

    Raises:
        Unreadable: The item is missing or damaged.
    """
    if field in texts:
        return texts[field]
    packed = parts.get(field)
    if packed is None:
        raise Unreadable("a value of the graph's checkpoint is missing on the server")
    if packed[:1] != b"2":
        texts[field] = unpack(packed)
    else:
        texts[field] = unpack(packed[1 + DIGEST :], unpack_item(base_field(packed), parts, texts))
    return texts[field]


def base_field(packed: bytes) -> bytes:
    """Return the field of the item against which an item is compressed; empty if there is none."""
    return b"i" + packed[1 : 1 + DIGEST] if packed[:1] == b"2" else b""


def pack(text: bytes, dictionary: bytes = MESSAGE_TEXT) -> bytes:
    """Return a text compressed, or as it is if that is not longer."""
    if len(text) > SMALL:
        packer = zlib.compressobj(6, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, dictionary)
        packed = packer.compress(text) + packer.flush()
        if len(packed) < len(text):
            return b"1" + packed
    return b"0" + text


def unpack(packed: bytes, dictionary: bytes = MESSAGE_TEXT) -> bytes:
    """Return the text from its packed form.

    Raises:
        Unreadable: The packed form is damaged.
    """
    if packed[:1] == b"0":
        return packed[1:]
    try:
        unpacker = zlib.decompressobj(-15, dictionary)
        return unpacker.decompress(packed[1:]) + unpacker.flush()
    except zlib.error as error:
        raise Unreadable(f"a value of the graph's checkpoint is damaged: {error}") from None
