"""transcript: pages of the saved messages of a run; and a completion that keeps them."""

from __future__ import annotations

import pytest

from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import output as output_plans
from coordinator.store.plans.output import TranscriptPage
from tests.lua.store import Store, delta


def page(store: Store, id: str, start: int = 0, room: int = 1000) -> TranscriptPage:
    return store.do(output_plans.read_transcript(store.keys, id, start, room))


def test_page_begins_with_the_chunk_that_contains_the_message(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, count=3))
    store.save(run, delta(2, base=3, count=9))
    store.save(run, delta(3, base=12, count=1))
    assert page(store, run.id) == TranscriptPage(
        "ok", 1, 13, ((0, b"m0;m1;m2;"), (3, b"m3;m4;m5;m6;m7;m8;m9;m10;m11;"), (12, b"m12;"))
    )
    assert [first for first, _ in page(store, run.id, 2).chunks] == [0, 3, 12]
    assert [first for first, _ in page(store, run.id, 11).chunks] == [3, 12]
    assert [first for first, _ in page(store, run.id, 12).chunks] == [12]


def test_page_has_at_least_one_chunk_and_ends_when_the_room_is_used(store: Store) -> None:
    run = store.running()
    for number in range(4):
        store.save(run, delta(number + 1, base=number, count=1))
    assert [first for first, _ in page(store, run.id, 1, room=0).chunks] == [1]
    assert [first for first, _ in page(store, run.id, 0, room=6).chunks] == [0, 1]


def test_run_without_a_checkpoint_has_no_messages(store: Store) -> None:
    assert page(store, store.enqueue()) == TranscriptPage("ok")
    assert page(store, store.id()) == TranscriptPage("missing")


@pytest.mark.parametrize("damaged", ["ckpt", "messages"])
def test_damaged_checkpoint_is_reported(store: Store, damaged: str) -> None:
    run = store.running()
    store.save(run, delta(1, count=3))
    store.spoil(store.keys.ckpt(run.id) if damaged == "ckpt" else store.keys.messages(run.id, "1"))
    assert page(store, run.id) == TranscriptPage("unreadable")


def test_completion_keeps_the_checkpoint_only_if_it_is_asked_to(store: Store) -> None:
    for keep in (True, False):
        run = store.running()
        store.save(run, delta(1, count=3))
        plan = attempt_plans.complete(store.keys, run.id, run.token, b"r", now=store.at, keep=keep)
        assert store.do(plan) == "ok"
        assert page(store, run.id).length == (3 if keep else 0)
        if keep:
            assert store.client.pttl(store.keys.ckpt(run.id)) > 0
            assert store.client.pttl(store.keys.messages(run.id, "1")) > 0


def test_completion_without_retention_keeps_nothing(store: Store) -> None:
    run = store.running(retention="0")
    store.save(run, delta(1, count=3))
    store.do(attempt_plans.complete(store.keys, run.id, run.token, b"r", now=store.at, keep=True))
    assert page(store, run.id).length == 0
