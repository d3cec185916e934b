"""Sentinel and Cluster behind the same wires: who is gone, moved or demoted costs a repetition, and never an answer."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from coordinator import AsyncClient, AsyncHandle, Client, Status
from coordinator.config import Settings
from coordinator.errors import NotConfigured, NotFound, Unreachable
from coordinator.model.address import address
from coordinator.model.run import partition_for
from coordinator.store import scripts
from coordinator.store import server_checks as checks
from coordinator.store.keys import Keys, Namespace
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.replies import word
from coordinator.store.script import read
from coordinator.store.transport.topology.hash_slots import slot_of
from coordinator.store.transport.wire import AsyncBell, AsyncWire, Bell, Wire, drive, drive_async
from tests.clusters import Cluster, ClusterNode, Group, replicated
from tests.servers import Kind, Server
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("a topology of their own")

P = 8


@pytest.fixture(params=["cluster", "sentinel"])
def url(request: pytest.FixtureRequest, shared_topologies: Callable[[str, Kind], Cluster | Group]) -> str:
    return shared_topologies(request.param, "redis").url


@pytest.fixture
def sync_wires() -> Iterator[Callable[..., Wire]]:
    made: list[Wire] = []

    def make(url: str, timeout: float = 20) -> Wire:
        made.append(Wire(address(url), timeout))
        return made[-1]

    yield make
    for wire in made:
        wire.close()


def founded(wire: Wire, namespace: str, durability: str = "local", partitions: int = P) -> Namespace:
    return drive(
        wire, namespace_plans.create(namespace, birth=uuid.uuid4().hex, partitions=partitions, durability=durability)
    )


def apart(cluster: Cluster, space: Namespace, node: ClusterNode) -> tuple[list[Keys], list[Keys]]:
    """The partitions that a node serves, and the others."""
    slots = next(other for other in cluster.nodes if other is not node).admin.execute_command("CLUSTER", "SLOTS")
    its = [(first, last) for first, last, master, *_ in slots if master[1] == node.port]
    parts: tuple[list[Keys], list[Keys]] = ([], [])
    for keys in space.everywhere():
        parts[not any(first <= slot_of(keys.at) <= last for first, last in its)].append(keys)
    return parts


# ---- the same as one server --------------------------------------------------------------------------------------------


async def test_one_turn_of_the_loop_goes_to_every_node_and_comes_back_in_order(url: str, namespace: str) -> None:
    wire = AsyncWire(address(url))
    try:
        space = await drive_async(wire, namespace_plans.create(namespace, birth="b", partitions=P))
        requests = [read(keys.at, "HGET", keys.namespace(), "birth") for keys in space.everywhere()] * 5
        assert await wire.ask(requests) == [b"b"] * len(requests)
    finally:
        await wire.close()


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_a_bell_listens_to_all_partitions(url: str, namespace: str, sync_wires: Any, how: str) -> None:
    wire = sync_wires(url)
    space = founded(wire, namespace)
    places = [keys.wake("c1") for keys in space.everywhere()]
    bell: Any = Bell(address(url)) if how == "sync" else AsyncBell(address(url))
    try:
        for keys in space.everywhere():
            wire.ask([read(keys.at, "RPUSH", keys.wake("c1"), f"run-{keys.partition}")])
        heard = set()
        for _ in places:
            found = await (asyncio.to_thread(bell.wait, places, 10.0) if how == "sync" else bell.wait(places, 10.0))
            assert found is not None
            heard.add(found[1])
        assert heard == {b"run-%d" % partition for partition in range(P)}
        assert await (asyncio.to_thread(bell.wait, places, 0.2) if how == "sync" else bell.wait(places, 0.2)) is None
    finally:
        await asyncio.to_thread(bell.close) if how == "sync" else await bell.close()


def test_closing_a_bell_ends_its_wait(url: str, namespace: str, sync_wires: Any) -> None:
    space = founded(sync_wires(url), namespace)
    bell, ended = Bell(address(url)), threading.Event()

    def wait() -> None:
        try:
            bell.wait([keys.wake("c1") for keys in space.everywhere()], 60.0)
        except Exception:  # noqa: BLE001  # however it ends
            ended.set()
        finally:
            bell.close()

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: _connected(bell), "the bell waits")
    bell.close()
    thread.join(10)
    assert ended.is_set()


def test_a_bell_that_is_closed_while_nobody_waits_keeps_no_connection(
    shared_topologies: Callable[[str, Kind], Cluster | Group], namespace: str, sync_wires: Any
) -> None:
    """By another thread than the one that waited: the waits of the other partitions are still under way on its loop."""
    url = shared_topologies("cluster", "redis").url
    wire = sync_wires(url)
    space = founded(wire, namespace)
    bell = Bell(address(url))
    wire.ask([read(space.keys(3).at, "RPUSH", space.keys(3).wake("c1"), "run-3")])
    waits = threading.Thread(target=lambda: bell.wait([keys.wake("c1") for keys in space.everywhere()], 60.0))
    waits.start()
    waits.join(10)
    assert _connected(bell), "the other partitions are waited for all the time"
    bell.close()
    loop = bell._cluster_bell
    assert loop is not None
    assert not loop._bell._pending or all(task.done() for task in loop._bell._pending.values())
    assert loop._loop.is_closed()
    with pytest.raises(Unreachable):
        bell.wait([space.keys(3).wake("c1")], 1.0)


def _connected(bell: Bell) -> bool:
    return bool(bell._pools) or (bell._cluster_bell is not None and bool(bell._cluster_bell._bell._pending))


def test_a_script_that_a_node_forgot_is_sent_whole_to_that_node_alone(
    start_cluster: Callable[..., Cluster], namespace: str, sync_wires: Any
) -> None:
    cluster = start_cluster("redis")
    wire = sync_wires(cluster.url)
    space = founded(wire, namespace)
    for node in cluster.nodes:
        node.admin.execute_command("SCRIPT", "FLUSH")
    _, others = apart(cluster, space, cluster.nodes[0])  # before its replica takes over
    cluster.nodes[0].pause()  # a client that loaded scripts everywhere would hang here
    try:
        replies = wire.ask([scripts.RING.call(keys.at, most=1) for keys in others], timeout=10)
        assert {word(reply) for reply in replies} == {"ok"}
    finally:
        cluster.nodes[0].resume()


# ---- failovers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_a_hand_over_in_a_cluster_is_followed(
    start_cluster: Callable[..., Cluster], namespace: str, sync_wires: Any, how: str
) -> None:
    """CLUSTER FAILOVER: the old master becomes a replica and answers MOVED."""
    cluster = start_cluster()
    space = founded(sync_wires(cluster.url), namespace)
    async with AsyncClient(cluster.url, namespace) as asynchronous:
        with Client(cluster.url, namespace) as client:

            async def enqueue() -> str:
                if how == "async":
                    return (await asynchronous.enqueue("k", {})).id
                return (await asyncio.to_thread(client.enqueue, "k", {})).id

            before = [await enqueue() for _ in range(20)]
            await asyncio.to_thread(cluster.hand_over, space.keys(0).at)
            after = [await enqueue() for _ in range(20)]
            for id in [*before, *after]:
                assert (await asynchronous.handle(id).view()).id == id


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_a_master_that_is_killed_is_replaced_and_found(
    start_cluster: Callable[..., Cluster], start_group: Callable[..., Group], namespace: str, how: str
) -> None:
    """A call that began before the failover is answered after it, without its caller doing anything."""
    for made in (start_cluster(), start_group()):
        async with AsyncClient(made.url, namespace, timeout=50) as asynchronous:
            with Client(made.url, namespace, timeout=50) as client:
                first = await asynchronous.enqueue("k", {}, key="before")
                master = made.master_of(f"{{{namespace}:0}}") if isinstance(made, Cluster) else made.master
                await asyncio.to_thread(replicated, master)
                await asyncio.to_thread(master.kill)
                if how == "async":
                    second = (await asynchronous.enqueue("k", {}, key="after")).id
                else:
                    second = (await asyncio.to_thread(client.enqueue, "k", {}, key="after")).id
                views = [await asynchronous.handle(id).view() for id in (first.id, second)]
                assert [view.status for view in views] == ["queued", "queued"]


def test_what_all_replicas_confirmed_survives_a_failover_that_tells_the_old_master_last(
    start_group: Callable[..., Group], namespace: str, sync_wires: Any
) -> None:
    """SENTINEL FAILOVER of Redis: the old master goes on for seconds with the replica that it still has. What only that one
    confirmed is lost; so with two replicas it takes replicated(2)."""
    group = start_group("redis")
    founded(sync_wires(group.url), namespace, "replicated(2)", partitions=1)
    stop, acknowledged = threading.Event(), []

    def enqueue() -> None:
        with Client(group.url, namespace, timeout=50) as client:
            while not stop.is_set():
                acknowledged.append(client.enqueue("k", {}).id)

    threads = [threading.Thread(target=enqueue) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(acknowledged) > 30, "some are enqueued")
    before = len(acknowledged)
    group.hand_over()
    wait_until(lambda: len(acknowledged) > before + 30, "it goes on", timeout=90)
    stop.set()
    for thread in threads:
        thread.join(60)
    with Client(group.url, namespace, timeout=50) as client:
        lost = [id for id in acknowledged if not _there(client, id)]
    assert lost == [], f"{len(lost)} of {len(acknowledged)} are lost"


def _there(client: Client, id: str) -> bool:
    try:
        return client.handle(id).view().id == id
    except NotFound:
        return False


async def test_one_master_that_is_away_affects_only_its_partitions(
    start_cluster: Callable[..., Cluster], namespace: str, sync_wires: Any
) -> None:
    """Without replicas, so that nobody takes its place. Runs without a key go elsewhere; a new client comes in all the same."""
    cluster = start_cluster(replicas=0)
    space = founded(sync_wires(cluster.url), namespace)
    zero = cluster.master_of(space.keys(0).at)
    victim = next(node for node in cluster.nodes if node is not zero and apart(cluster, space, node)[0])
    away, others = apart(cluster, space, victim)
    async with AsyncClient(cluster.url, namespace, timeout=5) as known:
        await known.enqueue("k", {})
        victim.kill()
        async with AsyncClient(cluster.url, namespace, timeout=5) as new:
            for client in (known, new):
                async with asyncio.timeout(30):
                    handles = [await client.enqueue("k", {}) for _ in range(40)]
                assert {int(handle.id[-2:]) for handle in handles} <= {keys.partition for keys in others}
            with Client(cluster.url, namespace, timeout=5) as plain:
                many = await asyncio.to_thread(plain.enqueue_many, [("k", {})] * 50)
                assert {int(handle.id[-2:]) for handle in many} <= {keys.partition for keys in others}
        gone = next(key for key in map(str, range(1000)) if _partition(key) in {keys.partition for keys in away})
        with pytest.raises(Unreachable):
            await known.enqueue("k", {}, key=gone)


def _partition(key: str) -> int:
    return partition_for(key, P)


# ---- starting in the middle of one ----------------------------------------------------------------------------------------


def demoted(made: Cluster | Group, tag: str) -> Server:
    """Hands the partition over. The node that was its master and knows by now that it is a replica."""
    old = made.master_of(tag) if isinstance(made, Cluster) else made.master
    made.hand_over(tag)
    wait_until(lambda: _role(old) == b"slave", "the old master is a replica", timeout=60)
    wait_until(made.whole, "all follow", timeout=60)
    return old


def _role(server: Server) -> bytes:
    try:
        return bytes(server.admin.execute_command("ROLE")[0])
    except redis.ConnectionError:
        return b""


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("topology", ["cluster", "sentinel"])
async def test_who_starts_with_a_map_that_a_failover_made_old_is_not_refused(
    shared_topologies: Callable[[str, Kind], Cluster | Group],
    namespace: str,
    sync_wires: Any,
    topology: str,
    how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A process that starts during a failover finds a master and asks it; meanwhile it is one no more. Its settings count no more
    than its role: a replica that fills up again has its append-only file off."""
    made = shared_topologies(
        topology, "valkey"
    )  # whose sentinels tell the old master at once, and not after ten seconds
    url, settings = made.url, Settings(made.url, namespace)
    wire, other = sync_wires(url), AsyncWire(address(url))
    try:
        space = founded(wire, namespace)
        await drive_async(other, checks.enter(settings))
        old = await asyncio.to_thread(demoted, made, space.keys(0).at)
        old.admin.config_set("appendonly", "no")
        try:
            if how == "sync":
                entered = await asyncio.to_thread(drive, wire, checks.enter(settings))
            else:
                entered = await drive_async(other, checks.enter(settings))
        finally:
            old.admin.config_set("appendonly", "yes")
        assert entered == space
        said = [record.message for record in caplog.records if record.name.endswith("checks")]
        assert len(said) <= 1, said  # in a Cluster its master is known by then, and is looked at instead
        assert all("there was a failover" in sentence for sentence in said)
    finally:
        await other.close()


