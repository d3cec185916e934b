"""The spec of a run: the stored form of its inputs, meta and options.

A spec is the encoded list `[inputs, meta, extra]`. `extra` holds the parent, the idempotency key and the priority, where they
are set. The server keeps a large spec in several fields of the run's hash (see lua/shared/run.lua).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from coordinator.encoding.codec import decode, encode
from coordinator.encoding.seal import sealed
from coordinator.errors import NotPlain, Unreadable

INPUTS_LIMIT = 1024 * 1024
SPEC_FIELDS = ("spec", *(f"spec{number}" for number in range(1, 8)))


def encode_spec(inputs: Mapping[str, Any], meta: Mapping[str, Any], extra: Mapping[str, Any]) -> bytes:
    """Return the inputs, the meta and the extra values of a run in their stored form.

    Raises:
        NotPlain: A value can't be encoded.
        TooLarge: The inputs have more than `INPUTS_LIMIT` bytes.
    """
    try:
        spec = encode([inputs, meta, extra], "inputs")
    except NotPlain:
        encode(inputs, "inputs")  # encodes the inputs alone, so that the error names the right place
        raise
    if len(spec) > INPUTS_LIMIT:
        encode(inputs, "inputs", INPUTS_LIMIT)
    return sealed(spec)


def join_spec(fields: Mapping[str, bytes | None]) -> bytes | None:
    """Return the spec from the fields of a run's hash, or None if the run's spec was not kept."""
    if fields.get("spec") is None:
        return None
    return b"".join(fields.get(name) or b"" for name in SPEC_FIELDS)


def read_spec(spec: bytes, place: str = "spec") -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the inputs, the meta and the extra of a spec.

    Args:
        spec: The stored form, as `encode_spec` wrote it.
        place: The name of the value in error messages.

    Raises:
        Unreadable: The bytes are not a spec.
    """
    found = decode(spec, place)
    if not isinstance(found, list) or len(found) != 3 or not all(isinstance(part, dict) for part in found):
        raise Unreadable("the run's spec can't be read: it is not a list of inputs, meta and extra values")
    inputs, meta, extra = found
    return inputs, meta, extra


def digest_inputs(inputs: Mapping[str, Any]) -> str:
    """Return a digest of the inputs, which is stored with an idempotency key. The order of the names does not matter."""
    return hashlib.blake2b(encode(_ordered(inputs), "inputs"), digest_size=16).hexdigest()


def _ordered(value: Any) -> Any:
    """Return the value with the items of each mapping in a fixed order."""
    if isinstance(value, Mapping):
        pairs = [(_ordered(key), _ordered(item)) for key, item in value.items()]
        return [0, sorted(pairs, key=lambda pair: encode(pair[0], "a key"))]
    if type(value) is list:
        return [_ordered(item) for item in value]
    if type(value) is tuple:
        return tuple(_ordered(item) for item in value)
    return value
