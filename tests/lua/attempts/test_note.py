"""note: only the owner of a run can set its note."""

from __future__ import annotations

from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans.workers import Claimed
from tests.lua.store import Store


def test_note_of_the_owner_is_stored(store: Store) -> None:
    run = store.running()
    assert store.do(attempt_plans.note(store.keys, run.id, run.token, b"half")) == "ok"
    assert store.run(run.id)["note"] == "half"
    with store.unchanged():
        assert store.do(attempt_plans.note(store.keys, run.id, run.token, b"half")) == "ok"


def test_note_of_another_worker_is_refused(store: Store, stranger: Claimed) -> None:
    with store.unchanged():
        assert store.do(attempt_plans.note(store.keys, stranger.id, stranger.token, b"stale")) == "fenced"