def test_who_starts_before_the_slots_are_served_waits_for_them(
    start_cluster: Callable[..., Cluster], namespace: str
) -> None:
    """CLUSTERDOWN: a node that is not sure of the others answers nobody."""
    cluster = start_cluster(replicas=0)
    slot = slot_of(Keys(namespace, 0).at)
    owner = cluster.master_of(Keys(namespace, 0).at)
    for node in cluster.nodes:
        node.admin.execute_command("CLUSTER", "DELSLOTS", slot)
    with Client(cluster.url, namespace, timeout=50) as client, ThreadPoolExecutor() as threads:
        enqueued = threads.submit(client.enqueue, "k", {})
        with pytest.raises(TimeoutError):
            enqueued.result(0.5)  # neither refused nor given up
        owner.admin.execute_command("CLUSTER", "ADDSLOTS", slot)
        assert enqueued.result(40).view().status == "queued"


# ---- a URL that does not fit ------------------------------------------------------------------------------------------------


def test_a_scheme_that_does_not_fit_is_said_at_once(
    shared_topologies: Callable[[str, Kind], Cluster | Group], redis_server: Server
) -> None:
    cluster, group = shared_topologies("cluster", "redis"), shared_topologies("sentinel", "redis")
    assert isinstance(cluster, Cluster)
    assert isinstance(group, Group)
    elsewhere = next(node for node in cluster.nodes if node is not cluster.master_of(Keys("n", 0).at))
    sentinel = group.sentinels[0].port
    for url, sentence in (
        (f"redis://127.0.0.1:{elsewhere.port}", r"is a node of a Cluster.*use redis\+cluster://"),
        (f"redis+cluster://127.0.0.1:{redis_server.port}", "is not a Cluster node: use redis://"),
        (f"redis+sentinel://127.0.0.1:{redis_server.port}/mymaster", "is not a sentinel: name the sentinels"),
        (f"redis://127.0.0.1:{sentinel}", r"if it is a sentinel, use redis\+sentinel://"),
        (f"redis+cluster://127.0.0.1:{sentinel}", r"if it is a sentinel, use redis\+sentinel://"),
    ):
        with Client(url, "n", timeout=50) as client, pytest.raises(NotConfigured, match=sentence):
            client.enqueue("k", {})


