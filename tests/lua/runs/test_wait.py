"""wait: an ending between the check and the registration is never missed."""

from __future__ import annotations

import pytest

from tests.lua.store import NOW, Store


def test_open_run_registers_the_waiting_client(store: Store) -> None:
    id = store.enqueue()
    assert store.wait(id) == ["open", "queued"]
    assert store.members(store.keys.waiters(id)) == {"c1"}
    assert 0 < store.client.pttl(store.keys.waiters(id)) <= 20_000
    with store.unchanged():
        store.wait(id)
    store.take()
    assert store.wait(id, "c2") == ["open", "running"]
    assert store.members(store.keys.waiters(id)) == {"c1", "c2"}


def test_ended_run_returns_its_ending(store: Store) -> None:
    runs = [store.running() for _ in range(3)]
    store.complete(runs[0], b"result")
    store.fail(runs[1], b"boom")
    store.cancel(runs[2].id)
    store.release(runs[2])
    with store.unchanged():
        assert store.wait(runs[0].id)[:5] == ["ended", "completed", "result", "", ""]
        assert store.wait(runs[1].id)[:5] == ["ended", "failed", "", "boom", ""]
        assert store.wait(runs[2].id)[:6] == ["ended", "cancelled", "", "", "cancelled", str(NOW)]


def test_wait_for_a_bare_tombstone_says_that_nothing_was_kept(store: Store) -> None:
    run = store.running(retention="0")
    store.complete(run)
    assert store.wait(run.id)[-1] == "bare"


@pytest.mark.parametrize("how", ["missing", "wrong type"])
def test_missing_run_is_reported_as_missing(store: Store, how: str) -> None:
    id = store.id()
    if how == "wrong type":
        store.spoil(store.keys.run(id))
    with store.unchanged():
        assert store.wait(id) == ["missing"]


def test_client_that_blocks_next_is_registered_with_an_open_run(store: Store) -> None:
    id = store.enqueue()
    assert store.register(id) == ["open", "queued"]
    assert store.members(store.keys.waiters(id)) == {"c1"}
    assert not store.client.exists(store.keys.wake("c1"))


@pytest.mark.parametrize("status", ["ended", "missing"])
def test_client_that_blocks_next_gets_a_hint_if_the_run_will_not_end(store: Store, status: str) -> None:
    id = store.id()
    if status == "ended":
        run = store.running()
        store.complete(run, b"result")
        id = run.id
    assert store.register(id) == ["hinted"]
    assert store.client.lrange(store.keys.wake("c1"), 0, -1) == [id.encode()]
    assert 0 < store.client.pttl(store.keys.wake("c1")) <= 60_000
    assert not store.client.exists(store.keys.waiters(id))


@pytest.mark.parametrize("ending", ["complete", "fail", "cancel", "force", "dead", "expire"])
def test_every_ending_wakes_waiting_clients(store: Store, ending: str) -> None:
    id = store.enqueue(expires="5000")
    if ending == "cancel":
        store.wait(id)
        store.cancel(id)
    elif ending == "expire":
        store.wait(id)
        store.later(5000)
        store.due()
    else:
        run = store.take()
        store.wait(id)
        if ending in ("complete", "fail"):
            getattr(store, ending)(run)
        elif ending == "force":
            store.cancel(id)
            store.later(10_000)
            store.due()
        else:
            store.crash(run)
            store.crash(store.take("w2"))
            store.later(5000)
            store.due()
            store.crash(store.take("w3", alone=True))
    assert store.client.lrange(store.keys.wake("c1"), 0, -1) == [id.encode()]


def test_number_of_registered_clients_is_limited(store: Store) -> None:
    id = store.enqueue()
    store.client.sadd(store.keys.waiters(id), *(f"client-{n}" for n in range(1000)))
    assert store.wait(id, "one-more") == ["open", "queued"]
    assert store.client.scard(store.keys.waiters(id)) == 1000


def test_wake_list_is_limited(store: Store) -> None:
    store.client.rpush(store.keys.wake("c1"), *(["x"] * 10_000))
    run = store.running()
    store.wait(run.id)
    store.complete(run)
    assert store.client.llen(store.keys.wake("c1")) == 10_000
    assert store.client.lindex(store.keys.wake("c1"), -1) == run.id.encode()
