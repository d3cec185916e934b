"""The packed forms of the texts of a LangGraph thread: each form is read back as it was, and damage is noticed."""

from __future__ import annotations

import contextlib
import uuid
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from coordinator.errors import Unreadable
from workers.integrations.langgraph.known import COLLECTED, DICTIONARY_BYTES, ITEMS, Dictionary, KnownThread
from workers.integrations.langgraph.packing import base_field, bases_first, pack_item, splice, unpack_item, unsplice
from workers.integrations.langgraph.save_plans import pack_path, unpack_path
from workers.integrations.langgraph.values import Items, Parts, Values

pytestmark = pytest.mark.unit
ID = str(uuid.UUID(int=7)).encode()
TEXTS = st.lists(st.sampled_from([b"a", b"ab", b"\x80", b"long text " * 30, ID, b"-", b"\0"]), max_size=8).map(b"".join)


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_a_spliced_text_is_read_back_as_it_was(text: bytes, base: bytes) -> None:
    assert unsplice(splice(text, base), base) == text


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_a_packed_item_is_read_back_as_it_was(text: bytes, base: bytes) -> None:
    first, second = b"i" + b"1" * 12, b"i" + b"2" * 12
    parts = {first: pack_item(base, []), second: pack_item(text, [(first, base)])}
    assert unpack_item(second, parts, {}) == text


def test_items_that_are_compressed_against_each_other_are_unreadable() -> None:
    one, two = b"i" + b"1" * 12, b"i" + b"2" * 12
    for parts in ({one: b"2" + one[1:] + b"0x"}, {one: b"2" + two[1:] + b"0x", two: b"2" + one[1:] + b"0y"}):
        with pytest.raises(Unreadable, match="against itself"):
            unpack_item(one, parts, {})


def test_an_item_that_is_missing_on_the_server_is_noticed_although_its_content_is_known() -> None:
    field = b"i" + b"1" * 12
    with pytest.raises(Unreadable, match="missing"):
        unpack_item(field, {}, {field: b"text"})


def test_the_contents_that_a_saver_keeps_unpacked_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.integrations.langgraph.values.TEXTS", 1000)
    values, items = Values(JsonPlusSerializer()), Items()
    texts = [f"{number} " * 100 for number in range(20)]
    stored = [values.value(one, items) for one in texts]
    parts = Parts({field: pack_item(content(), []) for field, content in items.contents.items()})
    for one, text in zip(stored, texts, strict=True):
        assert values.read(one, parts) == text
        assert values._texts.size <= 1000


def test_a_long_chain_of_items_is_unpacked() -> None:
    fields = [b"i%012d" % number for number in range(5_000)]
    parts = {fields[0]: b"0" + b"text"}
    parts |= {field: b"2" + base[1:] + b"0" + field for base, field in pairwise(fields)}
    assert unpack_item(fields[-1], parts, {}) == fields[-1]


@given(st.permutations(range(6)))
def test_items_are_copied_after_their_bases(order: list[int]) -> None:
    fields = [b"i%012d" % number for number in range(7)]
    packed = {fields[number]: b"2" + fields[number + 1][1:] + b"0" for number in order}
    ordered = [field for field, _ in bases_first(packed)]
    assert ordered == fields[5::-1]


def test_a_forgotten_item_is_not_compressed_against_itself() -> None:
    known = KnownThread()
    content = bytes(range(256))
    field = b"i" + b"1" * 12
    for forget in (known.forget_all_items, lambda: known.add_items([b"i%d" % number for number in range(ITEMS)])):
        known.add_items([field])
        known.add_recent(field, content)
        forget()
        assert field not in known.items
        assert not base_field(pack_item(content, known.recent))


def test_a_save_waits_for_the_saves_before_it_whose_values_it_may_refer_to() -> None:
    known = KnownThread()
    with known.in_order(checkpoint=False) as before_first, known.in_order(checkpoint=False) as before_second:
        assert (before_first, before_second) == ((), ()), "writes of different tasks are saved at the same time"
        with known.in_order(checkpoint=True) as before_checkpoint:
            assert len(before_checkpoint) == 2
            with known.in_order(checkpoint=False) as before_third:
                assert len(before_third) == 1
            assert not before_third[0].done()
    assert all(one.done() for one in (*before_checkpoint, *before_third))
    assert not known.under_way


def test_a_message_that_got_an_id_takes_few_bytes_besides_the_id() -> None:
    before = b"msgpack\0" + bytes(range(256)) * 4 + b"\xa2id\xc0\xa4type"
    after = before.replace(b"\xa2id\xc0", b"\xa2id\xd9$" + ID)
    field = b"i" + b"1" * 12
    assert len(pack_item(after, [(field, before)])) < 12 + 16 + 12


@settings(deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=30))
def test_a_damaged_splice_is_unreadable_or_another_text(damaged: bytes, base: bytes) -> None:
    with contextlib.suppress(Unreadable):
        assert isinstance(unsplice(b"u" + damaged, base), bytes)


@pytest.mark.parametrize(
    "path", ["", "~__pregel_pull, model", "~__pregel_push, 1", "\1model", "\2\1", "~__pregel_pull, "]
)
def test_the_path_of_a_task_is_read_back_as_it_was(path: str) -> None:
    assert unpack_path(pack_path(path)) == path


def test_a_dictionary_is_made_once_more_from_the_bodies_that_it_has_seen() -> None:
    known = Dictionary.of(b"k1", None, b"first")
    for number in range(COLLECTED):
        assert not known.is_ready()
        known = known.seen(b"body %d" % number)
    assert known.is_ready()
    learned = Dictionary.of(b"k2", known, b"last")
    assert learned.text == b"".join(b"body %d" % number for number in range(COLLECTED)) + b"last"
    assert not learned.seen(b"more").is_ready()


def test_a_dictionary_of_long_bodies_stays_within_its_bound() -> None:
    known = Dictionary(b"k1", b"", tuple(b"%d" % number * (DICTIONARY_BYTES // 3) for number in range(COLLECTED)))
    assert len(Dictionary.of(b"k2", known, b"x" * 10).text) <= DICTIONARY_BYTES
    assert len(Dictionary.of(b"k2", known, b"x" * 2 * DICTIONARY_BYTES).text) == 2 * DICTIONARY_BYTES
