"""cancel: a waiting run ends at once; the owner of a running run is asked to stop; another life of the run is not affected."""

from __future__ import annotations

import pytest

from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans.workers import Claimed
from tests.lua.attempts.test_claim import suspect
from tests.lua.store import LEASE, NOW, ROUTES, Store, delta


@pytest.mark.parametrize("where", ["ready", "suspect", "delayed", "expiring"])
def test_waiting_run_is_cancelled_at_once(store: Store, where: str) -> None:
    match where:
        case "suspect":
            id = suspect(store)
        case "delayed":
            id = store.enqueue(due="+1000")
        case _:
            id = store.enqueue(expires="9000" if where == "expiring" else "")
    store.later(5)
    assert store.cancel(id) == ["cancelled"]
    assert (store.status(id), store.places(id)) == ("cancelled", ["ended:cancelled"])
    assert (store.run(id)["reason"], store.run(id)["ended"]) == ("cancelled", str(NOW + 5))
    assert store.line(store.keys.deadlines()) == []
    store.join()
    store.later(2000)
    store.due()
    assert store.claim(alone=True) == ("ok", [])


def test_cancelled_run_keeps_its_checkpoint_for_the_retention(store: Store) -> None:
    run = store.running()
    store.release(run, last=delta(1, count=1).wire())
    store.cancel(run.id)
    assert store.client.pttl(store.keys.ckpt(run.id)) > 0
    assert store.client.pttl(store.keys.messages(run.id, "1")) > 0
    assert store.members(store.keys.live()) == set()


def test_owner_of_a_running_run_is_asked_to_stop(store: Store) -> None:
    run = store.running()
    assert store.cancel(run.id, grace=7) == ["cancelling"]
    assert (store.status(run.id), store.run(run.id)["cancel"]) == ("running", str(NOW))
    assert store.score(store.keys.deadlines(), f"cancel:{run.id}") == NOW + 7000
    assert store.client.lrange(store.keys.inbox("w1"), 0, -1) == [b"cancel " + run.id.encode()]
    assert store.client.pttl(store.keys.inbox("w1")) > 0
    assert store.client.llen(store.keys.coordinator_bell()) == 1
    beat = store.beat()
    assert beat is not None
    assert beat.cancels == (run.id,)
    assert store.save(run, delta(1, count=1)) == "ok", "the owner still owns it"


def test_repeated_cancel_is_one_cancel(store: Store) -> None:
    run, waiting = store.running(), store.enqueue()
    store.cancel(run.id)
    store.cancel(waiting)
    store.later(5)
    with store.unchanged():
        assert store.cancel(run.id) == ["cancelling"]
        assert store.cancel(waiting) == ["cancelled"]


def test_second_cancel_does_not_extend_the_grace(store: Store) -> None:
    run = store.running()
    store.cancel(run.id, "o1", grace=10)
    store.later(5000)
    assert store.cancel(run.id, "o2", grace=10) == ["cancelling"]
    assert store.score(store.keys.deadlines(), f"cancel:{run.id}") == NOW + 10_000
    assert store.cancel(run.id, "o3", grace=1) == ["cancelling"]
    assert store.score(store.keys.deadlines(), f"cancel:{run.id}") == NOW + 6000


@pytest.mark.parametrize("ending", ["complete", "fail"])
def test_an_ending_after_the_request_ends_the_run_as_cancelled(store: Store, ending: str) -> None:
    run = store.running()
    store.cancel(run.id)
    assert getattr(store, ending)(run) == "cancelled"
    assert (store.status(run.id), store.places(run.id)) == ("cancelled", ["ended:cancelled"])
    assert "result" not in store.run(run.id)
    assert store.line(store.keys.deadlines()) == []
    with store.unchanged():
        assert store.cancel(run.id) == ["cancelled"]


def test_an_ending_after_a_kill_and_a_cancel_request_ends_the_run_as_cancelled(store: Store) -> None:
    run = store.running()
    store.kill(run)
    store.cancel(run.id)
    assert store.fail(run) == "cancelled"


