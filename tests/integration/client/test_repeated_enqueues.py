"""A repeated enqueue creates its run once, also if the run is gone, and whatever the clock of the client says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from coordinator import AsyncClient, Client, IdExpired, Refused
from coordinator.clock import SystemClock
from coordinator.model.run_id import RunIds, made_at
from tests.contract.test_client import Shop

MINUTE = 60.0
SKEWS = [-400 * MINUTE, -2 * MINUTE, 2 * MINUTE, 1000 * MINUTE]


class WrongClock(SystemClock):
    """A clock that is ahead or behind by some seconds."""

    def __init__(self, ahead: float) -> None:
        self.ahead = ahead

    def now(self) -> float:
        return super().now() + self.ahead


@pytest.fixture(params=[1, 3], ids=["P=1", "P=3"])
def shop(request: pytest.FixtureRequest, real_url: str, namespace: str) -> Iterator[Shop]:
    shop = Shop(real_url, namespace, request.param)
    yield shop
    shop.client.close()
    shop.wire.close()


def id_of_age(seconds: float) -> str:
    return RunIds().make(SystemClock().now() - seconds, 0)


def test_repeated_enqueue_of_a_run_without_retention_is_refused_when_the_run_is_gone(shop: Shop) -> None:
    old = id_of_age(2 * MINUTE)
    with pytest.raises(IdExpired, match=f"{old} was not enqueued: its id is too old") as caught:
        shop.client.enqueue("work", {}, retention=0, id=old)
    assert caught.value.run == old
    assert isinstance(caught.value, Refused)
    assert not shop.claim("default:work@0")


def test_repeated_enqueue_of_a_run_with_the_default_retention_may_be_hours_late(shop: Shop) -> None:
    old = id_of_age(13 * 60 * MINUTE)
    assert shop.client.enqueue("work", {}, id=old).id == old
    with pytest.raises(IdExpired):
        shop.client.enqueue("work", {}, id=id_of_age(15 * 60 * MINUTE))


def test_repeated_enqueue_of_many_runs_names_the_run_that_is_too_late(shop: Shop) -> None:
    ids = [id_of_age(1), id_of_age(2 * MINUTE)]
    with pytest.raises(IdExpired) as caught:
        shop.client.enqueue_many([("work", {})] * 2, retention=0, ids=ids)
    assert caught.value.run == ids[1]
    assert "1 runs of this call were enqueued before it" in caught.value.__notes__


@pytest.mark.parametrize("ahead", SKEWS)
@pytest.mark.parametrize("retention", [0, 5.0, None])
def test_client_with_a_wrong_clock_enqueues_each_run_once(shop: Shop, ahead: float, retention: float | None) -> None:
    with Client(shop.url, shop.name) as client:
        client._clock = WrongClock(ahead)
        handles = [client.enqueue("work", {}, retention=retention) for _ in range(3)]
        handles += client.enqueue_many([("work", {})] * 20, retention=retention)
        handles.append(client.enqueue("work", {}, retention=retention, key="k"))
    shop.join("default:work@0")
    assert shop.claim("default:work@0").keys() == {handle.id for handle in handles}
    assert len({handle.id for handle in handles}) == 24
    if retention == 0:
        assert all(abs(made_at(handle.id) / 1000 - SystemClock().now()) < MINUTE / 2 for handle in handles)


async def test_asynchronous_client_with_a_wrong_clock_enqueues_each_run_once(shop: Shop) -> None:
    async with AsyncClient(shop.url, shop.name) as client:
        client._clock = WrongClock(-10 * MINUTE)
        handles: list[Any] = [await client.enqueue("work", {}, retention=0) for _ in range(3)]
    shop.join("default:work@0")
    assert shop.claim("default:work@0").keys() == {handle.id for handle in handles}
