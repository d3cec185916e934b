"""Large values are compressed before they are sent, readers need no setting, and no hostile frame uses much memory."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import threading
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from coordinator.config import Settings
from coordinator.encoding import compression, seal
from coordinator.encoding.codec import decode, encode
from coordinator.encoding.spec import digest_inputs
from coordinator.errors import BadOption, TooLarge, Unreadable
from tests.unit.encoding.test_codec import calm, plain, shape
from workers.handlers.checkpoint.messages import Messages, chunk, unchunk

MIB = 1024 * 1024
DOCS = Path(__file__).parents[3] / "docs" / "guides" / "codecs.md"
zstd: Any = compression._library()
state = {"notes": ["the same words again and again"] * 500}


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """Restore the codecs of the process, which are global, after each test."""
    monkeypatch.setattr(seal, "_by_id", dict(seal._by_id))
    monkeypatch.setattr(seal, "_by_name", dict(seal._by_name))
    monkeypatch.setattr(seal, "_writers", None)
    monkeypatch.delenv("RUNS_COMPRESS", raising=False)


@pytest.fixture
def without_zstd(monkeypatch):
    """Simulate that the extra is not installed."""
    monkeypatch.setattr(compression, "_library", lambda: None)


def frame(data: bytes, level: int = 3) -> bytes:
    return b"\xc1\x01%b" % zstd.compress(data, level)


def written(data: bytes) -> bytes:
    seal.use("zstd")
    return seal.sealed(data)


def xor(data: bytes, _: int = 0) -> bytes:
    return bytes(byte ^ 7 for byte in data)


# ---- which values are compressed


def test_large_value_is_stored_compressed_and_read_without_any_setting():
    packed = encode(state, "state")
    stored = written(packed)
    assert stored[:2] == b"\xc1\x01"
    assert len(stored) < len(packed) / 20
    seal.use()
    assert decode(stored, "state") == state


def test_by_default_nothing_is_compressed():
    packed = encode(state, "state")
    assert seal.sealed(packed) is packed


def test_small_values_are_not_compressed():
    below, above = encode("a" * 2045, "it"), encode("a" * 2046, "it")
    assert (len(below), len(above)) == (2048, 2049)
    assert written(below) is below
    assert written(above)[:1] == seal.MARK


def test_value_that_does_not_get_smaller_is_not_compressed():
    noise = encode(b"".join(struct.pack(">d", 1 / n) for n in range(3, 3000)), "it")
    stored = written(noise)
    assert len(stored) <= len(noise)
    stubborn = encode(zstd.compress(noise, 19), "it")
    assert written(stubborn) is stubborn


@pytest.mark.parametrize("name", ["zstd", "toy"])
def test_empty_or_already_compressed_value_is_unchanged(name):
    seal.register(90, "toy", xor, xor)
    seal.use(name)
    stored = seal.sealed(encode(state, "state"))
    assert seal.sealed(stored) is stored
    assert seal.sealed(b"") == b""


@given(plain)
@calm
@example([])
@example({})
def test_plain_msgpack_never_starts_with_the_mark_of_compressed_bytes(value):
    assert encode(value, "it")[:1] != seal.MARK


@pytest.mark.matrix("searches for unknown bugs")
@settings(calm, max_examples=200)
@given(plain, st.integers(1, 400))
def test_values_round_trip_with_their_types(value, times):
    many = [value] * times
    packed = encode(many, "it")
    stored = written(packed)
    assert len(stored) <= len(packed)
    assert shape(decode(stored, "it")) == shape(many)
    assert written(packed) == stored, "the same value has the same bytes"


def test_every_thread_writes_the_same_bytes():
    seal.use("zstd")
    packed, found = encode(state, "state"), []
    threads = [threading.Thread(target=lambda: found.append(seal.sealed(packed))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [seal.sealed(packed)] * 8


def test_messages_that_are_small_alone_are_compressed_together():
    messages = Messages()
    messages.extend({"role": "user", "content": f"question {n}"} for n in range(200))
    seal.use("zstd")
    joined = chunk(messages.packed)
    stored = seal.sealed(joined)
    assert len(stored) < len(joined) / 4
    assert all(seal.sealed(data) is data for data in messages.packed)
    assert unchunk(stored, "messages[0]") == unchunk(joined, "messages[0]")


def test_inputs_have_the_same_digest_with_and_without_compression():
    plainly = digest_inputs(state)
    seal.use("zstd")
    assert digest_inputs(state) == plainly


# ---- limits


def test_limits_apply_to_the_uncompressed_value():
    seal.use("zstd")
    with pytest.raises(TooLarge, match=r"inputs has 15,5.. bytes, and the limit is 10,000"):
        encode(state, "inputs", 10_000)
    stored = seal.sealed(encode(state, "inputs"))
    assert len(stored) < 1000
    with pytest.raises(Unreadable, match=r"^inputs can't be read: .*expands to 15,5.. bytes, and the limit is 10,000"):
        decode(stored, "inputs", 10_000)


def test_value_that_no_reader_would_accept_is_not_compressed(monkeypatch):
    monkeypatch.setattr(compression, "LARGEST", 10_000)
    packed = encode(state, "state")
    assert written(packed) is packed


# ---- hostile frames


def growth(data: bytes, limit: int = seal.LIMIT) -> int:
    """Return how much memory the process needs to refuse these bytes."""
    tracemalloc.start()
    try:
        with pytest.raises(Unreadable, match=r"^state can't be read: "):
            decode(data, "state", limit)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def bomb(megabytes: int, claimed: int | None, *, said: bool = True) -> bytes:
    """Return compressed zeros whose frame states the true size, a false one or none."""
    compressor = zstd.ZstdCompressor()
    body = b"".join(compressor.compress(bytes(MIB)) for _ in range(megabytes)) + compressor.flush(
        zstd.ZstdCompressor.FLUSH_FRAME
    )
    assert body[4] == 0, "a frame without size, checksum and dictionary"
    if said:
        body = (
            body[:4]
            + b"\xc0"
            + body[5:6]
            + struct.pack("<Q", megabytes * MIB if claimed is None else claimed)
            + body[6:]
        )
    return b"\xc1\x01%b" % body


def test_bomb_with_a_true_size_is_refused_by_its_head():
    assert growth(bomb(200, None)) < MIB
    assert growth(bomb(2, 2**63)) < MIB
    assert growth(bomb(2, 2**64 - 3)) < MIB


def test_bomb_with_a_false_size_is_stopped():
    data = bomb(200, 5000)
    assert len(data) < 32_000
    assert growth(data) < 4 * MIB
    assert growth(bomb(200, 20 * MIB)) < 30 * MIB, "so large that the library itself notices only at the end"


def test_frame_without_a_size_is_refused():
    assert growth(bomb(200, None, said=False)) < MIB


def test_frame_with_less_content_than_stated_is_refused():
    assert growth(bomb(2, 3 * MIB)) < 8 * MIB
    assert growth(bomb(2, 2 * MIB - 1)) < 8 * MIB


def test_value_at_its_size_limit_is_not_held_twice_in_memory():
    inner = encode(bytes(32 * MIB - 5), "it")
    assert len(inner) == 32 * MIB
    data = frame(inner)
    tracemalloc.start()
    try:
        assert len(seal.opened(data, "it", 32 * MIB)) == 32 * MIB
        assert tracemalloc.get_traced_memory()[1] < 40 * MIB
    finally:
        tracemalloc.stop()
    with pytest.raises(Unreadable):
        seal.opened(data, "it", 32 * MIB - 1)


def test_window_of_two_gigabytes_is_refused():
    data = bytearray(bomb(1, None))
    assert data[6] == 0xC0
    data[7] = 21 << 3
    assert growth(bytes(data)) < MIB


def test_unknown_dictionary_is_refused():
    trained = zstd.train_dict([b"%d and some words %d" % (n, n * n) for n in range(2000)], 4096)
    packed = encode(state, "state")
    assert growth(seal.MARK + b"\x01" + zstd.compress(packed, zstd_dict=trained)) < MIB


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        b"\xc1\x00",
        b"\xc1\x01",
        b"\xc1\x02" + zstd.compress(b"\x01"),
        b"\xc1\xff\x01",
        frame(b""),
        frame(b"\xc1"),
        frame(b"\x01\x01"),
        frame(b"\x01") + b"\x00",
        frame(b"\x01") + zstd.compress(b"\x01"),
        b"\xc1\x01\x50\x2a\x4d\x18\x00\x00\x00\x00",
        b"\xc1\x01\x50\x2a\x4d\x18\xff\xff\xff\xff",
        frame(frame(frame(frame(frame(b"\x01"))))),
    ],
)
def test_invalid_compressed_bytes_are_unreadable(data):
    with pytest.raises(Unreadable, match=r"^state can't be read: "):
        decode(data, "state")


@pytest.mark.parametrize("cut", [3, 6, 8, 20, -5, -4, -1])
def test_truncated_frame_is_unreadable(cut):
    with pytest.raises(Unreadable, match=r"^state can't be read: "):
        decode(written(encode(state, "state"))[:cut], "state")


@settings(calm, max_examples=500)
@given(st.data())
def test_damaged_frame_either_decodes_to_the_value_or_is_unreadable(data):
    good = written(encode(state, "state"))
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(1, len(bad) - 1))] = data.draw(st.integers(0, 255))
    with suppress(Unreadable):
        assert decode(bytes(bad), "state") == state


@settings(calm, max_examples=500)
@given(st.binary(max_size=300), st.booleans())
def test_foreign_bytes_behind_the_mark_are_unreadable(tail, magic):
    data = b"\xc1\x01" + (b"\x28\xb5\x2f\xfd" if magic else b"") + tail
    tracemalloc.start()
    try:
        with suppress(Unreadable):
            decode(data, "state", 1000)
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


# ---- the setting and the extra


def test_environment_variable_enables_compression(monkeypatch):
    monkeypatch.setenv("RUNS_COMPRESS", "zstd")
    assert compression.codecs_from_environment() == ("zstd",)
    assert seal.sealed(encode(state, "state"))[:1] == seal.MARK


def test_another_process_follows_its_own_environment():
    """A worker is a child process of its supervisor and inherits its environment."""
    code = "from coordinator.encoding.seal import sealed; import sys; sys.stdout.buffer.write(sealed(bytes(5000))[:2])"
    for value, begin in (("zstd", b"\xc1\x01"), ("", b"\0\0")):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"RUNS_COMPRESS": value}, stdout=-1, cwd=DOCS.parents[2]
        )
        assert done.stdout == begin


def test_unknown_codec_is_refused_when_settings_are_built(monkeypatch):
    monkeypatch.setenv("RUNS_COMPRESS", "gzip")
    with pytest.raises(BadOption, match="RUNS_COMPRESS='gzip' is not known: use zstd"):
        Settings("memory://x")


def test_missing_extra_is_refused_when_settings_are_built(monkeypatch, without_zstd):
    Settings("memory://x")
    monkeypatch.setenv("RUNS_COMPRESS", "zstd")
    with pytest.raises(BadOption, match=r"pip install 'run-coordinator\[zstd\]'"):
        Settings("memory://x")
    with pytest.raises(BadOption, match=r"pip install 'run-coordinator\[zstd\]'"):
        seal.use("zstd")


def test_reader_names_the_missing_extra(without_zstd):
    with pytest.raises(Unreadable, match=r"^state can't be read: .*pip install 'run-coordinator\[zstd\]'$"):
        decode(frame(encode(state, "state")), "state")
    assert decode(encode(state, "state"), "state") == state


def test_compression_library_is_imported_only_when_needed():
    code = "import coordinator, workers, sys; print('backports.zstd' in sys.modules, 'compression.zstd' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env={}, stdout=-1, cwd=DOCS.parents[2])
    assert done.stdout.split() == [b"False", b"False"]


# ---- custom codecs


def test_example_of_the_docs_works():
    [example] = re.findall(r"^```python\n(.*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    exec(example, {})  # noqa: S102  # the docs are ours
    packed = encode(state, "state")
    stored = seal.sealed(packed)
    assert stored[:2] == b"\xc1\x40", "sealed last by the codec that came last"
    assert len(stored) < len(packed) / 20
    assert decode(stored, "state") == state
    small = seal.sealed(encode({"secret": 1}, "state"))
    assert small[:2] == b"\xc1\x40"
    assert b"secret" not in small
    assert decode(small, "state") == {"secret": 1}


@settings(calm, max_examples=50)
@given(plain)
def test_layers_are_removed_in_the_order_of_their_marks(value):
    with suppress(BadOption):
        seal.register(90, "toy", xor, xor)
    packed = encode(value, "it")
    assume(packed)
    for names in (("toy",), ("zstd", "toy"), ("toy", "zstd")):
        seal.use(*names)
        assert shape(decode(seal.sealed(packed), "it")) == shape(value)


def test_process_without_a_codec_names_the_missing_codec_id():
    with pytest.raises(Unreadable, match=r"^state can't be read: b'\\xc1Z' belongs to a codec that is not registered"):
        decode(b"\xc1\x5a...", "state")


@pytest.mark.parametrize(
    ("id", "name"), [(1, "mine"), (63, "mine"), (256, "mine"), (-1, "mine"), (64, "zstd"), (70, "taken"), (71, "taken")]
)
def test_codec_id_and_name_are_unique(id: int, name: str):
    seal.register(70, "taken", xor, xor)
    with pytest.raises(BadOption):
        seal.register(id, name, xor, xor)


def test_only_known_codecs_can_be_used_and_their_number_is_limited():
    with pytest.raises(BadOption, match="codec 'rot13' is not registered: the registered codecs are zstd"):
        seal.use("zstd", "rot13")
    with pytest.raises(BadOption):
        seal.use(*["zstd"] * 5)
    assert seal._writers is None, "a refused choice changes nothing"


def test_codec_error_or_wrong_result_is_unreadable():
    def breaks(data: bytes, limit: int) -> Any:
        raise KeyError("no such key")

    seal.register(64, "breaks", xor, breaks)
    seal.register(65, "swells", xor, lambda data, limit: encode(bytes(limit), "it"))
    with pytest.raises(Unreadable, match=r"^state can't be read: KeyError: 'no such key'"):
        decode(b"\xc1\x40...", "state", 1000)
    with pytest.raises(Unreadable, match=r"^state can't be read: it has 1,003 bytes, and the limit is 1,000"):
        decode(b"\xc1\x41...", "state", 1000)


def test_codec_does_not_receive_a_value_that_no_reader_would_accept(monkeypatch):
    monkeypatch.setattr(seal, "LIMIT", 1000)
    seal.register(64, "toy", xor, xor)
    seal.use("toy")
    with pytest.raises(TooLarge, match="for codec 'toy': the limit is 1,000"):
        seal.sealed(bytes(1001))
