"""Cancelling a run with all its descendants, in all partitions, at any depth, and while children are being enqueued."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from coordinator import Handle, NotFound, RunCancelled, Status, TreeCancelled
from coordinator.client.operations import runs as run_operations
from coordinator.client.operations.open_namespace import OpenNamespace
from coordinator.errors import Unreadable
from coordinator.store import scripts
from coordinator.store.keys import Keys
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.script import Call, read
from tests.contract.test_client import Shop


@pytest.fixture(params=[1, 4], ids=["P=1", "P=4"])
def shop(request: pytest.FixtureRequest, store_url: str, namespace: str) -> Iterator[Shop]:
    shop = Shop(store_url, namespace, request.param)
    yield shop
    shop.client.close()
    shop.wire.close()


def below(shop: Shop, parent: Handle[Any], count: int = 8, kind: str = "child") -> list[Handle[Any]]:
    return shop.client.enqueue_many([(kind, {})] * count, parent=parent.id)


def test_all_descendants_are_cancelled_in_all_partitions(shop: Shop) -> None:
    root, other = shop.client.enqueue("work"), shop.client.enqueue("bystander")
    children = below(shop, root)
    grandchildren = [one for child in children for one in below(shop, child, 2, "grandchild")]
    bystanders = below(shop, other, 3)
    became = root.cancel_tree()
    assert became == dict.fromkeys([run.id for run in (root, *children, *grandchildren)], Status.CANCELLED)
    for run in (root, *children, *grandchildren):
        with pytest.raises(RunCancelled):
            run.result(0)
    assert {run.view().status for run in (other, *bystanders)} == {Status.QUEUED}


def test_running_runs_are_asked_to_stop_ended_runs_stay_and_their_descendants_are_cancelled(shop: Shop) -> None:
    root = shop.client.enqueue("work")
    running, done = below(shop, root, 2)
    claimed = shop.start(running, done, route="default:child@0")
    shop.complete(claimed[done.id])
    (deep,) = below(shop, done, 1, "grandchild")
    (lower,) = below(shop, running, 1, "grandchild")
    became = root.cancel_tree()
    assert became == {
        root.id: Status.CANCELLED, running.id: Status.RUNNING, done.id: Status.COMPLETED,
        deep.id: Status.CANCELLED, lower.id: Status.CANCELLED,
    }  # fmt: skip
    assert running.view().cancelling


def test_descendants_of_a_missing_child_are_cancelled(shop: Shop) -> None:
    root = shop.client.enqueue("work")
    (child,) = below(shop, root, 1)
    (grandchild,) = below(shop, child, 1)
    child.cancel()
    keys = shop.space.keys_of(child.id)
    shop.wire.ask([read(keys.at, "DEL", keys.run(child.id))])
    assert root.cancel_tree() == {root.id: Status.CANCELLED, grandchild.id: Status.CANCELLED}


def test_second_call_changes_nothing(shop: Shop) -> None:
    root = shop.client.enqueue("work")
    children = below(shop, root)
    assert root.cancel_tree() == root.cancel_tree()
    assert {child.view().status for child in children} == {Status.CANCELLED}


def test_missing_run_is_not_found(shop: Shop) -> None:
    with pytest.raises(NotFound):
        shop.client.handle(f"{'0' * 20}-00").cancel_tree()


# ---- while children are being enqueued


def test_no_child_escapes_at_whatever_moment_it_is_enqueued(shop: Shop) -> None:
    """A running parent enqueues a child before each step of the cancelling in turn. The child is refused or ends as cancelled."""
    steps, number = 1, 0
    while number < steps:
        root = shop.client.enqueue("work")
        shop.start(root)
        plan = run_operations.cancel_tree(OpenNamespace(shop.name, shop.client._clock, check=None), root.id, 30.0)
        steps, request = 0, next(plan)
        while True:
            if steps == number:
                with contextlib.suppress(TreeCancelled):
                    below(shop, root)
            steps += 1
            requests = request if isinstance(request, list) else [request]
            replies = shop.wire.ask(requests)
            try:
                request = plan.send(replies if isinstance(request, list) else replies[0])
            except StopIteration:
                break
        assert shop.client.list(status="queued") == [], f"enqueued before step {number} of {steps}"
        with pytest.raises(TreeCancelled) as refused:
            below(shop, root)
        assert refused.value.parent == root.id
        shop.do(attempt_plans.release(*_owned(shop, root), mode="stopping"))
        assert root.view().status is Status.CANCELLED
        number += 1
    assert steps > 3


def _owned(shop: Shop, run: Handle[Any]) -> tuple[Keys, str, str]:
    return shop.space.keys_of(run.id), run.id, shop.fields(run.id)["token"].decode()


def test_refused_child_leaves_nothing_behind(shop: Shop) -> None:
    root = shop.client.enqueue("work")
    shop.start(root)
    root.cancel_tree()
    before = shop.all_keys()
    with pytest.raises(TreeCancelled, match="was cancelled with all runs below it"):
        shop.client.enqueue("child", {}, parent=root.id, key="k")
    assert shop.all_keys() == before


def test_repeated_enqueue_of_an_existing_child_is_not_refused(shop: Shop) -> None:
    root = shop.client.enqueue("work")
    (child,) = below(shop, root, 1)
    shop.start(root)
    root.cancel_tree()
    assert shop.client.enqueue("child", {}, parent=root.id, id=child.id).id == child.id


def test_plain_cancel_keeps_the_children_and_allows_new_ones(shop: Shop) -> None:
    root = shop.client.enqueue("work")
    shop.start(root)
    (child,) = below(shop, root, 1)
    root.cancel()
    assert child.view().status is Status.QUEUED
    assert len(below(shop, root)) == 8


def test_revived_run_may_have_children_again(shop: Shop) -> None:
    root = shop.client.enqueue("work")
    shop.start(root)
    root.cancel_tree()
    shop.do(attempt_plans.release(*_owned(shop, root), mode="stopping"))
    root.revive()
    assert len(below(shop, root)) == 8


def test_mark_that_blocks_children_expires(shop: Shop) -> None:
    root = shop.client.enqueue("work")
    shop.start(root)
    root.cancel_tree()
    for keys in shop.space.everywhere():
        (ttl,) = shop.wire.ask([read(keys.at, "PTTL", keys.felled(root.id))])
        assert 0 < ttl <= 86_400_000


def test_late_mark_does_not_count_for_the_next_life(shop: Shop) -> None:
    """The cancelling client stalls before it sets its mark. Meanwhile the run ends and is revived."""
    root = shop.client.enqueue("work")
    shop.start(root)
    plan = run_operations.cancel_tree(OpenNamespace(shop.name, shop.client._clock, check=None), root.id, 30.0)
    request = next(plan)
    while not (
        isinstance(request, list)
        and any(isinstance(one, Call) and one.script is scripts.BLOCK_CHILDREN for one in request)
    ):
        replies = shop.wire.ask(request if isinstance(request, list) else [request])
        request = plan.send(replies if isinstance(request, list) else replies[0])
    shop.do(attempt_plans.release(*_owned(shop, root), mode="stopping"))
    root.revive()
    shop.wire.ask(request)
    assert len(below(shop, root)) == 8
    shop.start(root)
    root.cancel_tree()
    with pytest.raises(TreeCancelled):
        below(shop, root)


def test_unreadable_run_does_not_stop_the_cancelling_of_others(shop: Shop) -> None:
    root = shop.client.enqueue("work")
    children = below(shop, root)
    keys = shop.space.keys_of(children[0].id)
    shop.wire.ask([read(keys.at, "HSET", keys.run(children[0].id), "counters", "spoilt")])
    became = root.cancel_tree()
    assert became == dict.fromkeys([root.id, *(child.id for child in children[1:])], Status.CANCELLED)


@pytest.mark.parametrize("what", ["cancel", "cancel_tree", "revive", "discard", "position"])
def test_unreadable_run_is_reported_in_one_sentence(shop: Shop, what: str) -> None:
    root = shop.client.enqueue("work")
    if what in ("revive", "discard"):
        root.cancel()
    keys = shop.space.keys_of(root.id)
    shop.wire.ask([read(keys.at, "HSET", keys.run(root.id), "counters", "spoilt")])
    with pytest.raises(Unreadable, match=f"run {root.id} can't be read"):
        getattr(root, what)()


@pytest.mark.parametrize("ending", ["complete", "fail"])
def test_a_parent_that_ends_because_its_children_were_cancelled_is_cancelled_too(shop: Shop, ending: str) -> None:
    root = shop.client.enqueue("work")
    shop.start(root)
    (child,) = below(shop, root, 1)
    root.cancel_tree()
    assert child.view().status is Status.CANCELLED
    if ending == "complete":
        shop.do(attempt_plans.complete(*_owned(shop, root), b""))
    else:
        shop.do(attempt_plans.fail(*_owned(shop, root), b"RunCancelled"))
    assert root.view().status is Status.CANCELLED


def test_a_run_that_started_and_waits_for_its_next_attempt_gets_no_more_children(shop: Shop) -> None:
    """Its last owner may have lost it without knowing, and its handler may still be executing."""
    root = shop.client.enqueue("work")
    (middle,) = below(shop, root, 1)
    for run, route in ((root, "default:work@0"), (middle, "default:child@0")):
        shop.start(run, route=route)
        shop.do(attempt_plans.retry(*_owned(shop, run), delay=60, error=b"error"))
    root.cancel_tree()
    for parent in (root, middle):
        assert parent.view().status is Status.CANCELLED
        with pytest.raises(TreeCancelled):
            below(shop, parent, 1)
