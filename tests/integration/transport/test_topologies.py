"""Sentinel and Cluster behind the same wires: a node that is gone, moved or demoted costs a repeated call, and never an answer."""

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
from coordinator.model.run_id import partition_for
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


def create_namespace(wire: Wire, namespace: str, durability: str = "local", partitions: int = P) -> Namespace:
    return drive(
        wire, namespace_plans.create(namespace, birth=uuid.uuid4().hex, partitions=partitions, durability=durability)
    )


def apart(cluster: Cluster, space: Namespace, node: ClusterNode) -> tuple[list[Keys], list[Keys]]:
    """Return the partitions that a node serves, and the others."""
    slots = next(other for other in cluster.nodes if other is not node).admin.execute_command("CLUSTER", "SLOTS")
    its = [(first, last) for first, last, master, *_ in slots if master[1] == node.port]
    parts: tuple[list[Keys], list[Keys]] = ([], [])
    for keys in space.everywhere():
        parts[not any(first <= slot_of(keys.at) <= last for first, last in its)].append(keys)
    return parts


# ---- same behaviour as one server --------------------------------------------------------------------------------------


async def test_requests_of_one_loop_turn_reach_every_node_and_answers_keep_order(url: str, namespace: str) -> None:
    wire = AsyncWire(address(url))
    try:
        space = await drive_async(wire, namespace_plans.create(namespace, birth="b", partitions=P))
        requests = [read(keys.at, "HGET", keys.namespace(), "birth") for keys in space.everywhere()] * 5
        assert await wire.ask(requests) == [b"b"] * len(requests)
    finally:
        await wire.close()


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_bell_listens_to_all_partitions(url: str, namespace: str, sync_wires: Any, how: str) -> None:
    wire = sync_wires(url)
    space = create_namespace(wire, namespace)
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
    space = create_namespace(sync_wires(url), namespace)
    bell, ended = Bell(address(url)), threading.Event()

    def wait() -> None:
        try:
            bell.wait([keys.wake("c1") for keys in space.everywhere()], 60.0)
        except Exception:  # noqa: BLE001  # Any way of ending is fine.
            ended.set()
        finally:
            bell.close()

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: _connected(bell), "the bell waits")
    bell.close()
    thread.join(10)
    assert ended.is_set()


def test_bell_closed_without_a_waiter_keeps_no_connection(
    shared_topologies: Callable[[str, Kind], Cluster | Group], namespace: str, sync_wires: Any
) -> None:
    """Close it from another thread than the one that waited: the waits of the other partitions are still running on its loop."""
    url = shared_topologies("cluster", "redis").url
    wire = sync_wires(url)
    space = create_namespace(wire, namespace)
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


def test_script_lost_by_a_node_is_resent_to_that_node_only(
    start_cluster: Callable[..., Cluster], namespace: str, sync_wires: Any
) -> None:
    cluster = start_cluster("redis")
    wire = sync_wires(cluster.url)
    space = create_namespace(wire, namespace)
    for node in cluster.nodes:
        node.admin.execute_command("SCRIPT", "FLUSH")
    _, others = apart(cluster, space, cluster.nodes[0])  # This happens before its replica takes over.
    cluster.nodes[0].pause()  # A client that loaded scripts on every node would hang here.
    try:
        replies = wire.ask([scripts.RING.call(keys.at, most=1) for keys in others], timeout=10)
        assert {word(reply) for reply in replies} == {"ok"}
    finally:
        cluster.nodes[0].resume()


# ---- failovers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_cluster_failover_is_followed(
    start_cluster: Callable[..., Cluster], namespace: str, sync_wires: Any, how: str
) -> None:
    """Use CLUSTER FAILOVER: the old master becomes a replica and answers MOVED."""
    cluster = start_cluster()
    space = create_namespace(sync_wires(cluster.url), namespace)
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
async def test_replacement_of_a_killed_master_is_found(
    start_cluster: Callable[..., Cluster], start_group: Callable[..., Group], namespace: str, how: str
) -> None:
    """Check that a call that began before the failover is answered after it, without any action of its caller."""
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