# ---- resharding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "how"), [("valkey", "key by key"), ("redis", "key by key"), ("valkey", "at once")])
async def test_while_a_slot_is_moved_no_script_sees_half_of_its_keys(
    start_cluster: Callable[..., Cluster], namespace: str, sync_wires: Any, kind: Kind, how: str
) -> None:
    """A script builds keys that the server does not know of beforehand. If one were carried out in the middle of a move it would
    miss those that are on the other side: an enqueue would begin a second line, a completion would be fenced."""
    cluster = start_cluster(kind)
    space = founded(sync_wires(cluster.url), namespace, partitions=1)
    async with AsyncClient(cluster.url, namespace, timeout=50) as client:
        first = await client.enqueue_many([("k", {})] * 300)
        moving = asyncio.create_task(asyncio.to_thread(cluster.reshard, space.keys(0).at, 3, at_once=how == "at once"))
        during: list[AsyncHandle[Any]] = []
        while not moving.done() or len(during) < 50:
            during.append(await client.enqueue("k", {}))
        target = await moving
        assert cluster.master_of(space.keys(0).at) is target
        handles = [*first, *during]
        assert len({handle.id for handle in handles}) == len(handles)
        assert (await client.status()).counts[Status.QUEUED] == len(handles)
        assert target.admin.zcard(space.keys(0).ready("default:k@0")) == len(handles)
