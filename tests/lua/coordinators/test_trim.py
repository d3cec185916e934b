"""trim: after its retention an ended run leaves no key and no member of a set."""

from __future__ import annotations

import pytest

from tests.lua.store import NOW, ROUTES, Store, delta

DAY = 86_400_000


def test_trim_forgets_runs_whose_retention_is_over(store: Store) -> None:
    first, second = store.running(retention="100000"), store.running()
    store.complete(first)
    store.complete(second)
    store.later(99_999)
    with store.unchanged():
        assert store.trim() == 0
    store.later(1)
    assert store.trim() == 1
    assert store.line(store.keys.ended("completed")) == [second.id]
    with store.unchanged():
        assert store.trim() == 0


def test_entries_set_aside_are_limited_by_count_and_age(store: Store) -> None:
    store.client.zadd(store.keys.aside(), {f"queued:{n}": NOW + n for n in range(10)})
    store.trim(cap=4)
    assert store.line(store.keys.aside()) == [f"queued:{n}" for n in range(6, 10)]
    store.later(7 * DAY + 7)
    store.trim()
    assert store.line(store.keys.aside()) == ["queued:8", "queued:9"]


ENDINGS = [
    "completed",
    "failed",
    "failed, with a delta",
    "dead",
    "cancelled",
    "cancelled while delayed",
    "cancelled while it waits for a signal",
    "completed after a wait",
    "forced",
    "expired",
    "recovered",
]


@pytest.mark.parametrize("retention", ["", "90000", "0"])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("signals", [False, True], ids=["", "with signals"])
def test_trimmed_run_leaves_nothing_behind(store: Store, ending: str, retention: str, signals: bool) -> None:
    """Every key without a TTL is removed; every key with one expires within the retention."""
    before = set(store.dump())
    id = store.enqueue(once="key", digest="d", expires="50000", retention=retention)
    store.wait(id)
    if signals:
        store.send(id, "early", operation="early", key="early")
    if ending == "expired":
        store.later(50_000)
        store.due()
    else:
        run = store.take()
        store.save(run, delta(1, count=1, state=b"s", phases=(("phase:-:a#0", b"o"),), note=b"n"))
        match ending:
            case "completed":
                store.complete(run)
            case "failed":
                store.fail(run)
            case "failed, with a delta":
                store.fail(run, last=delta(2, generation=2, count=5, unfinished=b"u").wire())
            case "cancelled":
                store.cancel(id)
                store.release(run, last=delta(2, base=1, count=1).wire())
            case "cancelled while delayed":
                store.retry(run)
                store.cancel(id)
            case "cancelled while it waits for a signal":
                store.suspend(run, deadline=NOW + 100 * DAY, t=0)
                store.cancel(id)
            case "completed after a wait":
                store.suspend(run, t=0)
                store.send(id, operation="late", key="late")
                store.complete(store.take())
            case "forced":
                store.cancel(id)
                store.later(10_000)
                store.due()
            case "dead":
                for worker in ("w1", "w2", "w3", "w4"):
                    store.abandon(worker)
                    store.later(5000)
                    store.due()
                    if store.status(id) != "dead":
                        store.take(f"w{int(worker[1]) + 1}", alone=True)
            case _:
                store.cancel(id)
                store.abandon()
    if signals:  # a repeated send and one that comes too late change nothing
        assert store.send(id, "early", operation="early", key="early") == ["sent"]
        assert store.send(id, "early", operation="other")[0] == "ended"
    for worker in ("w1", "w2", "w3", "w4"):
        store.leave(worker)
    kept = int(retention or (DAY if ending.startswith("completed") else 7 * DAY)) or 60_000
    store.later(kept)
    store.trim()
    store.client.delete(store.keys.routes())  # a coordinator forgets empty routes (ring)
    left = {key: ttl for key in set(store.dump()) - before if (ttl := store.client.pttl(key)) < 0 or ttl > kept}
    assert left == {}


def test_revived_run_leaves_nothing_behind_after_its_second_ending(store: Store) -> None:
    before = set(store.dump())
    run = store.running(once="key", digest="d")
    store.save(run, delta(1, count=1, state=b"s"))
    store.send(run.id, key="k")
    store.fail(run)
    store.revive(run.id)
    store.complete(store.take("w2"))
    store.leave("w1")
    store.leave("w2")
    store.later(DAY)
    store.trim()
    store.client.delete(store.keys.routes(), store.keys.bell(ROUTES[0]), store.keys.bell(ROUTES[1]))
    left = {key: store.client.pttl(key) for key in set(store.dump()) - before}
    assert all(0 < ttl <= DAY for ttl in left.values()), left
