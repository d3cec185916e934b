"""pause and unpause: paused runs are not claimed, and unpausing wakes the waiting workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from coordinator.client.operations.open_namespace import new_mark
from coordinator.model.limits import KNOWLEDGE_MS, REMOVED_MS
from coordinator.store.keys import Keys
from coordinator.store.plans import clients as client_plans
from coordinator.store.script import Call
from coordinator.store.scripts import LIMIT, PAUSE, RATE, UNPAUSE
from tests.lua.store import ROUTES, Store

OTHER = "other:k@0"


@pytest.mark.parametrize("name", ["queue:default", "kind:k"])
def test_paused_run_is_not_claimed_until_it_is_unpaused(store: Store, name: str) -> None:
    id = store.enqueue()
    store.join()
    assert store.do(client_plans.pause(store.keys, name, new_mark())) is True
    assert store.claim() == ("ok", [])
    assert store.do(client_plans.unpause(store.keys, name, new_mark())) is True
    assert [run.id for run in store.claim()[1]] == [id]


def test_other_queues_and_kinds_are_still_claimed(store: Store) -> None:
    store.enqueue()
    other = store.enqueue(route=OTHER)
    store.join()
    store.do(client_plans.pause(store.keys, "queue:default", new_mark()))
    store.do(client_plans.pause(store.keys, "kind:default", new_mark()))
    store.do(client_plans.pause(store.keys, "queue:k", new_mark()))
    assert [run.id for run in store.claim(routes=(*ROUTES, OTHER))[1]] == [other]


def test_running_run_continues(store: Store) -> None:
    run = store.running()
    store.do(client_plans.pause(store.keys, "kind:k", new_mark()))
    assert store.complete(run) == "ok"


def test_suspects_are_paused_too(store: Store) -> None:
    run = store.running()
    store.client.hset(store.keys.run(run.id), "counters", "1 1 1 0 0 2 0 0 9 0 1 1")
    store.release(run)
    store.do(client_plans.pause(store.keys, "kind:k", new_mark()))
    assert store.claim("w1", alone=True) == ("ok", [])
    store.client.delete(store.keys.suspect_bell(ROUTES[0]))
    store.do(client_plans.unpause(store.keys, "kind:k", new_mark()))
    assert store.client.llen(store.keys.suspect_bell(ROUTES[0])) == 1
    assert store.claim("w1", alone=True)[0] == "suspect"


@pytest.mark.parametrize("name", ["queue:default", "kind:k"])
def test_unpausing_rings_only_the_bells_of_matching_routes(store: Store, name: str) -> None:
    store.enqueue()
    store.enqueue(route="other:j@0")
    store.do(client_plans.pause(store.keys, name, new_mark()))
    store.client.delete(store.keys.bell(ROUTES[0]), store.keys.bell("other:j@0"))
    store.do(client_plans.unpause(store.keys, name, new_mark()))
    assert store.client.llen(store.keys.bell(ROUTES[0])) == 1
    assert store.client.llen(store.keys.bell("other:j@0")) == 0


def test_bell_of_an_empty_route_is_not_rung(store: Store) -> None:
    store.complete(store.running())
    store.client.delete(store.keys.bell(ROUTES[0]))
    store.do(client_plans.unpause(store.keys, "kind:k", new_mark()))
    assert store.client.llen(store.keys.bell(ROUTES[0])) == 0


def test_second_pause_is_reported(store: Store) -> None:
    store.do(client_plans.pause(store.keys, "kind:k", new_mark()))
    assert store.do(client_plans.pause(store.keys, "kind:k", new_mark())) is False
    assert store.members(store.keys.paused()) == {"kind:k"}
    store.do(client_plans.unpause(store.keys, "kind:k", new_mark()))
    assert store.do(client_plans.unpause(store.keys, "kind:k", new_mark())) is False
    assert store.members(store.keys.paused()) == set()


# ---- calls that arrive late or twice -----------------------------------------------------------------------------------

PLANS = {"pause": client_plans.pause, "unpause": client_plans.unpause}


@pytest.mark.parametrize(("first", "second"), [("pause", "unpause"), ("unpause", "pause")])
@pytest.mark.parametrize("how", ["request", "call"])
def test_late_repetition_does_not_undo_a_later_change(store: Store, first: str, second: str, how: str) -> None:
    """The reply of the first call is lost. It is repeated, or its request arrives again, after another client's change."""
    if first == "unpause":
        store.do(client_plans.pause(store.keys, "kind:k", new_mark()))
    requests = []
    plan = PLANS[first](store.keys, "kind:k", "o1")
    request = next(plan)
    with contextlib.suppress(StopIteration):
        while True:
            requests.append(request)
            request = plan.send(store.wire.ask([request])[0])
    store.do(PLANS[second](store.keys, "kind:k", "o2"))
    after = store.members(store.keys.paused())
    assert after == ({"kind:k"} if second == "pause" else set())
    if how == "request":
        store.wire.ask(requests)
    else:
        assert store.do(PLANS[first](store.keys, "kind:k", "o1")) is True  # the answer of the first call
    assert store.members(store.keys.paused()) == after


