"""Paging through all runs with a cursor: each run once, however many there are, while others come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from coordinator import BadOption, RunView, Status
from coordinator.client.operations import lists as list_operations
from coordinator.client.reading.listing import Listing
from coordinator.client.reading.pages import MOST_EXAMINED, STEP, Cursor, Page
from tests.contract.test_client import Shop


@pytest.fixture(params=[1, 4], ids=["P=1", "P=4"])
def shop(request: pytest.FixtureRequest, store_url: str, namespace: str) -> Iterator[Shop]:
    shop = Shop(store_url, namespace, request.param)
    yield shop
    shop.client.close()
    shop.wire.close()


def read_page(
    shop: Shop,
    filters: Listing,
    cursor: Cursor | None = None,
    takes: Callable[[RunView], bool] = lambda view: True,
) -> Page:
    return shop.client._do(list_operations.list_page, filters, takes, cursor)


def read_all(shop: Shop, filters: Listing, takes: Callable[[RunView], bool] = lambda view: True) -> list[RunView]:
    found: list[RunView] = []
    cursor: Cursor | None = None
    while True:
        page = read_page(shop, filters, cursor, takes)
        found += page.runs
        if page.cursor is None:
            return found
        cursor = Cursor.parse(str(page.cursor))


def listing(status: Status | None = None, kind: str | None = None, queue: str | None = None, limit: int = 7) -> Listing:
    return Listing.of(status, kind, queue, limit)


@pytest.mark.parametrize("limit", [1, 7, 500])
def test_every_run_of_every_status_is_found_once(shop: Shop, limit: int) -> None:
    started = shop.client.enqueue_many([("k", {})] * 6)
    claimed = shop.start(*started, route="default:k@0")
    runs = [*started, *shop.client.enqueue_many([("k", {})] * 6)]
    for run in runs[:3]:
        shop.complete(claimed[run.id])
    runs[6].cancel()
    delayed = shop.client.enqueue_many([("k", {}), ("other", {})], delay=3600)
    found = [view.id for view in read_all(shop, listing(limit=limit))]
    assert len(found) == len(set(found))
    assert set(found) == {run.id for run in (*runs, *delayed)}
    assert [view.id for view in read_all(shop, listing(Status.DELAYED, "other", limit=limit))] == [delayed[1].id]
    running = read_all(shop, listing(Status.RUNNING, limit=limit))
    assert {view.id for view in running} == {run.id for run in runs[3:6]}
    completed = read_all(shop, listing(Status.COMPLETED, limit=limit))
    assert [view.ended for view in completed] == sorted((view.ended for view in completed), reverse=True)  # type: ignore[type-var]
    assert {view.id for view in completed} == {run.id for run in runs[:3]}


def test_runs_with_the_same_score_are_found_once(shop: Shop) -> None:
    runs = shop.client.enqueue_many([("k", {})] * (3 * STEP + 5), at=4_000_000_000)
    found = [view.id for view in read_all(shop, listing(Status.DELAYED, limit=40))]
    assert found == sorted(run.id for run in runs)


@pytest.mark.parametrize("limit", [40, 500])
def test_long_index_beside_a_short_one_is_listed_to_its_end(shop: Shop, limit: int) -> None:
    runs = shop.client.enqueue_many([("early", {})] * (3 * STEP))
    runs += shop.client.enqueue_many([("later", {})] * 20)
    found = [view.id for view in read_all(shop, listing(Status.QUEUED, limit=limit))]
    assert sorted(found) == sorted(run.id for run in runs)


def test_queued_runs_of_many_kinds_are_found_once(shop: Shop) -> None:
    runs = shop.client.enqueue_many([(f"k{number % 60}", {}) for number in range(6 * STEP)])
    found = [view.id for view in read_all(shop, listing(Status.QUEUED, limit=500))]
    assert sorted(found) == sorted(run.id for run in runs)


def test_runs_that_wait_for_a_place_in_their_group_are_found(shop: Shop) -> None:
    shop.client.set_limit("k", at_once=1)
    runs = shop.client.enqueue_many([("k", {})] * 5, group="acme")
    found = [view.id for view in read_all(shop, listing(Status.QUEUED))]
    assert sorted(found) == sorted(run.id for run in runs)
    assert len(read_all(shop, listing(Status.QUEUED, "k", "default"))) == 5
    assert read_all(shop, listing(Status.QUEUED, "other")) == []


def test_runs_that_leave_the_index_do_not_move_the_next_page(shop: Shop) -> None:
    runs = shop.client.enqueue_many([("k", {})] * 30)
    first = read_page(shop, listing(Status.QUEUED, limit=10))
    for view in first.runs:
        shop.client.handle(view.id).cancel()
    later = read_page(shop, listing(Status.QUEUED, limit=100), first.cursor)
    assert {view.id for view in (*first.runs, *later.runs)} == {run.id for run in runs}


def test_page_without_matches_ends_after_a_bounded_number_of_runs(shop: Shop) -> None:
    # With four partitions, a page examines up to 300 runs of each. Every partition has more than these.
    shop.client.enqueue_many([("k", {})] * (2 * MOST_EXAMINED))
    wanted = shop.client.enqueue("k", meta={"owner": "alice"}, priority=-1)

    def takes(view: RunView) -> bool:
        return view.meta.get("owner") == "alice"

    page = read_page(shop, listing(Status.QUEUED), None, takes)
    assert page.runs == []
    assert page.cursor is not None
    assert [view.id for view in read_all(shop, listing(Status.QUEUED), takes)] == [wanted.id]


@pytest.mark.parametrize("text", ["", "x", "é", "W10=", "WzEsIDIsIDNd", str(Cursor(Status.QUEUED, float("nan"), "a"))])
def test_text_that_is_not_a_cursor_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="begin again"):
        Cursor.parse(text)


def test_cursor_of_another_status_is_refused(shop: Shop) -> None:
    with pytest.raises(BadOption, match="belongs to status queued"):
        read_page(shop, listing(Status.FAILED), Cursor(Status.QUEUED))
