"""view: everything that is shown about a run, and why it waits."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.model import limits
from coordinator.model.limits import DAY_MS, PRIORITY_STEP
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans.attempts import netstrings
from coordinator.store.replies import pairs
from tests.lua.store import NOW, ROUTES, Store, delta


def view(store: Store, id: str) -> Any:
    return store.do(client_plans.view(store.keys, id))


def test_view_shows_the_runs_before_it_and_workers_that_could_claim_it(store: Store) -> None:
    store.enqueue()
    id = store.enqueue()
    store.join("w1")
    store.join("w2", routes=["default:other@0"])
    store.join("w3", routes=["default:k@7"])
    with store.unchanged():
        fields, head, phases, before, able, paused, due, known, signals, children, effects, held = view(store, id)
    assert pairs(fields)["status"] == b"queued"
    assert (head, phases, before, able, paused, due, known, signals, children, effects, held) == (
        b"", [], 1, 1, b"", b"", 2, [], [], [], [],
    )  # fmt: skip
    store.client.sadd(store.keys.paused(), "queue:default")
    assert view(store, id)[5] == b"queue"
    store.client.sadd(store.keys.paused(), "kind:k")
    assert view(store, id)[5] == b"kind"


def test_view_shows_the_checkpoint_head_and_phases(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, count=1, phases=(("phase:-:a#0", b"o"),)))
    _, head, phases, *_ = view(store, run.id)
    assert (head.split()[0], phases) == (b"1", [b"phase:-:a#0"])


def test_view_shows_when_a_delayed_run_is_due(store: Store) -> None:
    assert int(view(store, store.enqueue(due="+5"))[6]) == NOW + 5


def test_missing_run_has_no_view(store: Store) -> None:
    id = store.id()
    assert view(store, id) is None
    store.spoil(store.keys.run(id))
    assert view(store, id) is None


def test_damaged_neighbours_do_not_affect_a_view(store: Store) -> None:
    id = store.enqueue()
    store.spoil(store.keys.ckpt(id))
    store.spoil(store.keys.ready(ROUTES[0]))
    assert view(store, id)[3] == -1


def test_view_shows_that_a_call_of_the_handler_waits_for_a_limit(store: Store) -> None:
    run, other = store.running(), store.running()
    store.beat(limited={f"1{run.id}": "x:1", run.id: "openai:1700000000000"})
    assert pairs(view(store, run.id)[0])["limited"] == b"openai:1700000000000"
    assert "limited" not in pairs(view(store, other.id)[0])
    store.beat()
    assert "limited" not in pairs(view(store, run.id)[0])


def test_view_shows_that_the_owner_is_loading_the_checkpoint(store: Store) -> None:
    run, other = store.running(), store.running()
    store.beat(loading={f"1{run.id}": 1, run.id: 12, other.id: 0})
    assert pairs(view(store, run.id)[0])["loading"] == b"12"
    assert pairs(view(store, other.id)[0])["loading"] == b"0"
    store.beat(loading={other.id: 0})
    assert "loading" not in pairs(view(store, run.id)[0])
    store.release(other)
    assert "loading" not in pairs(view(store, other.id)[0]), "the run has no owner any more"
    store.client.set(store.keys.worker("w1"), "spoilt")
    assert pairs(view(store, run.id)[0])["status"] == b"running"


def signals_of(store: Store, id: str) -> dict[str, int]:
    return pairs(view(store, id)[8])


def test_view_counts_the_signals_that_the_run_has_not_received(store: Store) -> None:
    run = store.running()
    for number in range(5):
        store.send(run.id, "chat", operation=f"c{number}")
    store.send(run.id, "last", operation="l")
    assert signals_of(store, run.id) == {"chat": 5, "last": 1}
    store.save(run, delta(1, more=netstrings([b"received:chat", b"3", b"received:last", b"1"])))
    with store.unchanged():
        assert signals_of(store, run.id) == {"chat": 2}


def test_view_does_not_count_removed_signals_of_a_run_that_starts_again(store: Store) -> None:
    run = store.running()
    for number in range(limits.SIGNAL_COUNT):
        store.send(run.id, operation=f"n{number}")
    store.save(run, delta(1, more=netstrings([b"received:t", b"10"])))
    store.send(run.id, operation="more")  # removes the signals that were received
    store.retry(run, delay=0, from_start=True)
    assert signals_of(store, run.id) == {"t": limits.SIGNAL_COUNT - 10 + 1}


def test_damaged_signals_do_not_affect_a_view(store: Store) -> None:
    id = store.enqueue()
    store.send(id)
    store.spoil(store.keys.signals(id))
    store.spoil(store.keys.ckpt(id))
    assert signals_of(store, id) == {}


def test_view_has_the_budget_of_the_handler_of_its_kind(store: Store) -> None:
    id = store.enqueue()
    assert "budget" not in pairs(view(store, id)[0])
    store.join(budgets="k=5000000,-,200,wait other=-,9,-,fail")
    with store.unchanged():
        assert pairs(view(store, id)[0])["budget"] == b"5000000,-,200,wait"
    store.spoil(store.keys.limits())
    assert "budget" not in pairs(view(store, id)[0])


def test_view_shows_how_long_a_run_waits_for_a_place(store: Store) -> None:
    store.limit(1)
    store.enqueue(group="acme")
    id = store.enqueue(group="acme")
    now = int(store.client.time()[0]) * 1000

    def waited() -> float:
        held = view(store, id)[11]
        assert held[:4] == [0, 1, b"1", b"k:acme"]
        return int(held[6]) / 1000

    store.client.zadd(store.keys.line("k:acme"), {id: now - DAY_MS - 5 * PRIORITY_STEP})
    assert waited() == pytest.approx(86_400, abs=60)
    store.client.hset(store.keys.run(id), "held", now - 12_000)
    assert waited() == pytest.approx(12, abs=10), "the run was woken, and its score is older than its wait"
    store.client.hset(store.keys.run(id), "held", now - 2 * DAY_MS)
    assert waited() == pytest.approx(86_400, abs=60), "the time of an earlier wait does not count"
