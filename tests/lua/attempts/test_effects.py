"""Effects of `run.once`: stored with a save, fenced like it, and kept for longer than the checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.store.plans import clients as client_plans
from coordinator.store.plans.workers import Claimed
from coordinator.store.replies import pairs
from tests.lua.store import Store, delta

BEGUN, DONE = ("effect:begun:charge", b"1-1-w1"), ("effect:done:charge", b"receipt")


def effects(store: Store, id: str) -> dict[str, bytes]:
    return {name.decode(): value for name, value in store.client.hgetall(store.keys.effects(id)).items()}


def begin(store: Store) -> Claimed:
    run = store.running()
    assert store.save(run, delta(1, phases=(BEGUN,))) == "ok"
    return run


def test_begun_effect_is_stored_beside_the_checkpoint(store: Store) -> None:
    run = begin(store)
    assert effects(store, run.id) == {"begun:charge": b"1-1-w1"}
    assert store.run(run.id)["beside"] == "e"
    assert store.phases(run.id) == {}


def test_done_replaces_begun_in_one_save(store: Store) -> None:
    run = begin(store)
    assert store.save(run, delta(2, phases=(DONE,), drop=(BEGUN[0],))) == "ok"
    assert effects(store, run.id) == {"done:charge": b"receipt"}
    with store.unchanged():
        assert store.save(run, delta(2, phases=(DONE,), drop=(BEGUN[0],))) == "ok"
        assert store.save(run, delta(1, phases=(BEGUN,))) == "old"


def test_effect_is_progress(store: Store) -> None:
    run = begin(store)
    assert store.head(run.id)["progress"] == 1
    store.save(run, delta(2, phases=(DONE,), drop=(BEGUN[0],)))
    assert store.head(run.id)["progress"] == 2


def test_only_the_owner_begins_an_effect(store: Store, stranger: Claimed) -> None:
    with store.unchanged():
        assert store.save(stranger, delta(1, phases=(BEGUN,))) == "fenced"


def test_effects_survive_a_save_of_the_whole_checkpoint(store: Store) -> None:
    run = begin(store)
    assert store.save(run, delta(2, acked=0, count=1, state=b"s")) == "ok"
    assert effects(store, run.id) == {"begun:charge": b"1-1-w1"}


def test_claim_answers_with_the_effects(store: Store) -> None:
    run = begin(store)
    store.crash(run)
    again = store.take("w2")
    _, _, stored = again.checkpoint
    assert pairs(stored) == {"begun:charge": b"1-1-w1"}
    assert store.claim("w2", number=1)[1] == [again]


def test_large_effects_are_loaded_in_pages(store: Store) -> None:
    run = begin(store)
    store.save(run, delta(2, phases=(("effect:done:large", b"x" * 1000),)))
    store.crash(run)
    again = store.take("w2", inline=500)
    assert again.checkpoint == "paged"
    assert set(pairs(store.load(again)[2])) == {"begun:charge", "done:large"}


@pytest.mark.parametrize("inline", [1000, 1])
def test_retry_from_the_start_keeps_the_effects(store: Store, inline: int) -> None:
    run = begin(store)
    assert store.retry(run, from_start=True) == "ok"
    store.later(1000)
    store.due()
    again = store.take("w2", inline=inline)
    assert (again.checkpoint == "paged") == (inline == 1)
    fields, chunks, stored = store.load(again)
    assert (fields, chunks, pairs(stored)) == ([], [], {"begun:charge": b"1-1-w1"})


@pytest.mark.parametrize("from_start", [False, True])
def test_revive_keeps_the_effects(store: Store, from_start: bool) -> None:
    run = begin(store)
    store.fail(run)
    kept = store.client.pttl(store.keys.run(run.id))
    assert 0 < store.client.pttl(store.keys.effects(run.id)) <= kept
    assert store.revive(run.id, from_start=from_start) == "queued"
    assert store.client.pttl(store.keys.effects(run.id)) == -1
    assert effects(store, run.id) == {"begun:charge": b"1-1-w1"}


def ended_with_two_effects(store: Store) -> str:
    run = begin(store)
    store.save(run, delta(2, phases=(("effect:done:mail", b"sent"),)))
    store.fail(run)
    return run.id


def test_revive_forgets_all_effects(store: Store) -> None:
    id = ended_with_two_effects(store)
    assert store.revive(id, forget_effects=True) == "queued"
    assert effects(store, id) == {}


@pytest.mark.parametrize("forget", [True, ["charge", "mail"]])
def test_run_without_effects_and_checkpoint_starts_like_a_new_one(store: Store, forget: Any) -> None:
    id = ended_with_two_effects(store)
    store.revive(id, from_start=True, forget_effects=forget)
    assert store.take("w2").checkpoint is None


def test_revive_forgets_named_effects_once(store: Store) -> None:
    id = ended_with_two_effects(store)
    assert store.revive(id, forget_effects=["charge"]) == "queued"
    assert effects(store, id) == {"done:mail": b"sent"}
    run = store.take("w2")
    assert store.save(run, delta(3, phases=(BEGUN,))) == "ok"
    with store.unchanged():
        assert store.revive(id, forget_effects=["charge"]) == "queued", "a repeated call forgets nothing"


def test_revive_that_names_an_effect_that_the_run_does_not_have_changes_nothing(store: Store) -> None:
    id, plain = ended_with_two_effects(store), store.running("w2")
    store.fail(plain)
    with store.unchanged():
        assert store.revive(id, forget_effects=["charge", "chrge"]) == "unknown chrge"
        assert store.revive(plain.id, forget_effects=["charge"]) == "unknown charge"
    assert store.revive(id, forget_effects=["charge", "mail"]) == "queued"
    with store.unchanged():
        assert store.revive(id, forget_effects=["charge", "mail"]) == "queued", "a repeated call gets its first answer"


def test_effects_of_a_completed_run_are_deleted(store: Store) -> None:
    run = begin(store)
    store.complete(run)
    assert not store.client.exists(store.keys.effects(run.id))


def test_discard_deletes_the_effects(store: Store) -> None:
    run = begin(store)
    store.fail(run)
    store.do(client_plans.discard(store.keys, run.id, 1))
    assert not store.client.exists(store.keys.effects(run.id))


@pytest.mark.parametrize("ending", ["fail", "release"])
def test_effect_that_comes_with_the_ending_expires_with_the_run(store: Store, ending: str) -> None:
    run = store.running()
    if ending == "release":
        store.cancel(run.id)
    last = delta(1, phases=(DONE,)).wire()
    assert (store.fail(run, last=last) if ending == "fail" else store.release(run, last=last)) in ("ok", "cancelled")
    assert effects(store, run.id) == {"done:charge": b"receipt"}
    assert store.client.pttl(store.keys.effects(run.id)) > 0


def test_damaged_effects_refuse_the_save_and_the_load(store: Store) -> None:
    run = begin(store)
    store.spoil(store.keys.effects(run.id))
    with store.unchanged():
        assert store.save(run, delta(2, phases=(DONE,))) == "unreadable"
    assert store.save(run, delta(2, count=1)) == "ok", "a save without effects does not need them"
    store.crash(run)
    again = store.take("w2")
    assert (again.checkpoint, store.load(again)) == ("paged", "lost")


def lose(store: Store, id: str) -> None:
    """Delete the key of the effects, like an operator who repairs a damaged one."""
    assert store.client.delete(store.keys.effects(id)) == 1


@pytest.mark.parametrize("from_start", [False, True])
def test_run_whose_effects_are_lost_does_not_continue(store: Store, from_start: bool) -> None:
    run = begin(store)
    store.fail(run)
    lose(store, run.id)
    for life in range(2):
        assert (
            store.revive(run.id, f"r{life}", from_start=from_start, forget_effects=["charge"] if life else False)
            == "queued"
        )
        again = store.take(f"w{life + 2}")
        assert (again.checkpoint, store.load(again)) == ("paged", "lost")
        store.fail(again)
    store.revive(run.id, "r3", from_start=from_start, forget_effects=True)
    last = store.take("w5")
    assert last.checkpoint is None if from_start else len(last.checkpoint) == 2


@pytest.mark.parametrize("drop", [(), (BEGUN[0],)])
def test_save_does_not_create_lost_effects_again(store: Store, drop: tuple[str, ...]) -> None:
    run = begin(store)
    lose(store, run.id)
    with store.unchanged():
        assert store.save(run, delta(2, phases=(DONE,), drop=drop)) == "unreadable"
        assert store.save(run, delta(2, drop=(BEGUN[0],))) == "unreadable"
    assert store.save(run, delta(2, count=1)) == "ok"


def test_damaged_effects_refuse_the_withdrawal_of_an_effect(store: Store) -> None:
    run = begin(store)
    store.spoil(store.keys.effects(run.id))
    with store.unchanged():
        assert store.save(run, delta(2, drop=(BEGUN[0],))) == "unreadable"


def test_run_whose_only_effect_is_withdrawn_continues_without_effects(store: Store) -> None:
    run = begin(store)
    assert store.save(run, delta(2, drop=(BEGUN[0],))) == "ok"
    assert "beside" not in store.run(run.id)
    store.crash(run)
    again = store.take("w2")
    assert len(again.checkpoint) == 2
    assert store.save(again, delta(3, acked=2, phases=(BEGUN,))) == "ok"
    assert effects(store, run.id) == {"begun:charge": b"1-1-w1"}


def test_view_lists_the_effects(store: Store) -> None:
    id = ended_with_two_effects(store)
    reply: Any = store.do(client_plans.view(store.keys, id))
    assert sorted(reply[10]) == [b"begun:charge", b"done:mail"]


def test_run_without_effects_costs_the_claim_and_the_save_no_command_more(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, count=1, phases=(("phase:-:a#0", b"o"),)))
    assert not store.client.exists(store.keys.effects(run.id))
    assert "beside" not in store.run(run.id)
    store.crash(run)
    assert len(store.take("w2").checkpoint) == 2
