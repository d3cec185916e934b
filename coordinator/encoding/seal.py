"""The seam between msgpack and the wire: codecs that compress or encrypt what is stored.

Sealed bytes begin with a byte that msgpack never uses, and the codec's id: a reader needs no setting, and old and new, sealed and
plain lie side by side. Which codecs write is of the process: RUNS_COMPRESS, or `use`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.encoding import compression
from coordinator.errors import BadOption, TooLarge, Unreadable

MARK = b"\xc1"
LIMIT = compression.LARGEST
OWN_IDS = range(64)  # those of this library
_LAYERS = 4

Write = Callable[[bytes], bytes | None]
Read = Callable[[bytes, int], bytes | bytearray]


@dataclass(frozen=True, slots=True)
class Codec:
    """Two functions. `write` answers None for what is better left as it is; `read` is given the largest answer it may have."""

    id: int
    name: str
    write: Write
    read: Read


_ZSTD = Codec(1, "zstd", compression.write, compression.read)
_by_id: dict[int, Codec] = {_ZSTD.id: _ZSTD}
_by_name: dict[str, Codec] = {_ZSTD.name: _ZSTD}
_writers: tuple[Codec, ...] | None = None  # None: as the settings say, which nobody asked yet


def register(id: int, name: str, write: Write, read: Read) -> None:
    """A codec of one's own, for reading from now on; `use` lets it write. Its id stays in what it wrote: it is given once."""
    if id in OWN_IDS or not 0 <= id <= 255:
        raise BadOption(f"codec {name!r} has the id {id}: those from {OWN_IDS.stop} to 255 are free")
    if id in _by_id or name in _by_name:
        raise BadOption(f"codec {name!r} with id {id}: the name or the id is taken")
    _by_id[id] = _by_name[name] = Codec(id, name, write, read)


def use(*names: str) -> None:
    """These codecs write from now on, in this order, in the whole process; none: plain msgpack."""
    global _writers  # noqa: PLW0603  # one for the process, as its settings are
    for name in names:
        if name not in _by_name:
            raise BadOption(f"there is no codec {name!r}: known are {', '.join(sorted(_by_name))}")
        if name == _ZSTD.name and not compression.available():
            raise BadOption(f"codec 'zstd' needs its extra: {compression.INSTALL}")
    if len(names) > _LAYERS:
        raise BadOption(f"{len(names)} codecs at once: {_LAYERS} are the most")
    _writers = tuple(_by_name[name] for name in names)


def sealed(data: bytes) -> bytes:
    """Packed data as it goes to the wire. What is empty or sealed already stays as it is."""
    if _writers is None:
        use(*compression.codecs_from_environment())
    if not _writers or not data or data[:1] == MARK:
        return data
    for codec in _writers:
        written = codec.write(data)
        if written is None:
            continue
        if len(data) > LIMIT:  # nobody would read it
            raise TooLarge(f"a value of {len(data):,} bytes for codec {codec.name!r}, and the limit is {LIMIT:,}")
        data = b"%b%c%b" % (MARK, codec.id, written)
    return data


def opened(data: bytes, place: str, limit: int = LIMIT) -> bytes | bytearray:
    """The packed data again, of at most so many bytes; Unreadable otherwise. What is not sealed stays as it is."""
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
        raise Unreadable(f"{place} can't be read: {data[:2]!r} is of no codec that is registered here")
    try:
        inner = codec.read(data[2:], limit)
    except MemoryError:
        raise
    except Exception as error:  # whatever a codec makes of foreign bytes, they are not what it wrote
        why = str(error) if isinstance(error, Unreadable) else f"{type(error).__name__}: {error}"
        raise Unreadable(f"{place} can't be read: {why}") from error
    if len(inner) > limit:
        raise Unreadable(f"{place} can't be read: it has {len(inner):,} bytes, and the limit is {limit:,}")
    return inner
