"""load: only the owner reads a checkpoint, page by page."""

from __future__ import annotations

import pytest

from coordinator.store.plans import workers as worker_plans
from coordinator.store.plans.workers import Claimed
from coordinator.store.replies import pairs
from tests.lua.store import Store, delta


def large(store: Store) -> Claimed:
    run = store.running()
    for seq in range(1, 6):
        assert (
            store.save(run, delta(seq, base=10 * (seq - 1), count=10, state=b"s", phases=((f"phase:-:p#{seq}", b"o"),)))
            == "ok"
        )
    store.release(run)
    return store.take(inline=10)


def test_all_pages_together_are_the_checkpoint(store: Store) -> None:
    run = large(store)
    for page_bytes in (1, 35, 70, 10_000):
        fields, chunks, effects = store.load(run, page_bytes=page_bytes)
        assert (pairs(fields)["state"], effects) == (b"s", [])
        assert len(pairs(fields)) == 7
        found = sorted((int(index), chunk) for index, chunk in pairs(chunks).items())
        assert [index for index, _ in found] == [0, 10, 20, 30, 40]
        assert b"".join(chunk for _, chunk in found) == b"".join(b"m%d;" % i for i in range(50))


def test_run_without_a_checkpoint_loads_nothing(store: Store) -> None:
    assert store.load(store.running()) == [[], [], []]


def test_only_the_owner_loads_a_checkpoint(store: Store, stranger: Claimed) -> None:
    with store.unchanged():
        assert store.load(stranger) == "fenced"


def test_every_page_is_fenced(store: Store) -> None:
    run = large(store)
    plan = worker_plans.load(store.keys, run.id, run.token, page_bytes=1)
    reply = store.wire.ask([next(plan)])[0]
    second = plan.send(reply)
    store.crash(run)
    with pytest.raises(StopIteration) as done:
        plan.send(store.wire.ask([second])[0])
    assert done.value.value == "fenced"


def test_unreadable_head_is_reported(store: Store) -> None:
    run = large(store)
    store.client.hset(store.keys.ckpt(run.id), "head", "nonsense")
    assert store.load(run) == "unreadable"
