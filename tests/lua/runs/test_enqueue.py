"""enqueue: a run is created once, however often its enqueue is sent; a key names one run."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.encoding.spec import join_spec
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans.clients import NewRun
from tests.lua.store import NOW, ROUTES, Store

STEP = 2**43


def test_enqueued_run_waits_in_its_ready_queue(store: Store) -> None:
    id = store.enqueue()
    assert (store.status(id), store.places(id)) == ("queued", [f"ready:{ROUTES[0]}"])
    counters = store.counters(id)
    assert (counters.life, counters.attempt, counters.epoch, counters.score, counters.created) == (1, 0, 0, NOW, NOW)
    assert store.client.llen(store.keys.bell(ROUTES[0])) == 1
    assert store.members(store.keys.routes()) == {ROUTES[0]}


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 127, 128, 129, 511, 512, 513, 5000])
def test_spec_of_any_size_round_trips(store: Store, size: int) -> None:
    """A spec is stored in pieces of 64 bytes, or whole if it is long."""
    spec = bytes(i % 251 for i in range(size))
    id = store.enqueue(spec=spec)
    fields = store.client.hgetall(store.keys.run(id))
    assert join_spec({name.decode(): value for name, value in fields.items()}) == spec
    run = store.take()
    assert (run.id, run.spec) == (id, spec)
    _, again = store.claim(number=1)
    assert [one.spec for one in again] == [spec], "and where the claim is answered again"


def test_run_uses_little_memory_while_waiting_running_and_ended(real_url: str, namespace: str) -> None:
    """With one value of more than 64 bytes the server would store each field of the hash separately."""
    store = Store(real_url, namespace)
    id = store.enqueue(spec=b"x" * 300)

    def in_one_piece() -> bool:
        return bool(store.client.object("encoding", store.keys.run(id)) == b"listpack")

    assert in_one_piece()
    run = store.take("w" + "f" * 16)
    assert in_one_piece()
    store.complete(run)
    assert in_one_piece()
    store.close()


def test_repeated_enqueue_creates_one_run(store: Store) -> None:
    run = NewRun(store.id(), ROUTES[0], b"spec", expires="5000", once="key", digest="d", parent="p", retention="1000")
    first = store.ask_enqueue(run)
    store.later(10)
    with store.unchanged():
        assert store.ask_enqueue(run) == first == ("created", run.id)


@pytest.mark.parametrize("ending", ["running", "completed", "gone"])
def test_late_enqueue_does_not_recreate_an_ended_run(store: Store, ending: str) -> None:
    run = NewRun(store.id(), ROUTES[0], b"spec", retention="0" if ending == "gone" else "")
    store.ask_enqueue(run)
    claimed = store.take()
    if ending != "running":
        store.complete(claimed)
    with store.unchanged():
        assert store.ask_enqueue(run) == ("created", run.id)


def test_lower_score_is_first_and_priority_comes_before_time(store: Store) -> None:
    ordinary = store.enqueue()
    store.later(5)
    later, low, high = store.enqueue(), store.enqueue(priority=-1), store.enqueue(priority=100)
    assert store.line(store.keys.ready(ROUTES[0])) == [high, ordinary, later, low]
    assert store.counters(high).score == NOW + 5 - 100 * STEP


@pytest.mark.parametrize("due", ["+1500", str(NOW + 1500)])
def test_delayed_run_waits_until_it_is_due(store: Store, due: str) -> None:
    id = store.enqueue(due=due)
    assert (store.status(id), store.places(id)) == ("delayed", ["delayed"])
    assert store.score(store.keys.delayed(), id) == store.counters(id).score == NOW + 1500
    assert store.client.llen(store.keys.coordinator_bell()) == 1
    assert store.client.exists(store.keys.bell(ROUTES[0]), store.keys.routes()) == 0


@pytest.mark.parametrize("due", ["+0", str(NOW), str(NOW - 5000)])
def test_past_time_means_now(store: Store, due: str) -> None:
    id = store.enqueue(due=due)
    assert (store.status(id), store.counters(id).score) == ("queued", NOW)


def test_only_an_earlier_delayed_run_wakes_the_coordinator(store: Store) -> None:
    store.enqueue(due="+1000")
    store.client.delete(store.keys.coordinator_bell())
    store.enqueue(due="+1000")
    assert not store.client.exists(store.keys.coordinator_bell())
    store.enqueue(due="+999")
    assert store.client.exists(store.keys.coordinator_bell())


def test_key_finds_its_run(store: Store) -> None:
    id = store.enqueue(once="a key", digest="d1")
    assert store.client.pttl(store.keys.once("k", "a key")) == -1
    with store.unchanged():
        assert store.ask_enqueue(NewRun(store.id(), ROUTES[0], b"other", once="a key", digest="d1")) == ("found", id)
        assert store.ask_enqueue(NewRun(store.id(), ROUTES[0], b"other", once="a key", digest="d2")) == ("conflict", id)


def test_key_is_unique_within_its_kind(store: Store) -> None:
    store.enqueue(once="key", digest="d1")
    store.enqueue(once="key", digest="d2", route="default:other@0")


def test_finding_a_run_keeps_the_ttl_of_its_key(store: Store) -> None:
    id = store.enqueue(once="key", digest="d", retention="70000")
    store.complete(store.take())
    assert store.ask_enqueue(NewRun(store.id(), ROUTES[0], b"", once="key", digest="d")) == ("found", id)
    assert 0 < store.client.pttl(store.keys.once("k", "key")) <= 70_000


def test_with_key_ttl_0_the_key_is_free_when_the_run_ends(store: Store) -> None:
    store.enqueue(once="key", digest="d", key_ttl="0")
    store.complete(store.take())
    store.enqueue(once="key", digest="other", key_ttl="0")


def test_key_with_its_own_ttl_expires_then(store: Store) -> None:
    store.enqueue(once="key", digest="d", key_ttl="5000")
    assert store.client.pttl(store.keys.once("k", "key")) == -1, "while the run lives the key does"
    store.complete(store.take())
    assert 0 < store.client.pttl(store.keys.once("k", "key")) <= 5000


def test_late_enqueue_creates_nothing_if_its_key_outlived_its_run(store: Store) -> None:
    run = NewRun(store.id(), ROUTES[0], b"spec", once="key", digest="d", key_ttl="900000", retention="0")
    store.ask_enqueue(run)
    store.complete(store.take())
    store.client.delete(store.keys.run(run.id))  # its 60 s have passed
    with store.unchanged():
        assert store.ask_enqueue(run) == ("created", run.id)


def test_ending_keeps_a_key_that_names_another_run(store: Store) -> None:
    store.enqueue(once="key", digest="d")
    run = store.take()
    store.client.set(store.keys.once("k", "key"), f"{store.id()} d")
    store.complete(run)
    assert store.client.pttl(store.keys.once("k", "key")) == -1


def test_child_is_listed_at_its_parent(store: Store) -> None:
    parent, child = store.enqueue(), store.enqueue(parent="parent")
    assert parent != child
    assert store.members(store.keys.children("parent")) == {child}
    assert store.client.pttl(store.keys.children("parent")) > 0


def test_call_with_another_birth_is_refused_as_a_stranger(store: Store) -> None:
    # The server was flushed, and another client created the namespace.
    store.client.hset(store.keys.namespace(), "birth", "b2")
    with store.unchanged():
        assert store.ask_enqueue(NewRun(store.id(), ROUTES[0], b"")) == ("mismatch", "")
        assert (
            store.do(client_plans.enqueue(store.ns, [NewRun(store.id(), ROUTES[0], b"") for _ in "ab"]))
            == [("mismatch", "")] * 2
        )


BAD = [
    {"route": "nowhere"},
    {"priority": "high"},
    {"due": "soon"},
    {"expires": "-1"},
    {"key_ttl": ""},
    {"retention": "1e3"},
]


@pytest.mark.parametrize("wrong", BAD, ids=lambda wrong: next(iter(wrong)))
def test_bad_item_does_not_affect_its_neighbours(store: Store, wrong: dict[str, Any]) -> None:
    before, bad, after = (NewRun(store.id(), ROUTES[0], b"") for _ in range(3))
    answers = store.do(client_plans.enqueue(store.ns, [before, bad._replace(**wrong), after], now=store.at))
    assert answers == [("created", before.id), ("bad", bad.id), ("created", after.id)]
    assert store.line(store.keys.ready(ROUTES[0])) == [before.id, after.id]
    assert store.status(bad.id) == "missing"


@pytest.mark.parametrize("what", ["run", "key", "line"])
def test_key_of_another_type_is_reported_and_does_not_affect_its_neighbours(store: Store, what: str) -> None:
    good = NewRun(store.id(), "default:good@0", b"")
    spoilt = NewRun(store.id(), ROUTES[0], b"", once="key", digest="d")
    store.client.lpush(
        {"run": store.keys.run(spoilt.id), "key": store.keys.once("k", "key"), "line": store.keys.ready(ROUTES[0])}[
            what
        ],
        "x",
    )
    answers = store.do(client_plans.enqueue(store.ns, [good, spoilt, NewRun(good.id, *good[1:])], now=store.at))
    assert answers == [("created", good.id), ("unreadable", spoilt.id), ("created", good.id)]
    assert store.places(good.id) == ["ready:default:good@0"]


def test_many_runs_are_enqueued_in_order(store: Store) -> None:
    runs = [NewRun(store.id(), ROUTES[i % 2], b"", due="+5" if i % 3 == 2 else "") for i in range(1201)]
    answers = store.do(client_plans.enqueue(store.ns, runs, now=store.at))
    assert answers == [("created", run.id) for run in runs]
    now = [run for run in runs if not run.due]
    assert store.line(store.keys.ready(ROUTES[0])) == [run.id for run in now if run.route == ROUTES[0]]
    assert store.line(store.keys.ready(ROUTES[1])) == [run.id for run in now if run.route == ROUTES[1]]
    assert set(store.line(store.keys.delayed())) == {run.id for run in runs if run.due}


def test_two_items_with_one_key_in_one_call_are_one_run(store: Store) -> None:
    first, second = (NewRun(store.id(), ROUTES[0], b"", once="key", digest="d") for _ in range(2))
    assert store.do(client_plans.enqueue(store.ns, [first, second], now=store.at)) == [
        ("created", first.id),
        ("found", first.id),
    ]


def test_each_of_four_partitions_holds_its_runs(store_url: str, namespace: str) -> None:
    store = Store(store_url, namespace, partitions=4)
    runs = [NewRun(store.id(i % 4), ROUTES[0], b"") for i in range(12)]
    assert store.do(client_plans.enqueue(store.ns, runs, now=store.at)) == [("created", run.id) for run in runs]
    for partition, keys in enumerate(store.ns.everywhere()):
        store.keys = keys
        assert store.join(f"w{partition}") == "ok"
        word, claimed = store.claim(f"w{partition}")
        assert (word, [run.id for run in claimed]) == ("ok", [run.id for run in runs[partition::4]])
        assert store.complete(claimed[0]) == "ok"
    store.close()


# ---- calls that arrive too late --------------------------------------------------------------------------------------

HOUR = 3_600_000


def remove(store: Store, id: str) -> None:
    """Let the server forget a run, as when its time is over."""
    store.client.delete(store.keys.run(id))


@pytest.mark.parametrize(
    ("retention", "allowed"), [("0", 36_000), ("1000", 36_000), ("", 14 * HOUR), ("1000000", 600_000)]
)
def test_repeated_enqueue_is_refused_when_its_run_may_have_ended_and_gone(
    store: Store, retention: str, allowed: int
) -> None:
    run = NewRun(store.id(), ROUTES[0], b"spec", retention=retention)
    assert store.ask_enqueue(run) == ("created", run.id)
    store.complete(store.take())
    store.later(allowed + HOUR)
    assert store.ask_enqueue(run) == ("created", run.id)  # The server knows the run.
    remove(store, run.id)
    with store.unchanged():
        assert store.ask_enqueue(run) == ("untimely", store.at)


@pytest.mark.parametrize(("retention", "allowed"), [("0", 36_000), ("", 14 * HOUR), ("1000000", 600_000)])
def test_enqueue_that_was_not_carried_out_can_be_repeated_for_most_of_the_retention(
    store: Store, retention: str, allowed: int
) -> None:
    run = NewRun(store.id(), ROUTES[0], b"spec", retention=retention)
    store.later(allowed)
    assert store.ask_enqueue(run) == ("created", run.id)


@pytest.mark.parametrize(("retention", "ahead"), [("0", 24_000), ("", 9 * HOUR), ("1000000", 400_000)])
def test_id_of_a_clock_that_is_ahead_is_accepted_up_to_a_limit(store: Store, retention: str, ahead: int) -> None:
    store.later(ahead)
    run = NewRun(store.id(), ROUTES[0], b"spec", retention=retention)
    store.later(-ahead - HOUR)
    assert store.ask_enqueue(run) == ("untimely", store.at)
    store.later(HOUR)
    assert store.ask_enqueue(run) == ("created", run.id)


def test_id_is_accepted_at_any_time_of_day(store: Store) -> None:
    for _ in range(60):
        store.enqueue(store.id())
        store.later(977_001)


@pytest.mark.parametrize("how", ["discard", "cap"])
def test_repeated_enqueue_of_a_run_that_was_removed_early_is_refused(store: Store, how: str) -> None:
    other, run = NewRun(store.id(), ROUTES[0], b"spec"), NewRun(store.id(), ROUTES[0], b"spec")
    assert store.ask_enqueue(run) == ("created", run.id)
    store.complete(store.take())
    if how == "discard":
        store.do(client_plans.discard(store.keys, run.id))
    else:
        store.do(coordinator_plans.cap(store.keys, "completed", keep=0, batch=10))
    remove(store, run.id)
    store.later(36_000)
    assert store.ask_enqueue(other) == ("created", other.id)  # The tombstone of a run is kept for longer than this.
    store.later(1)
    with store.unchanged():
        assert store.ask_enqueue(run) == ("untimely", store.at)
    later = NewRun(store.id(), ROUTES[0], b"spec")
    store.later(HOUR)
    assert store.ask_enqueue(later) == ("created", later.id)


def test_runs_that_are_on_time_are_created_beside_one_that_is_not(store: Store) -> None:
    old = NewRun(store.id(), ROUTES[0], b"spec")
    store.later(24 * HOUR)
    new = NewRun(store.id(), ROUTES[0], b"spec")
    answers = store.do(client_plans.enqueue(store.ns, [old, new], now=store.at))
    assert answers == [("untimely", store.at), ("created", new.id)]


def test_id_without_a_time_is_refused(store: Store) -> None:
    with store.unchanged():
        assert store.ask_enqueue(NewRun("my-own-id", ROUTES[0], b"spec")) == ("untimely", store.at)


def test_idempotency_key_still_finds_a_run_whose_enqueue_is_late(store: Store) -> None:
    run = NewRun(store.id(), ROUTES[0], b"spec", once="key", digest="d")
    store.ask_enqueue(run)
    store.later(24 * HOUR)
    assert store.ask_enqueue(run) == ("created", run.id)
    other = "8" if run.id[-4] == "9" else "9"
    late = NewRun(f"{run.id[:-4]}{other}-00", ROUTES[0], b"spec", once="key", digest="d")
    assert store.ask_enqueue(late) == ("found", run.id)
