"""One node of a Cluster without a replica hangs (SIGSTOP) or is gone: requests to other nodes are not affected."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from coordinator.model.address import address
from coordinator.store.script import read
from coordinator.store.transport import sync_wire
from coordinator.store.transport.wire import AsyncBell, Bell, Wire
from tests.clusters import Cluster
from tests.integration.transport.test_topologies import apart, create_namespace
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("a topology of their own")

LONG = 90.0


@pytest.fixture
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(replicas=0)


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_bell_returns_tokens_of_reachable_partitions(cluster: Cluster, namespace: str, how: str) -> None:
    """Fail the node immediately. A token that arrives afterwards is not dropped, and it ends the wait."""
    wire = Wire(address(cluster.url))
    space = create_namespace(wire, namespace)
    victim = next(node for node in cluster.nodes if apart(cluster, space, node)[0])
    _, others = apart(cluster, space, victim)
    victim.kill()
    bell: Any = Bell(address(cluster.url)) if how == "sync" else AsyncBell(address(cluster.url))
    places = [keys.wake("c1") for keys in space.everywhere()]

    def in_a_thread() -> Any:
        try:
            return bell.wait(places, LONG)
        finally:
            bell.close()  # The thread that waited closes it.

    async def in_a_task() -> Any:
        try:
            return await bell.wait(places, LONG)
        finally:
            await bell.close()

    try:
        waiting = asyncio.create_task(asyncio.to_thread(in_a_thread) if how == "sync" else in_a_task())
        blocked = [cluster.master_of(keys.at) for keys in others]
        await asyncio.to_thread(
            wait_until, lambda: all(int(n.admin.info("clients")["blocked_clients"]) for n in blocked), "all others wait"
        )
        await asyncio.to_thread(wire.ask, [read(others[0].at, "RPUSH", others[0].wake("c1"), "run-1")])
        async with asyncio.timeout(LONG / 2):
            assert await waiting == (others[0].wake("c1"), b"run-1")
    finally:
        wire.close()


def test_requests_to_other_nodes_are_sent_while_one_node_hangs(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Call all partitions at once from a thread: the hanging node is the first, and its trip takes very long."""
    monkeypatch.setattr(sync_wire, "TRIP_SECONDS", LONG)
    wire = Wire(address(cluster.url), timeout=LONG)
    space = create_namespace(wire, namespace)
    victim = next(node for node in cluster.nodes if apart(cluster, space, node)[0])
    away, others = apart(cluster, space, victim)
    admins = {keys.partition: cluster.master_of(keys.at).admin for keys in others}
    victim.pause()
    requests = [read(keys.at, "SET", keys.mark(), "1") for keys in [*away, *others]]
    asking = threading.Thread(target=lambda: wire.ask(requests))
    asking.start()
    try:
        wait_until(
            lambda: all(admins[keys.partition].exists(keys.mark()) for keys in others), "the others have it", LONG / 3
        )
        # A call to the other nodes only is not delayed by a topology search that asks the hanging node.
        wire._lanes.topology.stale = True
        assert wire.ask([read(others[0].at, "GET", others[0].mark())]) == [b"1"]
        assert asking.is_alive()
    finally:
        victim.resume()
        asking.join(LONG)
        wire.close()
    assert cluster.master_of(away[0].at).admin.exists(away[0].mark())
