"""Finding all runs that match a filter: every page of every index, in every partition."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator import Status
from coordinator.client.operations import lists as list_operations
from coordinator.client.reading.scan import PAGE, Walk
from coordinator.model.run_id import ids_from
from tests.contract.test_client import Shop


@pytest.fixture(params=[1, 4], ids=["P=1", "P=4"])
def shop(request: pytest.FixtureRequest, store_url: str, namespace: str) -> Iterator[Shop]:
    shop = Shop(store_url, namespace, request.param)
    yield shop
    shop.client.close()
    shop.wire.close()


def walked(shop: Shop, status: Status, kind: str | None = None, queue: str | None = None, since: str = "") -> list[str]:
    ids = shop.client._do(list_operations.list_ids, Walk(status, kind, queue, since))
    assert len(ids) == len(set(ids)), "each once"
    return sorted(ids)


def test_more_than_a_page_of_waiting_runs_is_found(shop: Shop) -> None:
    many = shop.client.enqueue_many([("k", {})] * (2 * PAGE + 1))
    others = shop.client.enqueue_many([("other", {})] * 3, queue="side")
    later = shop.client.enqueue_many([("k", {})] * 2 + [("other", {})], delay=3600)
    assert walked(shop, Status.QUEUED, "k") == sorted(run.id for run in many)
    assert walked(shop, Status.QUEUED, queue="side") == sorted(run.id for run in others)
    assert len(walked(shop, Status.QUEUED)) == len(many) + len(others)
    assert walked(shop, Status.DELAYED, "k") == sorted(run.id for run in later[:2])
    assert walked(shop, Status.DELAYED) == sorted(run.id for run in later)


def test_running_and_ended_runs_are_found_by_kind(shop: Shop) -> None:
    runs = shop.client.enqueue_many([("k", {})] * 4)
    other = shop.client.enqueue("other")
    claimed = shop.start(*runs, route="default:k@0")
    shop.start(other, route="default:other@0")
    done, *running = runs
    shop.complete(claimed[done.id])
    assert walked(shop, Status.RUNNING, "k") == sorted(run.id for run in running)
    assert walked(shop, Status.RUNNING) == sorted(run.id for run in (*running, other))
    assert walked(shop, Status.COMPLETED, "k") == [done.id]
    assert walked(shop, Status.COMPLETED, "other") == []


def test_only_runs_created_since_a_given_time_are_found(shop: Shop) -> None:
    before = shop.client.enqueue("k")
    moment = before.view().created.timestamp() + 0.002
    assert walked(shop, Status.QUEUED, since=ids_from(moment)) == []
    assert walked(shop, Status.QUEUED, since=ids_from(moment - 1)) == [before.id]
