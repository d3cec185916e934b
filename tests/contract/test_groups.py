"""Groups with a client: limits in all partitions, the partition of a group, refusals."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from coordinator import AsyncClient, BadOption, GroupLimit, GroupView, NotConfigured, Status
from coordinator.config import address
from coordinator.model.run_id import partition_of
from coordinator.store.keys import Namespace
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.transport.wire import Wire, drive
from workers import AsyncRun, Registry

PARTITIONS = 3


@pytest.fixture
def space(store_url: str) -> Namespace:
    wire = Wire(address(store_url), timeout=5)
    name = f"t{uuid.uuid4().hex[:10]}"
    made = drive(wire, namespace_plans.create(name, birth="b1", partitions=PARTITIONS, durability="local"))
    wire.close()
    return made


@pytest.fixture
async def client(store_url: str, space: Namespace) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(store_url, space.name) as made:
        yield made


def ask(store_url: str, plan: Any) -> Any:
    wire = Wire(address(store_url), timeout=5)
    try:
        return drive(wire, plan)
    finally:
        wire.close()


async def test_all_runs_of_a_group_are_in_one_partition(client: AsyncClient) -> None:
    await client.set_limit("k", at_once=1)
    for group in ("a", "b", "c", "d"):
        handles = await client.enqueue_many([("k", {"n": n}) for n in range(5)], group=group)
        assert len({partition_of(handle.id, PARTITIONS) for handle in handles}) == 1


async def test_limit_of_a_kind_counts_in_every_partition(client: AsyncClient) -> None:
    assert await client.set_limit("k", at_once=2) is True
    assert await client.set_limit("k", at_once=2) is False
    assert await client.set_limit("k", at_once=7, group="acme") is True
    assert await client.limits() == (GroupLimit("k", None, 2, "operator"), GroupLimit("k", "acme", 7, "operator"))
    for _ in range(20):
        with pytest.raises(BadOption, match=r"kind 'k' has a limit for each group, so its runs need a group"):
            await client.enqueue("k")
    assert await client.remove_limit("k") is True
    assert await client.remove_limit("k") is False
    await client.enqueue("k")


async def test_handler_names_the_input_that_is_the_group(client: AsyncClient) -> None:
    runs = Registry()

    @runs.handler(at_once=1, group_by="customer")
    async def research(run: AsyncRun, customer: str, n: int = 0) -> None: ...

    @runs.handler(group_by=lambda inputs: f"{inputs['a']}/{inputs['b']}")
    async def computed(run: AsyncRun, a: str, b: int) -> None: ...

    first = await client.enqueue(research.inputs("acme"))
    (second,) = await client.enqueue_many([research.inputs("acme", 2)])
    given = await client.enqueue(research.inputs("acme"), group="other")
    third = await client.enqueue(computed.inputs("x", 3))
    groups = [(await handle.view()).group for handle in (first, second, given, third)]
    assert groups == ["acme", "acme", "other", "x/3"]
    with pytest.raises(BadOption, match="no input of this name"):
        runs.handler(kind="wrong", group_by="nothing")(lambda run, a: None)


@pytest.mark.parametrize("limit", [{"at_once": 1}, {"at_once": 0}, {"rate": "1/s"}])
async def test_handler_with_a_limit_needs_a_group_before_its_limit_is_known(
    client: AsyncClient, limit: dict[str, Any]
) -> None:
    runs = Registry()

    @runs.handler(**limit)
    async def research(run: AsyncRun, n: int = 0) -> None: ...

    with pytest.raises(
        BadOption, match="the run of kind research was not enqueued: kind 'research' has a limit for each group"
    ):
        await client.enqueue(research.inputs())
    with pytest.raises(BadOption, match="kind 'research' has a limit for each group"):
        await client.enqueue_many([research.inputs(1)])
    with pytest.raises(BadOption, match="schedule 'nightly' was not set: kind 'research' has a limit for each group"):
        await client.schedule("nightly", "every 30s", research.inputs())
    assert not await client.schedules()
    assert not list(await client.list())
    assert (await client.enqueue(research.inputs(), group="acme")).created


async def test_schedule_of_a_kind_with_a_limit_is_refused(client: AsyncClient) -> None:
    await client.schedule("before", "every 30s", "k")
    await client.set_limit("k", at_once=2)
    with pytest.raises(BadOption, match="schedule 'nightly' was not set: kind 'k' has a limit for each group"):
        await client.schedule("nightly", "every 30s", "k")
    assert [schedule.name for schedule in await client.schedules()] == ["before"]


async def test_key_is_unique_within_its_group(client: AsyncClient) -> None:
    first = await client.enqueue("k", key="today", group="a")
    assert (await client.enqueue("k", key="today", group="b")).created
    again = await client.enqueue("k", key="today", group="a")
    assert (again.id, again.created) == (first.id, False)
    assert (await first.view()).key == "today"


@pytest.mark.parametrize("group", ["", "x" * 201, "a\nb", 7, "a\ud800"])
async def test_name_of_a_group_that_is_not_valid_is_refused(client: AsyncClient, group: Any) -> None:
    with pytest.raises(BadOption, match="is not text of 1 to 200 printable characters"):
        await client.enqueue("k", group=group)


@pytest.mark.parametrize("at_once", [-1, 1.5, "2", True, 10**9])
async def test_limit_that_is_not_a_whole_number_is_refused(client: AsyncClient, at_once: Any) -> None:
    with pytest.raises(BadOption, match="at_once"):
        await client.set_limit("k", at_once=at_once)


async def test_group_is_refused_while_an_older_process_is_alive(
    client: AsyncClient, store_url: str, space: Namespace
) -> None:
    keys = space.keys(0)
    old = worker_plans.WorkerRecord("w-old", 60_000, "host", 7, "", "fleet", "-", 1, (), knows=("waits",))
    ask(store_url, worker_plans.join(keys, "", old))
    refused = [group for group in map(str, range(20)) if await refuses(client, group)]
    assert refused, "no group is in the partition of the older process"
    ask(store_url, worker_plans.leave(keys, "w-old"))
    assert (await client.enqueue("k", group=refused[0])).created


async def test_rate_of_starts_is_refused_while_an_older_process_is_alive(
    client: AsyncClient, store_url: str, space: Namespace
) -> None:
    keys = space.keys(1)
    old = worker_plans.WorkerRecord("w-old", 60_000, "host", 7, "", "fleet", "-", 1, (), knows=("waits", "groups"))
    ask(store_url, worker_plans.join(keys, "", old))
    said = r"no rate of starts was set: worker w-old \(process 7 on host\) was started with an older version"
    with pytest.raises(NotConfigured, match=said):
        await client.set_limit("k", at_once=1, rate="10/min")
    assert await client.limits() == ()
    assert await client.set_limit("k", at_once=1)
    assert await client.set_limit("k", rate=None)
    ask(store_url, worker_plans.leave(keys, "w-old"))
    assert await client.set_limit("k", rate="10/min")


async def refuses(client: AsyncClient, group: str) -> bool:
    try:
        await client.enqueue("k", group=group)
    except NotConfigured as error:
        return "worker w-old (process 7 on host) was started with an older version that does not support groups" in str(
            error
        )
    return False


def without_time(why: str) -> str:
    """Replace the duration in the reason of a run that waits for a place."""
    return re.sub(r"for [0-9.]+ (ms|s|min)\b", "for TIME", why)


async def test_views_say_for_which_limit_a_run_waits(client: AsyncClient, store_url: str, space: Namespace) -> None:
    for keys in space.everywhere():
        member = worker_plans.WorkerRecord("w1", 60_000, "h", 1, "", "f", "c", 9, ("default:k@0",))
        ask(store_url, worker_plans.join(keys, "", member))
    await client.set_limit("k", at_once=2)
    handles = [await client.enqueue("k", group="acme") for _ in range(4)]
    views = [await handle.view() for handle in handles]
    assert [view.held and (view.held.before, view.held.taken, view.held.at_once) for view in views] == [
        None, None, (0, 2, 2), (1, 2, 2),
    ]  # fmt: skip
    where = "waits for a place in group 'acme' of kind 'k' for TIME: 2 of 2 are taken"
    assert [without_time(view.why) for view in views[2:]] == [where, f"{where}, and 1 run is ahead of it"]
    assert all(0 <= view.held.waited < 600 for view in views if view.held)
    overview = await client.status()
    (group,) = overview.groups
    assert replace(group, waited=0.0) == GroupView("k", "acme", 2, 2, 2)
    assert 0 < group.waited < 600
    assert overview.counts[Status.QUEUED] == 4
    assert {view.id for view in await client.list(status="queued")} == {handle.id for handle in handles}
    assert {view.id for view in await client.list(status="queued", queue="other")} == set()
    assert len(await client.list(kind="k")) == 4
    await client.set_limit("k", at_once=0)
    why = (await handles[3].view()).why
    assert why == "group 'acme' of kind 'k' has a limit of 0, so it admits no run: 'coordinator limit set' changes it"


async def test_run_without_a_known_limit_says_so(client: AsyncClient, store_url: str, space: Namespace) -> None:
    for keys in space.everywhere():
        member = worker_plans.WorkerRecord("w1", 60_000, "h", 1, "", "f", "c", 9, ("default:k@0",))
        ask(store_url, worker_plans.join(keys, "", member))
    handle = await client.enqueue("k", group="acme")
    view = await handle.view()
    assert (
        view.why == "group 'acme' of kind 'k' has no limit yet, so it admits no run: 'coordinator limit set' sets one"
    )
    assert await handle.cancel() == "cancelled"


async def test_run_says_when_the_rate_lets_it_start(client: AsyncClient, store_url: str, space: Namespace) -> None:
    for keys in space.everywhere():
        member = worker_plans.WorkerRecord("w1", 60_000, "h", 1, "", "f", "c", 9, ("default:k@0",))
        ask(store_url, worker_plans.join(keys, "", member))
    await client.set_limit("k", at_once=None, rate="1/h")
    await client.enqueue("k", {}, group="acme")
    second = await client.enqueue("k", {}, group="acme")
    view = await second.view()
    assert view.held is not None
    assert (view.held.before, view.held.rate, view.held.starts_in) == (0, "1/h", None)
    why = "waits for a start for TIME: group 'acme' of kind 'k' starts 1/h; the runs that may start wait for a worker"
    assert without_time(view.why) == why
    assert (await client.status()).groups[0].rate == "1/h"
    assert await client.set_limit("k", rate=None) is True
    assert [(limit.at_once, limit.rate) for limit in await client.limits()] == [(None, None)]


@pytest.mark.parametrize(
    "options", [{}, {"burst": 2}, {"rate": "fast"}, {"rate": "1/s", "burst": 0}, {"rate": None, "burst": 1}]
)
async def test_rate_of_starts_that_is_not_valid_is_refused(client: AsyncClient, options: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        await client.set_limit("k", **options)
