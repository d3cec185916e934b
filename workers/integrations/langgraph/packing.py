"""Pack the texts of a thread: compress them, or store the difference from another text of the thread.

The server stores the packed forms, so later versions must be able to read them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from uuid import UUID

from coordinator.errors import Unreadable

DIGEST = 12  # bytes of the name of an item
SMALL = 64  # shorter texts are not compressed
PROBE = 32  # bytes that two items must have in common, so that one is compressed against the other
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
_UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHORT_SPLICE = 64  # a splice of at most this many bytes is used without trying the other forms


def pack_item(text: bytes, recent: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the packed form of an item, compressed against another item of the thread if that saves bytes.

    This saves bytes for two reasons. A message is often saved twice with small differences, because LangGraph gives it an id after
    its task has written it. And the messages of a thread have words in common.

    Args:
        text: The content of the item.
        recent: Fields and contents of items that the server has: the first item of the thread, and the last ones.
    """
    middle = text[len(text) // 2 :][:PROBE]
    similar = [one for one in recent if len(middle) == PROBE and middle in one[1]]
    forms = list[bytes]()
    for field, content in similar[:1]:
        forms.append(b"2" + field[1:] + splice(text, content))
        if len(forms[0]) <= _SHORT_SPLICE:
            return forms[0]
    for field, content in similar[:1] or recent[:1]:
        forms.append(b"2" + field[1:] + pack(text, content))
    return min(pack(text), *forms, key=len) if forms else pack(text)


def unpack_item(field: bytes, parts: Mapping[bytes, bytes], texts: dict[bytes, bytes]) -> bytes:
    """Return the content of an item.

    Args:
        field: The field of the item.
        parts: The packed items by field.
        texts: Contents that were unpacked before. Many items are compressed against the same one, and many reads have the same
            items.

    Raises:
        Unreadable: If the item is missing or damaged.
    """
    if field not in parts:
        raise Unreadable("a value of the graph's checkpoint is missing on the server")
    chain: dict[bytes, bytes] = {}
    last = field
    while last and last not in texts:
        if last in chain:
            raise Unreadable("a value of the graph's checkpoint is damaged: it is compressed against itself")
        if last not in parts:
            raise Unreadable("a value of the graph's checkpoint is missing on the server")
        chain[last] = parts[last]
        last = base_field(parts[last])
    for one, packed in reversed(chain.items()):
        if base := base_field(packed):
            rest = packed[1 + DIGEST :]
            texts[one] = unsplice(rest, texts[base]) if rest[:1] in (b"s", b"u") else unpack(rest, texts[base])
        else:
            texts[one] = unpack(packed)
    return texts[field]


def base_field(packed: bytes) -> bytes:
    """Return the field of the item against which an item is compressed; empty if there is none."""
    return b"i" + packed[1 : 1 + DIGEST] if packed[:1] == b"2" else b""


def bases_first(packed: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Return items in an order in which each item follows the one that it is compressed against."""
    ordered: dict[bytes, bytes] = {}
    for first in packed:
        field, chain = first, dict[bytes, bytes]()
        while field in packed and field not in ordered and field not in chain:
            chain[field] = packed[field]
            field = base_field(packed[field])
        ordered |= dict(reversed(chain.items()))
    return list(ordered.items())


def splice(text: bytes, base: bytes) -> bytes:
    """Return a text as its difference from another text: the lengths of the common prefix and suffix, and the part between them.

    The first UUID of the part takes 16 bytes: LangGraph gives a message such an id after its task has written it.
    """
    prefix = _common_prefix(text, base)
    suffix = _common_prefix(text[prefix:][::-1], base[prefix:][::-1])
    part = text[prefix : len(text) - suffix]
    ends = _number(prefix) + _number(suffix)
    found = _UUID.search(part)
    if found is None:
        return b"s" + ends + part
    packed = UUID(found[0].decode()).bytes
    return b"u" + ends + _number(found.start()) + part[: found.start()] + packed + part[found.end() :]


def unsplice(spliced: bytes, base: bytes) -> bytes:
    """Return the text from the form that `splice` has made.

    Raises:
        Unreadable: If the form is damaged.
    """
    try:
        prefix, place = _read_number(spliced, 1)
        suffix, place = _read_number(spliced, place)
        if spliced[:1] == b"u":
            start, place = _read_number(spliced, place)
            middle = place + start
            id = str(UUID(bytes=spliced[middle : middle + 16])).encode()
            part = spliced[place:middle] + id + spliced[middle + 16 :]
        else:
            part = spliced[place:]
    except (IndexError, ValueError):
        raise Unreadable("a value of the graph's checkpoint is damaged") from None
    if prefix + suffix > len(base):
        raise Unreadable("a value of the graph's checkpoint is damaged: it is longer than the value that it extends")
    return base[:prefix] + part + base[len(base) - suffix :]


def _common_prefix(one: bytes, other: bytes) -> int:
    """Return the length of the common prefix of two texts, by binary search, because comparing slices is fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _number(value: int) -> bytes:
    """Return a number as bytes with 7 bits of it each, the lowest first. The top bit of a byte is set if another byte follows."""
    found = bytearray()
    while value >= 128:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _read_number(text: bytes, place: int) -> tuple[int, int]:
    """Return a number that `_number` has packed, and the position after it."""
    value = shift = 0
    while text[place] >= 128:
        value |= (text[place] & 127) << shift
        place, shift = place + 1, shift + 7
    return value | text[place] << shift, place + 1


def pack(text: bytes, dictionary: bytes = MESSAGE_TEXT) -> bytes:
    """Return the packed form of a text: compressed, or unchanged if compression saves nothing.

    Args:
        text: The text.
        dictionary: Text that zlib uses as a preset dictionary. `unpack` needs the same one.
    """
    if len(text) > SMALL:
        packer = zlib.compressobj(6, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, dictionary)
        packed = packer.compress(text) + packer.flush()
        if len(packed) < len(text):
            return b"1" + packed
    return b"0" + text


def unpack(packed: bytes, dictionary: bytes = MESSAGE_TEXT) -> bytes:
    """Return the text from the packed form that `pack` has made with the same dictionary.

    Raises:
        Unreadable: If the packed form is damaged.
    """
    if packed[:1] == b"0":
        return packed[1:]
    try:
        unpacker = zlib.decompressobj(-15, dictionary)
        return unpacker.decompress(packed[1:]) + unpacker.flush()
    except zlib.error as error:
        raise Unreadable(f"a value of the graph's checkpoint is damaged: {error}") from None