def test_request_that_was_carried_out_by_nobody_comes_too_late(store: Store) -> None:
    plan = client_plans.pause(store.keys, "kind:k", "o1")
    late = plan.send(store.wire.ask([next(plan)])[0])  # the request that makes the change
    store.do(client_plans.pause(store.keys, "kind:k", "o2"))
    store.do(client_plans.unpause(store.keys, "kind:k", "o3"))
    with store.unchanged():
        answer, seen = store.wire.ask([late])[0]
    assert (answer, seen.partition(b"@")[0]) == (b"changed", b"o3")


LATE: dict[str, Callable[[Keys, str], Call]] = {
    "pause": lambda keys, seen: PAUSE.call(keys.at, name="kind:k", seen=seen, operation="late"),
    "unpause": lambda keys, seen: UNPAUSE.call(keys.at, name="kind:k", seen=seen, operation="late", most=10),
    "limit": lambda keys, seen: LIMIT.call(
        keys.at, kind="k", group="", at_once="9", rate="=", seen=seen, operation="late"
    ),
    "rate": lambda keys, seen: RATE.call(keys.at, now="", name="api", rate="9 1000 1 -", seen=seen, operation="late"),
}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("age", [-60_000, KNOWLEDGE_MS + 5_000])
def test_change_is_refused_if_later_changes_may_be_forgotten(store: Store, late: str, age: int) -> None:
    """The call was prepared when no change was stored. It arrives after a later change was made and has expired."""
    clock = server_ms(store)
    with store.unchanged():
        answer, seen = store.wire.ask([LATE[late](store.keys, f"@{clock - age}")])[0]
    assert answer == b"changed"
    assert abs(int(seen.partition(b"@")[2]) - clock) < 60_000, "the answer tells the server's time"
    assert store.wire.ask([LATE[late](store.keys, seen.decode())])[0][0] in (b"ok", b"again"), "new knowledge is valid"


@pytest.mark.parametrize("late", LATE)
def test_first_request_of_a_change_only_asks_for_the_time(store: Store, late: str) -> None:
    with store.unchanged():
        assert store.wire.ask([LATE[late](store.keys, "")])[0][0] == b"changed"


def server_ms(store: Store) -> int:
    seconds, microseconds = store.client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def test_changes_are_remembered_for_longer_than_a_caller_may_be_late() -> None:
    assert REMOVED_MS > KNOWLEDGE_MS


def test_order_of_the_changes_is_forgotten_after_ten_minutes(store: Store) -> None:
    for number in range(20):
        store.do(client_plans.pause(store.keys, "kind:k", f"o{number}"))
    assert 0 < store.client.pttl(store.keys.pauses("kind:k")) <= 600_000
    assert len(store.client.get(store.keys.pauses("kind:k")).split()) == 8


def test_damaged_order_of_the_changes_does_not_stop_a_pause(store: Store) -> None:
    store.client.sadd(store.keys.pauses("kind:k"), "damaged")
    assert store.do(client_plans.pause(store.keys, "kind:k", "o1")) is True
