"""The stored form of values of a graph: entries, items and lists (see coordinator/store/lua/shared/graph.lua).

A value of more than INLINE bytes is an item. With an encrypted serializer, every value is an item. An item is stored once in its
thread, under the digest of its content. So a message is sent once, although it occurs in the writes of a task and in many versions
of a list.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from coordinator.errors import Unreadable
from workers.integrations.langgraph.packing import DIGEST, unpack_item

INLINE = 40  # the most bytes of a value that is stored in its entry, and not as an item
LOG = 8  # the number of bytes in the name of a list's chunks
TEXTS = 16 * 1024 * 1024  # the most bytes of contents that a saver keeps unpacked


class Items:
    """The items that a call refers to: their content by field, in the order of their first use."""

    def __init__(self) -> None:
        self.contents: dict[bytes, Callable[[], bytes]] = {}

    def add(self, digest: bytes, content: Callable[[], bytes]) -> None:
        """Add an item. `content` makes its content, and is called only if the item must be sent."""
        self.contents.setdefault(b"i" + digest, content)


class Parts(dict[bytes, bytes]):
    """The chunks, dictionaries and items of a reply, by field."""

    def __init__(self, fields: Mapping[bytes, bytes]) -> None:
        super().__init__(fields)
        self._lists: dict[bytes, list[bytes]] = {}

    def entries(self, stored: bytes) -> list[bytes]:
        """Return the entries of a list from its stored form.

        Raises:
            Unreadable: A chunk is missing.
        """
        if stored not in self._lists:
            self._lists[stored] = read_list(stored, self)
        return self._lists[stored]


class ItemTexts(dict[bytes, bytes]):
    """Unpacked contents of items by field, and the sum of their sizes.

    The field is a digest of the content, so that a content never changes.
    """

    size = 0

    def __setitem__(self, field: bytes, text: bytes) -> None:
        self.size += len(text)
        super().__setitem__(field, text)


class Values:
    """Encode and decode the values of a graph with its serializer.

    Args:
        serde: The serializer of the saver.
    """

    def __init__(self, serde: SerializerProtocol) -> None:
        self.serde = serde
        # An encrypted text differs each time. So items are recognised by their plain content, with a key that never leaves the
        # process. Otherwise the digest of a secret that can be guessed would reveal the secret.
        self._plain = serde.serde if isinstance(serde, EncryptedSerializer) else None
        self._key = os.urandom(16) if self._plain is not None else b""
        self.encrypted = self._plain is not None
        # A chat reads the same items in each turn. Unpacking them takes longer than everything else except for loading the values.
        self._texts = ItemTexts()

    def typed(self, value: Any) -> bytes:
        """Return a value as bytes that start with the name of its type."""
        kind, data = self.serde.dumps_typed(value)
        return kind.encode() + b"\0" + data

    def load(self, typed: bytes) -> Any:
        """Return the value from the bytes that `typed` has made."""
        kind, _, data = typed.partition(b"\0")
        return self.serde.loads_typed((kind.decode(), data))

    def entry(self, value: Any, items: Items) -> bytes:
        """Return the entry of a value: the encoded value if it has at most INLINE bytes, otherwise the digest of an item.

        With an encrypted serializer, the entry is always a digest.

        Args:
            value: The value.
            items: The items of the call. If the entry is a digest, the value is added to them as an item.
        """
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

    def read(self, stored: bytes, parts: Parts) -> Any:
        """Return a value from its stored form.

        Args:
            stored: The stored form.
            parts: The chunks and items that it refers to, by field.

        Raises:
            Unreadable: If a chunk or an item is missing.
        """
        texts = self._texts
        entries = split_entries(stored[1:]) if stored[:1] in b"ec" else parts.entries(stored)
        found = [self._read_entry(entry, parts, texts) for entry in entries]
        if texts.size > TEXTS:
            self._texts = ItemTexts()  # Another thread of the process may still use the old ones.
        match stored[:1]:
            case b"e":
                return found[0]
            case b"d":
                return _DeltaSnapshot(found)
            case _:
                return found

    def _read_entry(self, entry: bytes, parts: Parts, texts: ItemTexts) -> Any:
        if entry[:1] == b"s":
            return self.load(entry[3:])
        return self.load(unpack_item(b"i" + entry[1:], parts, texts))


def is_listed(value: Any) -> bool:
    """Return True if a value is stored item by item: a list that does not consist of numbers."""
    return type(value) is list and not all(isinstance(one, int | float) or one is None for one in value)


def split_entries(text: bytes) -> Iterator[bytes]:
    """Split a row of entries, and yield each entry."""
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
        Unreadable: If a chunk is missing.
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
    """Return the name of the hash field that stores a chunk of a list."""
    return b"l" + log + b"%d" % number


def digests(stored: bytes, parts: Parts) -> Iterable[bytes]:
    """Return the fields of the items that a stored value refers to."""
    entries = split_entries(stored[1:]) if stored[:1] in b"ec" else parts.entries(stored)
    return [b"i" + entry[1:] for entry in entries if entry[:1] == b"r"]
