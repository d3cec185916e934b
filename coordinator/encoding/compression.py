"""Compress large values with zstd, if the extra `zstd` is installed. The library is imported when a value first needs it.

Decompression never returns more bytes than its limit: a frame must state its size, and may not contain more than it states.
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
# 8 MiB; our own frames need 2 MiB. A foreign frame may ask for 2 GiB, which would be allocated before its first byte is read.
_WINDOW_LOG = 23
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
    """Return True if the extra `zstd` is installed."""
    return _library() is not None


def codecs_from_environment() -> tuple[str, ...]:
    """Return the names of the codecs that RUNS_COMPRESS requests: no name, or zstd.

    Raises:
        BadOption: The codec is not known, or its extra is not installed.
    """
    asked = read_environment().compress
    if asked not in ("", "zstd"):
        raise BadOption(f"RUNS_COMPRESS={asked!r} is not known: use zstd, or unset it")
    if asked and not available():
        raise BadOption(f"RUNS_COMPRESS=zstd needs the extra zstd: {INSTALL}")
    return (asked,) if asked else ()


class _Compressors(threading.local):
    """A zstd compressor for each thread.

    A new compressor for each value would take five times as long, and a compressor that threads share would need a lock.
    """

    def __init__(self) -> None:
        zstd: Any = _library()
        # Without a checksum, a damaged frame could be read as another value.
        options = {zstd.CompressionParameter.compression_level: _LEVEL, zstd.CompressionParameter.checksum_flag: 1}
        self.compressor = zstd.ZstdCompressor(options=options)
        self.end = zstd.ZstdCompressor.FLUSH_FRAME


@cache
def _compressors() -> _Compressors:
    return _Compressors()


def write(data: bytes) -> bytes | None:
    """Return the data as a compressed frame; None if it has up to 2 KiB, more than 64 MiB, or does not shrink."""
    if not THRESHOLD < len(data) <= LARGEST:
        return None
    own = _compressors()
    frame: bytes = own.compressor.compress(data, own.end)
    return frame if len(frame) < len(data) - 2 else None


def read(frame: bytes, limit: int) -> bytearray:
    """Return the decompressed content of a frame, at most `limit` bytes.

    Raises:
        Unreadable: zstd is not installed.
        ValueError: The content is larger than the limit, or has another size than the frame states.
    """
    zstd: Any = _library()
    if zstd is None:
        raise Unreadable(f"it is compressed with zstd, which is not installed: {INSTALL}")
    size = zstd.get_frame_info(frame).decompressed_size
    if size is None or size > limit:
        raise ValueError(
            f"it expands to {'an unknown number of' if size is None else f'{size:,}'} bytes, and the limit is {limit:,}"
        )
    decompressor = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})
    # Decompress in pieces, because a frame may state a false size. Append in place, so that the content is not held twice.
    data = bytearray(decompressor.decompress(frame, _PIECE))
    while not decompressor.eof:
        if decompressor.needs_input or len(data) > size:
            raise ValueError(f"its frame does not have the stated {size:,} bytes")
        data += decompressor.decompress(b"", _PIECE)
    if decompressor.unused_data:
        raise ValueError("there are bytes behind its frame")
    return data