def test_a_lost_owner_between_its_completion_and_its_release_leaves_a_run_that_ends_as_cancelled(store: Store) -> None:
    run = store.running()
    store.cancel(run.id)
    completion = next(attempt_plans.complete(store.keys, run.id, run.token, b"result", now=store.at))
    assert store.wire.ask([completion]) == [b"requested"]
    assert store.status(run.id) == "running"
    store.crash(run)
    assert store.status(run.id) == "cancelled"


def test_ended_run_stays_as_it_is(store: Store) -> None:
    run = store.running()
    store.complete(run)
    with store.unchanged():
        assert store.cancel(run.id) == ["ended", "completed"]


@pytest.mark.parametrize("life", [1, None])
def test_late_cancel_does_not_affect_another_life(store: Store, life: int | None) -> None:
    id = store.enqueue()
    store.cancel(id, "o1", life=life)
    store.revive(id)
    with store.unchanged():
        assert store.cancel(id, "o1", life=life) == ["changed"]
    store.take()
    with store.unchanged():
        assert store.cancel(id, "o1", life=life) == ["changed"]
    if life:
        with store.unchanged():
            assert store.cancel(id, "o2", life=life) == ["changed"]


@pytest.mark.parametrize("what", ["missing", "wrong type", "counters", "no token"])
def test_unreadable_run_is_reported_as_missing(store: Store, what: str) -> None:
    run = store.running()
    id = run.id
    match what:
        case "missing":
            id = store.id()
        case "wrong type":
            store.spoil(store.keys.run(id))
        case "counters":
            store.client.hset(store.keys.run(id), "counters", "1 2 3")
        case _:
            store.client.hdel(store.keys.run(id), "token")
    with store.unchanged():
        assert store.cancel(id) == ["missing"]


@pytest.mark.parametrize("then", ["release", "retry", "reject", "crash", "expired lease", "force"])
def test_requested_cancel_is_honoured_by_every_call_that_ends_an_attempt(store: Store, then: str) -> None:
    run = store.running()
    store.tick_for(1000)
    store.cancel(run.id)
    match then:
        case "crash":
            store.crash(run)
        case "expired lease":
            store.tick_for(2 * LEASE)
            assert store.recover().cancelled == 1
        case "force":
            store.later(10_000)
            store.due()
        case _:
            assert getattr(store, then)(run) == "cancelled"
    assert (store.status(run.id), store.places(run.id)) == ("cancelled", ["ended:cancelled"])
    assert store.line(store.keys.deadlines()) == []
    assert not store.client.hexists(store.keys.worker("w1"), f"cancel:{run.id}")
    with store.unchanged():
        assert store.complete(run) == "fenced"


@pytest.mark.parametrize("before", ["release", "retry", "reject", "crash", "unasked"])
def test_requeued_run_with_a_requested_cancel_ends_at_once(store: Store, before: str) -> None:
    run = store.running()
    match before:
        case "crash":
            store.crash(run)
        case "unasked":
            store.release(run, mode="unasked")
        case _:
            getattr(store, before)(run)
    assert store.cancel(run.id) == ["cancelled"]
    assert store.places(run.id) == ["ended:cancelled"]


def test_cancel_of_one_run_does_not_affect_another_run(store: Store) -> None:
    run, other = store.running(), store.running()
    store.cancel(run.id)
    store.release(run)
    store.release(other)
    beat = store.beat()
    assert beat is not None
    assert beat.cancels == ()
    assert store.take().id == other.id


def test_run_is_found_in_its_ready_queue_after_its_schema_changed(store: Store) -> None:
    run: Claimed = store.running()
    store.save(run, delta(1, schema=2))
    store.release(run)
    assert store.places(run.id) == [f"ready:{ROUTES[2]}"]
    store.cancel(run.id)
    assert store.places(run.id) == ["ended:cancelled"]
