"""Compress or encrypt stored values with codecs.

Sealed bytes begin with a byte that msgpack never uses, followed by the codec's id. So a reader needs no setting, and sealed and
unsealed values may be stored side by side. RUNS_COMPRESS or `use` chooses the codecs that write, for the whole process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.encoding import compression
from coordinator.errors import BadOption, TooLarge, Unreadable

MARK = b"\xc1"
LIMIT = compression.LARGEST
OWN_IDS = range(64)  # ids that are reserved for this library
_LAYERS = 4

Write = Callable[[bytes], bytes | None]
Read = Callable[[bytes, int], bytes | bytearray]


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec: a pair of functions that transform bytes and restore them.

    Attributes:
        id: The number that is stored in front of the bytes.
        name: The name for `use`.
        write: Returns the transformed bytes, or None to leave the value as it is.
        read: Returns the original bytes. Its second argument is the largest number of bytes that it may return.
    """

    id: int
    name: str
    write: Write
    read: Read


_ZSTD = Codec(1, "zstd", compression.write, compression.read)
_by_id: dict[int, Codec] = {_ZSTD.id: _ZSTD}
_by_name: dict[str, Codec] = {_ZSTD.name: _ZSTD}
_writers: tuple[Codec, ...] | None = None  # None: RUNS_COMPRESS was not read yet


def register(id: int, name: str, write: Write, read: Read) -> None:
    """Register your own codec for reading. Call `use` to write with it.

    The id is stored with each value that the codec writes. Never give the same id to another codec.

    Args:
        id: A number from 64 to 255.
        name: The name for `use`.
        write: Returns the transformed bytes, or None to leave the value as it is.
        read: Returns the original bytes; its second argument is the largest number of bytes that it may return.

    Raises:
        BadOption: The id is reserved, or the id or the name is in use.
    """
    if id in OWN_IDS or not 0 <= id <= 255:
        raise BadOption(f"codec {name!r} can't have the id {id}: use a number from {OWN_IDS.stop} to 255")
    if id in _by_id or name in _by_name:
        raise BadOption(f"codec {name!r} with id {id}: the name or the id is already in use")
    _by_id[id] = _by_name[name] = Codec(id, name, write, read)


def use(*names: str) -> None:
    """Set the codecs that encode new values in this process, in the given order.

    Args:
        names: Names of codecs. Without names, values are stored as plain msgpack.

    Raises:
        BadOption: A codec is unknown or not installed, or there are more than four.
    """
    global _writers  # noqa: PLW0603  # the codecs are a setting of the whole process
    for name in names:
        if name not in _by_name:
            raise BadOption(
                f"codec {name!r} is not registered: the registered codecs are {', '.join(sorted(_by_name))}"
            )
        if name == _ZSTD.name and not compression.available():
            raise BadOption(f"codec 'zstd' is not installed: {compression.INSTALL}")
    if len(names) > _LAYERS:
        raise BadOption(f"{len(names)} codecs are too many: use at most {_LAYERS}")
    _writers = tuple(_by_name[name] for name in names)


def sealed(data: bytes) -> bytes:
    """Return the bytes sealed by the codecs that `use` or RUNS_COMPRESS chose. Empty and sealed bytes are returned unchanged.

    Raises:
        TooLarge: A codec would write a value that is too large to be read again.
    """
    if _writers is None:
        use(*compression.codecs_from_environment())
    if not _writers or not data or data[:1] == MARK:
        return data
    for codec in _writers:
        written = codec.write(data)
        if written is None:
            continue
        if len(data) > LIMIT:  # a reader would refuse it
            raise TooLarge(
                f"a value of {len(data):,} bytes is too large for codec {codec.name!r}: the limit is {LIMIT:,}"
            )
        data = b"%b%c%b" % (MARK, codec.id, written)
    return data


def opened(data: bytes, place: str, limit: int = LIMIT) -> bytes | bytearray:
    """Return the original bytes of sealed data. Unsealed bytes are returned unchanged.

    Args:
        data: The bytes.
        place: The name of the value in error messages.
        limit: The largest number of bytes that the original may have.

    Raises:
        Unreadable: The codec is unknown or fails, or the original has more bytes than the limit.
    """
    inner: bytes | bytearray = data
    for _ in range(_LAYERS):
        if inner[:1] != MARK:
            return inner
        inner = _opened(bytes(inner), place, limit)
    if inner[:1] == MARK:
        raise Unreadable(f"{place} can't be read: it is sealed more than {_LAYERS} times")
    return inner


def _opened(data: bytes, place: str, limit: int) -> bytes | bytearray:
    codec = _by_id.get(data[1]) if len(data) > 1 else None
    if codec is None:
        raise Unreadable(
            f"{place} can't be read: {data[:2]!r} belongs to a codec that is not registered in this process"
        )
    try:
        inner = codec.read(data[2:], limit)
    except MemoryError:
        raise
    except Exception as error:  # any error of a codec means that the bytes were not written by this codec
        why = str(error) if isinstance(error, Unreadable) else f"{type(error).__name__}: {error}"
        raise Unreadable(f"{place} can't be read: {why}") from error
    if len(inner) > limit:
        raise Unreadable(f"{place} can't be read: it has {len(inner):,} bytes, and the limit is {limit:,}")
    return inner
