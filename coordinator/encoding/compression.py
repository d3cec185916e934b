"""zstd for large values: the extra `zstd`. The library is imported by the first value that needs it.

What comes back is never larger than its limit: a frame has to say its size, and may not hold more than it says.
"""

from __future__ import annotations

import sys
import threading
from functools import cache
from types import ModuleType
from typing import Any

from coordinator.environment import read_environment
from coordinator.errors import BadOption, Unreadable

THRESHOLD = 2 * 1024
LARGEST = 64 * 1024 * 1024
INSTALL = "pip install 'run-coordinator[zstd]'"

_LEVEL = 3
_WINDOW_LOG = (
    23  # 8 MiB; what is written here has 2. A frame may ask for 2 GiB, and would get them before its first byte
)
_PIECE = 1024 * 1024


@cache
def _library() -> ModuleType | None:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        return None
    return zstd


def available() -> bool:
    """Whether the extra is installed."""
    return _library() is not None


def codecs_from_environment() -> tuple[str, ...]:
    """Return the codecs that RUNS_COMPRESS asks for: none, or zstd.

    Raises:
        BadOption: The codec is not known, or its extra is not installed.
    """
    asked = read_environment().compress
    if asked not in ("", "zstd"):
        raise BadOption(f"RUNS_COMPRESS={asked!r} is not known: use zstd, or leave it away")
    if asked and not available():
        raise BadOption(f"RUNS_COMPRESS=zstd needs its extra: {INSTALL}")
    return (asked,) if asked else ()


class _Compressors(threading.local):
    """A compressor for each thread: made anew for each value it costs five times as much, and a shared one waits."""

    def __init__(self) -> None:
        zstd: Any = _library()
        # with a checksum: else a damaged frame may be read as another value
        options = {zstd.CompressionParameter.compression_level: _LEVEL, zstd.CompressionParameter.checksum_flag: 1}
        self.compressor = zstd.ZstdCompressor(options=options)
        self.end = zstd.ZstdCompressor.FLUSH_FRAME


@cache
def _compressors() -> _Compressors:
    return _Compressors()


def write(data: bytes) -> bytes | None:
    """A frame, where that is worth it."""
    # what is larger than a reader takes goes as it is
    if not THRESHOLD < len(data) <= LARGEST:
        return None
    own = _compressors()
    frame: bytes = own.compressor.compress(data, own.end)
    return frame if len(frame) < len(data) - 2 else None


def read(frame: bytes, limit: int) -> bytearray:
    """What is in a frame; an error where it is not as it says, or larger than the limit."""
    zstd: Any = _library()
    if zstd is None:
        raise Unreadable(f"it is compressed with zstd, which is not installed here: {INSTALL}")
    size = zstd.get_frame_info(frame).decompressed_size
    if size is None or size > limit:
        raise ValueError(f"it unfolds to {'an unknown number of' if size is None else f'{size:,}'} bytes, of {limit:,}")
    decompressor = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})
    # piece by piece, as a frame may lie about its size, and in place: the library would hold all of it twice
    data = bytearray(decompressor.decompress(frame, _PIECE))
    while not decompressor.eof:
        if decompressor.needs_input or len(data) > size:
            raise ValueError(f"its frame is not of {size:,} bytes")
        data += decompressor.decompress(b"", _PIECE)
    if decompressor.unused_data:
        raise ValueError("there is more behind its frame")
    return data