def test_write_confirmed_by_all_replicas_survives_a_slow_demotion(
    start_group: Callable[..., Group], namespace: str, sync_wires: Any
) -> None:
    """Use SENTINEL FAILOVER of Redis: the old master continues for seconds with the replica that it still has.

    A write that only this replica confirmed is lost; so two replicas need replicated(2).
    """
    group = start_group("redis")
    create_namespace(sync_wires(group.url), namespace, "replicated(2)", partitions=1)
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
    wait_until(lambda: len(acknowledged) > before + 30, "acknowledgements continue", timeout=90)
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


async def test_unreachable_master_affects_only_its_partitions(
    start_cluster: Callable[..., Cluster], namespace: str, sync_wires: Any
) -> None:
    """Use masters without replicas, so that no node replaces the stopped one.

    Runs without a key go elsewhere, and a new client can connect.
    """
    cluster = start_cluster(replicas=0)
    space = create_namespace(sync_wires(cluster.url), namespace)
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


# ---- starting during a failover -------------------------------------------------------------------------------------------


def demoted(made: Cluster | Group, tag: str) -> Server:
    """Fail the partition over. Return its old master when that node knows that it is a replica."""
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
async def test_start_with_an_outdated_map_during_a_failover_succeeds(
    shared_topologies: Callable[[str, Kind], Cluster | Group],
    namespace: str,
    sync_wires: Any,
    topology: str,
    how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Start a process during a failover: it finds a master and asks it, and meanwhile that node has become a replica.

    Its settings are ignored like its old role: a replica that loads data again has its append-only file off.
    """
    made = shared_topologies(
        topology, "valkey"
    )  # These sentinels inform the old master immediately, and not after ten seconds.
    url, settings = made.url, Settings(made.url, namespace)
    wire, other = sync_wires(url), AsyncWire(address(url))
    try:
        space = create_namespace(wire, namespace)
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
        assert len(said) <= 1, said  # In a Cluster the new master is known by then, and is checked instead.
        assert all("there was a failover" in sentence for sentence in said)
    finally:
        await other.close()


def test_start_waits_until_all_hash_slots_are_served(start_cluster: Callable[..., Cluster], namespace: str) -> None:
    """Expect CLUSTERDOWN: a node that is not sure of the others answers no request."""
    cluster = start_cluster(replicas=0)
    slot = slot_of(Keys(namespace, 0).at)
    owner = cluster.master_of(Keys(namespace, 0).at)
    for node in cluster.nodes:
        node.admin.execute_command("CLUSTER", "DELSLOTS", slot)
    with Client(cluster.url, namespace, timeout=50) as client, ThreadPoolExecutor() as threads:
        enqueued = threads.submit(client.enqueue, "k", {})
        with pytest.raises(TimeoutError):
            enqueued.result(0.5)  # The call is neither refused nor abandoned.
        owner.admin.execute_command("CLUSTER", "ADDSLOTS", slot)
        assert enqueued.result(40).view().status == "queued"


# ---- a URL that does not fit ------------------------------------------------------------------------------------------------


def test_url_scheme_that_does_not_fit_the_server_is_reported_immediately(
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
        (f"redis://127.0.0.1:{sentinel}", r"or it is a sentinel, which needs redis\+sentinel://"),
        (f"redis+cluster://127.0.0.1:{sentinel}", r"or it is a sentinel, which needs redis\+sentinel://"),
    ):
        with Client(url, "n", timeout=50) as client, pytest.raises(NotConfigured, match=sentence):
            client.enqueue("k", {})


# ---- resharding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "how"), [("valkey", "key by key"), ("redis", "key by key"), ("valkey", "at once")])
async def test_no_script_sees_half_of_its_keys_while_a_hash_slot_moves(
    start_cluster: Callable[..., Cluster], namespace: str, sync_wires: Any, kind: Kind, how: str
) -> None:
    """Check that scripts are safe, which build keys that the server does not know beforehand.

    A script in the middle of a move would miss the keys on the other side: an enqueue would begin a second ready queue, a
    completion would be fenced.
    """
    cluster = start_cluster(kind)
    space = create_namespace(sync_wires(cluster.url), namespace, partitions=1)
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
