"""Encrypt the cursors of lists for callers that may see only their own runs.

A cursor contains the id of the last run that was examined. This run may belong to another owner. So a caller that may see only its
own runs gets an encrypted cursor. The encryption key is derived from the birth mark of the namespace, a random text that no
response contains. All processes of an application have the same key. So each process can read the cursors of the others, also after
a restart.
"""

from __future__ import annotations

import base64
import binascii
from hashlib import blake2b, shake_256
from hmac import compare_digest

from coordinator.client.reading.pages import Cursor
from coordinator.errors import BadOption

TAG_BYTES = 16


def make_cursor_key(birth: str) -> bytes:
    """Return the key for the cursors of a namespace.

    Args:
        birth: The birth mark of the namespace.
    """
    return blake2b(birth.encode(), person=b"cursor").digest()


def encrypt_cursor(cursor: Cursor, key: bytes) -> str:
    """Return a cursor as encrypted text, from which a caller can't learn the id of the run that the cursor contains."""
    plain = str(cursor).encode()
    tag = blake2b(plain, key=key, digest_size=TAG_BYTES).digest()
    return base64.urlsafe_b64encode(tag + _mask(plain, key, tag)).decode()


def decrypt_cursor(text: str, key: bytes) -> Cursor:
    """Return the cursor from its encrypted text.

    Raises:
        BadOption: The text is not a cursor, or was made with another key.
    """
    try:
        data = base64.urlsafe_b64decode(text.encode())
    except (ValueError, binascii.Error):
        data = b""
    tag, plain = data[:TAG_BYTES], _mask(data[TAG_BYTES:], key, data[:TAG_BYTES])
    if not compare_digest(tag, blake2b(plain, key=key, digest_size=TAG_BYTES).digest()):
        raise BadOption(f"cursor {text!r:.80} is not valid: begin again without a cursor")
    return Cursor.parse(plain.decode())


def _mask(data: bytes, key: bytes, tag: bytes) -> bytes:
    """Encrypt or decrypt data: combine it by XOR with bytes that are derived from the key and the tag of the plain data."""
    return bytes(one ^ other for one, other in zip(data, shake_256(key + tag).digest(len(data)), strict=True))
