"""The scripts of graphs: each answer, a repetition, a stale owner, and what a save must not overwrite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from coordinator.store.plans.attempts import netstrings
from coordinator.store.plans.workers import Claimed
from coordinator.store.scripts import GRAPH_COPY, GRAPH_DELETE, GRAPH_GET, GRAPH_HISTORY, GRAPH_SAVE
from tests.lua.store import Store, delta

ITEM = b"i" + b"d" * 12
ENTRY = b"r" + b"d" * 12
LIST = b"l" + b"g" * 8 + b"1"
CHUNK = b"l" + b"g" * 8 + b"0"


def save(store: Store, items: Sequence[tuple[Any, Any]] = (), **given: Any) -> Any:
    parts: dict[str, Any] = {
        "claim": "", "thread": "t", "ttl": "0", "mode": "w", "ns": "", "id": "1", "parent": "", "by": "", "body": b"p0body",
        "refs": netstrings([b"ch\0s1"]),
    }  # fmt: skip
    parts |= given
    fields = [part for pair in items for part in pair]
    call = netstrings(part.encode() if isinstance(part, str) else part for part in (*parts.values(), *fields))
    return store.wire.ask([GRAPH_SAVE.call(store.keys.at, call=call)])[0]


def get(store: Store, id: str = "", owner: str = "", ns: str = "") -> Any:
    return store.wire.ask([GRAPH_GET.call(store.keys.at, owner=owner, thread="t", ns=ns, id=id, room=10_000)])[0]


def delete(store: Store, mode: str, *names: str, claim: str = "") -> Any:
    call = GRAPH_DELETE.call(store.keys.at, [(name,) for name in names], claim=claim, thread="t", mode=mode)
    return store.wire.ask([call])[0]


def content(store: Store, owner: str = "", thread: str = "t") -> dict[bytes, bytes]:
    return dict(store.client.hgetall(store.keys.graph(owner, thread)))


def test_saved_checkpoint_is_the_newest_one(store: Store) -> None:
    assert save(store, [(b"bch", b"e" + ENTRY), (ITEM, b"0value")]) == [b"ok"]
    assert save(store, id="2", parent="1", refs=netstrings([b"other\0i1"])) == [b"ok"]
    assert get(store)[:4] == [b"ok", b"2", b"1:1p0body", netstrings([b"other\0i1"])]
    assert get(store, "1") == [
        b"ok", b"1", b"0:p0body", netstrings([b"ch\0s1"]), [b"b\0ch\0s1", b"e" + ENTRY], [ITEM, b"0value"],
    ]  # fmt: skip
    assert get(store, "3") == [b"missing"]
    assert get(store, ns="other") == [b"missing"]


def test_uuid_in_sixteen_bytes_is_stored_as_text(store: Store) -> None:
    ids = [UUID(int=number << 64 | 0xFF) for number in (1, 2, 3)]
    packed = [b"\0" + id.bytes for id in ids]
    assert save(store, id=packed[0], by=packed[2]) == [b"ok"]
    assert save(store, id=packed[1], parent=packed[0]) == [b"ok"]
    assert save(store, [(b"w0", b"2:che" + b"s\0\0")], mode="t", id=packed[1], by=packed[2], refs="") == [b"ok"]
    first, second, third = (str(id).encode() for id in ids)
    assert get(store)[1:3] == [second, b"36:" + first + b"p0body"]
    assert b"w\0" + second + b"\0" + third + b"\0" + b"0" in content(store)
    assert store.client.exists(store.keys.graph_run(str(ids[2]))) == 1


def test_patch_changes_the_references_of_the_parent(store: Store) -> None:
    save(store, refs=netstrings([b"a\0s1", b"b\0s1"]))
    assert save(store, id="2", parent="1", mode="p", refs=netstrings([b"b\0s2", b"c\0s1"])) == [b"ok"]
    assert get(store)[3] == netstrings([b"a\0s1", b"b\0s2", b"c\0s1"])


def test_patch_without_its_parent_is_refused(store: Store) -> None:
    assert save(store, id="2", parent="1", mode="p") == [b"gap", b"r"]
    assert content(store) == {}


def test_reference_to_a_value_that_the_server_lacks_is_refused(store: Store) -> None:
    assert save(store, [(b"bch", b"e" + ENTRY)]) == [b"gap", b"i"]
    assert content(store) == {}


def test_chunk_of_a_list_is_not_overwritten_by_another_one(store: Store) -> None:
    first, other = b"s\x00\x01a", b"s\x00\x01b"
    assert save(store, [(CHUNK, first), (b"bch", LIST)]) == [b"ok"]
    assert save(store, [(CHUNK, first), (b"bch", LIST)]) == [b"ok"], "a repeated call is carried out again"
    assert save(store, [(CHUNK, other), (b"bch", LIST)], id="2") == [b"gap", b"l"]
    assert get(store)[5] == [CHUNK, first]


def test_list_whose_last_chunk_is_missing_is_refused(store: Store) -> None:
    assert save(store, [(b"bch", LIST)]) == [b"gap", b"l"]
    second = b"l" + b"g" * 8 + b"1"
    assert save(store, [(second, b"s\x00\x01a"), (b"bch", LIST[:-1] + b"2")]) == [b"gap", b"l"]
    assert content(store) == {}


def test_item_whose_base_is_missing_is_refused(store: Store) -> None:
    assert save(store, [(ITEM, b"2" + b"e" * 12 + b"0x")]) == [b"gap", b"i"]


OTHER = b"i" + b"e" * 12


def test_item_whose_base_comes_later_in_the_call_is_refused(store: Store) -> None:
    circle = [(ITEM, b"2" + OTHER[1:] + b"0x"), (OTHER, b"2" + ITEM[1:] + b"0y")]
    assert save(store, circle) == [b"gap", b"i"]
    assert save(store, circle[:1] * 2) == [b"gap", b"i"]
    assert save(store, [(ITEM, b"2" + ITEM[1:] + b"0x")]) == [b"gap", b"i"], "an item is not its own base"
    assert save(store, [(OTHER, b"0y"), circle[0]]) == [b"ok"]


def test_stored_item_is_not_replaced_by_another_form_of_the_same_content(store: Store) -> None:
    save(store, [(ITEM, b"0x"), (OTHER, b"2" + ITEM[1:] + b"0y")])
    assert save(store, [(OTHER, b"0y"), (ITEM, b"2" + OTHER[1:] + b"0x")], id="2") == [b"ok"]
    assert content(store)[ITEM] == b"0x", "otherwise each of the two would need the other one"
    assert content(store)[OTHER] == b"2" + ITEM[1:] + b"0y"


def test_copy_does_not_replace_a_stored_item(store: Store) -> None:
    save(store, [(ITEM, b"0x"), (OTHER, b"2" + ITEM[1:] + b"0y")])
    items = [(OTHER, b"0y"), (ITEM, b"2" + OTHER[1:] + b"0x")]
    call = GRAPH_COPY.call(store.keys.at, items, claim="", thread="t", ttl=0, copy="c")
    assert store.wire.ask([call])[0] == [b"ok"]
    assert content(store)[ITEM] == b"0x"


def test_body_whose_dictionary_is_missing_is_refused(store: Store) -> None:
    assert save(store, body=b"zdictiona0x") == [b"gap", b"k"]


def test_short_id_names_the_newest_checkpoint_only(store: Store) -> None:
    ids = [f"1f0a1b2c-000{number}-6000-8000-000000000000" for number in range(3)]
    save(store, id=ids[0])
    assert save(store, [(b"w0", b"1:aes\x00\x011")], mode="t", refs="", by="task", id="=0000-6000") == [b"ok"]
    assert save(store, id=ids[1], mode="p", parent="=0000-6000") == [b"ok"]
    assert get(store)[1:3] == [ids[1].encode(), b"36:" + ids[0].encode() + b"p0body"]
    assert save(store, [], mode="t", refs="", by="task", id="=0000-6000") == [b"gap", b"n"]
    assert save(store, id=ids[2], mode="p", parent="=0000-6000") == [b"gap", b"n"]


def test_channels_of_one_version_share_it_in_a_call(store: Store) -> None:
    save(store, [(b"bother", b"es\x00\x01v")], refs=netstrings([b"ch\0s1", b"other"]))
    assert get(store)[3:5] == [netstrings([b"ch\0s1", b"other\0s1"]), [b"b\0other\0s1", b"es\x00\x01v"]]


def test_first_regular_write_of_a_task_stays_and_a_special_write_is_replaced(store: Store) -> None:
    save(store)
    for value in (b"1:aes\x00\x011", b"1:bes\x00\x012"):
        assert save(store, [(b"w0", value), (b"w-1", value)], mode="t", refs="path", by="task") == [b"ok"]
    assert get(store)[4] == [
        b"w\0001\0task\x00-1", b"1:b4:pathes\x00\x012", b"w\0001\0task\x000", b"1:a4:pathes\x00\x011",
    ]  # fmt: skip


def test_only_the_owner_of_a_run_saves_and_deletes_its_graph(store: Store) -> None:
    run = store.running()
    claim, stale = f"{run.id} {run.token}", f"{run.id} 1-1-other"
    assert save(store, claim=claim) == [b"ok"]
    assert save(store, id="2", claim=stale) == [b"fenced"]
    assert get(store, owner=run.id)[1] == b"1"
    assert delete(store, "thread", claim=stale) == [b"fenced"]
    call = GRAPH_COPY.call(store.keys.at, [(b"x", b"y")], claim=stale, thread="t", ttl=0, copy="c")
    assert store.wire.ask([call])[0] == [b"fenced"]
    assert b"x" not in content(store, run.id)
    assert delete(store, "thread", claim=claim) == [b"ok"]
    assert content(store, run.id) == {}


def test_worker_that_does_not_own_the_run_saves_nothing(store: Store, stranger: Claimed) -> None:
    assert save(store, claim=f"{stranger.id} {stranger.token}") == [b"fenced"]
    assert content(store, stranger.id) == {}


def test_deleted_checkpoint_takes_the_values_with_it_that_no_other_one_uses(store: Store) -> None:
    other = b"i" + b"e" * 12
    save(store, [(b"bch", b"e" + ENTRY), (ITEM, b"0v"), (b"kdictiona", b"0k")], body=b"zdictionarest")
    save(store, [(b"w0", b"1:ae" + ENTRY)], mode="t", refs="path", by="task")
    save(store, [(b"bch", b"er" + b"e" * 12), (other, b"0v")], id="2", parent="1", refs=netstrings([b"ch\0s2"]))
    assert delete(store, "checkpoints", "\0001") == [b"ok"]
    assert sorted(content(store)) == sorted([b"b\0ch\0s2", b"c\0002", b"r\0002", other])
    assert get(store, "1") == [b"missing"]
    assert delete(store, "checkpoints", "\0001") == [b"ok"], "a repeated call changes nothing"
    assert delete(store, "checkpoints", "\0002") == [b"ok"]
    assert not store.client.exists(
        store.keys.graph("", "t"), store.keys.graph_index("", "t"), store.keys.graph_threads("")
    )


def test_item_against_which_another_one_is_compressed_stays(store: Store) -> None:
    middle, derived = b"i" + b"e" * 12, b"i" + b"f" * 12
    items = [(ITEM, b"0base"), (middle, b"2" + b"d" * 12 + b"0m"), (derived, b"2" + b"e" * 12 + b"0x")]
    save(store, items)
    save(store, [(b"bch", b"er" + b"f" * 12)], id="2", refs=netstrings([b"ch\0s2"]))
    delete(store, "checkpoints", "\0001")
    assert set(content(store)) >= {ITEM, middle, derived}
    assert set(get(store)[5][::2]) == {ITEM, middle, derived}


def test_value_that_another_checkpoint_uses_stays(store: Store) -> None:
    save(store, [(b"bch", LIST), (CHUNK, ENTRY), (ITEM, b"0v")])
    save(store, id="2", parent="1", mode="p", refs=b"")
    assert delete(store, "checkpoints", "\0001") == [b"ok"]
    assert get(store)[4:] == [[b"b\0ch\0s1", LIST], [CHUNK, ENTRY, ITEM, b"0v"]]


def test_thread_is_found_by_the_run_of_langgraph_until_its_checkpoints_are_deleted(store: Store) -> None:
    save(store, by="r")
    save(store, id="2", by="r")
    assert store.client.smembers(store.keys.graph_run("r")) == {b"t"}
    delete(store, "checkpoints", "\0001")
    assert store.client.smembers(store.keys.graph_run("r")) == {b"t"}
    delete(store, "checkpoints", "\0002")
    assert store.client.smembers(store.keys.graph_run("r")) == set()


def test_deleted_thread_leaves_no_key(store: Store) -> None:
    before = set(store.client.keys(f"{store.keys.at}*"))
    save(store, [(ITEM, b"0v")], by="r")
    assert delete(store, "thread") == [b"ok"]
    assert set(store.client.keys(f"{store.keys.at}*")) == before


def test_all_keys_of_a_thread_with_a_ttl_expire(store: Store) -> None:
    save(store, by="r", ttl="60000")
    keys = store.keys
    for key in (keys.graph("", "t"), keys.graph_index("", "t"), keys.graph_run("r")):
        assert 0 < store.client.pttl(key) <= 60_000
    assert float(store.client.zscore(keys.graph_threads(""), "t")) > store.now


def test_history_walks_to_the_last_stored_value_of_each_channel(store: Store) -> None:
    save(store, [(b"bch", b"e" + ENTRY), (ITEM, b"0seed")])
    for number in (1, 2, 3):
        if number > 1:
            save(store, id=str(number), parent=str(number - 1), refs=netstrings([b"ch\0s%d" % number]))
        value = b"2:ches\x00\x01%d" % number
        save(store, [(b"w0", value), (b"w1", b"1:xes\x00\x01x")], mode="t", refs="path", id=str(number), by="task")

    def history(id: str, most: int = 10) -> Any:
        call = GRAPH_HISTORY.call(
            store.keys.at, [(b"ch",)], owner="", thread="t", ns="", id=id, most=most, room=10_000
        )  # fmt: skip
        return store.wire.ask([call])[0]

    names = [b"w\x00%d\0task\x000" % number for number in (2, 1)]
    answer = history("2")
    assert answer[1:3] == [b"", [b"ch", b"e" + ENTRY]]
    assert answer[3][::2] == names
    assert answer[4] == [ITEM, b"0seed"]
    assert history("2", most=1)[1:3] == [b"1", []], "the caller continues with the next checkpoint"


def test_copied_thread_has_the_same_content(store: Store) -> None:
    save(store, [(ITEM, b"0v")], by="r")
    items = [
        *content(store).items(),
        *((b"", name) for name in store.client.zrange(store.keys.graph_index("", "t"), 0, -1)),
    ]

    def copy(*fields: tuple[bytes, bytes]) -> Any:
        call = GRAPH_COPY.call(store.keys.at, fields, claim="", thread="copy", ttl=1000, copy="c")
        return store.wire.ask([call])[0]

    assert copy((b"xc", b"1")) == [b"ok"]
    assert copy(*items, (b"xc", b"")) == [b"ok"]
    assert content(store, thread="copy") == content(store)
    assert store.client.smembers(store.keys.graph_run("r")) == {b"t", b"copy"}
    assert store.client.zrange(store.keys.graph_threads(""), 0, -1) == [b"copy", b"t"]


def test_names_of_a_copy_are_refused_after_a_deletion(store: Store) -> None:
    def copy(*fields: tuple[bytes, bytes]) -> Any:
        call = GRAPH_COPY.call(store.keys.at, fields, claim="", thread="t", ttl=0, copy="c")
        return store.wire.ask([call])[0]

    for mode in ("thread", "checkpoints"):
        assert copy((b"xc", b"1"), (b"c\0001", b"0:p0body"), (b"r\0001", b"")) == [b"ok"]
        assert delete(store, mode) == [b"ok"]
        assert copy((b"", b"c\0001")) == [b"gap"]
        assert not store.client.exists(store.keys.graph_index("", "t"))


def test_name_of_a_deleted_chunk_stays_while_the_chunk_before_it_is_used(store: Store) -> None:
    chunk, longer = CHUNK[:-1] + b"1", LIST[:-1] + b"2"
    save(store, [(b"bch", LIST), (CHUNK, b"s\x00\x01a")])
    save(store, [(b"bch", longer), (chunk, b"s\x00\x01b")], id="2", refs=netstrings([b"ch\0s2"]))
    for _ in range(2):
        assert delete(store, "checkpoints", "\0002") == [b"ok"]
        assert content(store)[chunk] == b""
    other = [(b"bch", longer), (chunk, b"s\x00\x01c")]
    assert save(store, other, id="3", refs=netstrings([b"ch\0s3"])) == [b"gap", b"l"]
    following = [(b"bch", LIST[:-1] + b"3"), (CHUNK[:-1] + b"2", b"s\x00\x01c")]
    assert save(store, following, id="3", refs=netstrings([b"ch\0s3"])) == [b"gap", b"l"]
    assert delete(store, "checkpoints", "\0001") == [b"ok"]
    assert content(store) == {}


def test_checkpoint_whose_unchanged_channel_is_missing_is_refused(store: Store) -> None:
    assert save(store, [(b"bch", b"")]) == [b"gap", b"b"]
    assert content(store) == {}
    save(store, [(b"bch", b"es\x00\x01v")])
    assert save(store, [(b"bch", b"")], id="2") == [b"ok"]
    assert get(store, "2")[4] == [b"b\0ch\0s1", b"es\x00\x01v"]


def graph_keys(store: Store, id: str) -> tuple[str, str, str]:
    return store.keys.graph(id, "t"), store.keys.graph_index(id, "t"), store.keys.graph_threads(id)


@pytest.mark.parametrize("how", ["complete", "fail"])
def test_graph_of_an_ended_run_is_kept_as_long_as_the_run(store: Store, how: str) -> None:
    run = store.running()
    save(store, claim=f"{run.id} {run.token}")
    assert [store.client.pttl(key) for key in graph_keys(store, run.id)] == [-1, -1, -1]
    getattr(store, how)(run)
    kept = store.client.pttl(store.keys.run(run.id))
    assert all(0 < store.client.pttl(key) <= kept for key in graph_keys(store, run.id))


def test_graph_of_a_run_without_retention_is_deleted_with_it(store: Store) -> None:
    id = store.enqueue(retention="0")
    run = store.take()
    assert run.id == id
    save(store, claim=f"{run.id} {run.token}")
    store.complete(run)
    assert not store.client.exists(*graph_keys(store, run.id))


@pytest.mark.parametrize("from_start", [True, False])
def test_revived_run_has_its_graph_unless_it_starts_again(store: Store, from_start: bool) -> None:
    run = store.running()
    save(store, claim=f"{run.id} {run.token}")
    store.save(run, delta(1, state=b"s"))
    store.fail(run)
    store.revive(run.id, from_start=from_start)
    assert store.client.exists(*graph_keys(store, run.id)) == (0 if from_start else 3)
    assert all(store.client.pttl(key) < 0 for key in graph_keys(store, run.id))


def test_retry_from_the_start_deletes_the_graph(store: Store) -> None:
    run = store.running()
    save(store, claim=f"{run.id} {run.token}")
    store.retry(run, from_start=True)
    assert not store.client.exists(*graph_keys(store, run.id))
