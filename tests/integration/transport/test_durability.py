"""replicated(n): a write that is not on n replicas counts as not done, whatever the master answered.

Real replicas, paused and resumed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from coordinator import AsyncClient, Client, Status
from coordinator.errors import NotConfigured, Unconfirmed
from coordinator.model.address import address
from coordinator.model.policies.schedule import rules_for, run_id
from coordinator.model.run_id import RunIds
from coordinator.store import server_checks as checks
from coordinator.store.keys import Keys, Tag
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans import schedules as schedule_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.script import Call, read
from coordinator.store.scripts import SCRIPTS
from coordinator.store.transport.wire import Wire, drive
from tests.clusters import replicated
from tests.conftest import StartServer
from tests.impatience import impatient, wire_of
from tests.lua.calls import PREPARE_EVERY
from tests.lua.store import Store
from tests.servers import DURABLE, Kind, Server
from tests.waiting import wait_until
from workers.durable.records.record import Checkpoint, Meta
from workers.durable.stores.redis_store import AsyncRedisStore, RedisStore

pytestmark = pytest.mark.matrix("replicas")

LEVEL = "replicated(1)"
# Timeout in seconds for calls that a replica has to confirm. It may be slow, and the wires here have short timeouts.
PATIENT = 30.0
ONE = RunIds().make(time.time(), 0)


class Pair:
    """A master and its replica."""

    def __init__(self, start: StartServer) -> None:
        self.master, self.replica = start(settings={"repl-diskless-sync-delay": "0"}), start()
        self.replica.admin.execute_command("REPLICAOF", "127.0.0.1", self.master.port)
        wait_until(lambda: self.master.admin.execute_command("ROLE")[2], "the replica follows")
        replicated(self.master)


@pytest.fixture
def pair(start_server: StartServer) -> Pair:
    return Pair(start_server)


@pytest.fixture(scope="module")
def lagging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Return one pair of servers for the tests of all scripts. Each test leaves its replica running."""
    servers: list[Server] = []

    def start(kind: Kind = "valkey", settings: Mapping[str, str] = DURABLE) -> Server:
        servers.append(Server(kind, tmp_path_factory.mktemp(kind), settings))
        return servers[-1]

    yield Pair(start)
    for server in servers:
        server.resume()
        server.close()


@pytest.fixture
def wire(pair: Pair) -> Iterator[Wire]:
    made = Wire(address(pair.master.url), timeout=1)
    yield made
    made.close()


def create_namespace(wire: Wire, namespace: str) -> Any:
    return drive(wire, namespace_plans.create(namespace, birth="b", durability=LEVEL), timeout=PATIENT)


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_enqueue_is_unconfirmed_until_a_replica_has_it(pair: Pair, wire: Wire, namespace: str, how: str) -> None:
    create_namespace(wire, namespace)
    with Client(pair.master.url, namespace) as client:
        async with AsyncClient(pair.master.url, namespace) as asynchronous:
            assert (await asynchronous.status()).durability == client.status().durability == LEVEL
            pair.replica.pause()

            async def enqueue(**options: Any) -> str:
                if how == "async":
                    return (await asynchronous.enqueue("k", {}, **options)).id
                return (await asyncio.to_thread(lambda: client.enqueue("k", {}, **options))).id

            with impatient(wire_of(asynchronous if how == "async" else client), 1.0):
                with pytest.raises(Unconfirmed, match="0 of 1 replicas") as caught:
                    await enqueue()
                (id,) = caught.value.ids
                # The master has the run. Finding it there in the second call confirms no more than the first call did.
                with pytest.raises(Unconfirmed):
                    await enqueue(id=id)
            pair.replica.resume()
            assert await enqueue(id=id) == id
            view = await asynchronous.handle(id).view()
            assert view.status is Status.QUEUED
    assert pair.replica.admin.exists(f"{{{namespace}:0}}:run:{id}")


async def test_reads_and_heartbeats_do_not_wait_for_replicas(pair: Pair, wire: Wire, namespace: str) -> None:
    space = create_namespace(wire, namespace)
    keys = space.keys(0)
    member = worker_plans.WorkerRecord("w1", 15_000, "h", 1, "s", "f", "c", 1, ("default:k@0",))
    assert drive(wire, worker_plans.join(keys, space.birth, member), timeout=PATIENT) == "ok"
    pair.replica.pause()
    async with AsyncClient(pair.master.url, namespace, timeout=30) as client:
        # This call keeps its connection busy until the replica confirms.
        waiting = asyncio.create_task(client.enqueue("k", {}, key="x"))
        for _ in range(20):
            assert (await client.status()).durability == LEVEL
        assert not waiting.done()
        assert drive(wire, worker_plans.heartbeat(keys, "w1", lease_ms=15_000, floor=0)) is not None
        pair.replica.resume()
        assert (await waiting).created


def test_unconfirmed_claim_starts_no_run(pair: Pair, wire: Wire, namespace: str) -> None:
    """Check that the worker gets no runs.

    The runs have an owner but no handler: the next comparison releases them without a strike.
    """
    space = create_namespace(wire, namespace)
    keys = space.keys(0)
    member = worker_plans.WorkerRecord("w1", 15_000, "h", 1, "s", "f", "c", 1, ("default:k@0",))
    drive(wire, worker_plans.join(keys, "b", member), timeout=PATIENT)
    drive(wire, client_plans.enqueue(space, [client_plans.NewRun(ONE, "default:k@0", b"")]), timeout=PATIENT)
    pair.replica.pause()
    with pytest.raises(Unconfirmed):
        drive(wire, worker_plans.claim(keys, "w1", number=1, want=1, routes=["default:k@0"], alone=False))
    beat = drive(wire, worker_plans.heartbeat(keys, "w1", lease_ms=15_000, floor=1, held=[]))
    assert beat is not None
    ((stray, token),) = beat.strays
    assert stray == ONE
    pair.replica.resume()
    assert drive(wire, attempt_plans.release(keys, ONE, token, mode="stopping"), timeout=PATIENT) == "ok"


def test_ending_is_repeated_until_a_replica_has_it(pair: Pair, wire: Wire, namespace: str) -> None:
    space = create_namespace(wire, namespace)
    keys = space.keys(0)
    member = worker_plans.WorkerRecord("w1", 15_000, "h", 1, "s", "f", "c", 1, ("default:k@0",))
    drive(wire, worker_plans.join(keys, "b", member), timeout=PATIENT)
    drive(wire, client_plans.enqueue(space, [client_plans.NewRun(ONE, "default:k@0", b"")]), timeout=PATIENT)
    claim = worker_plans.claim(keys, "w1", number=1, want=1, routes=["default:k@0"], alone=False)
    _, (run,) = drive(wire, claim, timeout=PATIENT)
    pair.replica.pause()
    back = threading.Timer(1.5, pair.replica.resume)
    back.start()
    assert drive(wire, attempt_plans.complete(keys, ONE, run.token, b""), timeout=PATIENT) == "ok"
    back.join()
    assert pair.replica.admin.hget(keys.run(ONE), "status") == b"completed"


def test_run_of_a_schedule_is_fired_only_when_a_replica_has_it(pair: Pair, wire: Wire, namespace: str) -> None:
    """A coordinator on a master that was cut off and replaced must not believe that it has fired a run."""
    space = create_namespace(wire, namespace)
    keys, hour = space.keys(0), 3_600_000
    new = schedule_plans.NewSchedule("s", rules_for("0 * * * *").packed(), "skip", "default:k@0", b"")
    assert drive(wire, schedule_plans.replace(keys, "b", new, "g"), timeout=PATIENT) == "ok"
    at = int(time.time() * 1000) // hour * hour
    first = schedule_plans.Fire("s", "g", "", "", str(at), str(at), "0", "")
    assert drive(wire, schedule_plans.fire(keys, [first], grace=1), timeout=PATIENT) == [("moved", "")]
    id = run_id("s", at, 0)
    fire = schedule_plans.Fire("s", "g", str(at), str(at), str(at + hour), str(at + hour), "0", id)
    pair.replica.pause()
    with pytest.raises(Unconfirmed):
        drive(wire, schedule_plans.fire(keys, [fire], grace=1))
    pair.replica.resume()
    assert drive(wire, schedule_plans.fire(keys, [fire], grace=1), timeout=PATIENT) == [("fired", id)]
    assert pair.replica.admin.hget(keys.run(id), "status") == b"queued"


def test_namespace_without_replication_does_not_wait_for_replicas(start_server: StartServer, namespace: str) -> None:
    server = start_server()
    with Client(server.url, namespace) as client:
        client.enqueue("k", {})
    assert "cmdstat_wait" not in server.admin.info("commandstats")


def test_durability_that_the_server_can_not_keep_is_rejected(start_server: StartServer, namespace: str) -> None:
    where = address(start_server().url)
    made = Wire(where, timeout=1)
    try:
        found = drive(made, checks.examine(where, namespace, LEVEL))
        with pytest.raises(NotConfigured, match="REPLICAOF"):
            checks.refuse(found)
    finally:
        made.close()


# ---- every script --------------------------------------------------------------------------------------------------------

CONFIRMED = [script.name for script in SCRIPTS if script.confirmed]


@pytest.mark.parametrize("name", CONFIRMED)
def test_repeated_script_is_not_confirmed_by_an_empty_wait(lagging: Pair, namespace: str, name: str) -> None:
    """Check scripts that write something the second time and scripts that do not, also on another connection."""
    store = Store(lagging.master.url, namespace)
    made, other = (Wire(address(lagging.master.url), timeout=5) for _ in range(2))
    for wire in (made, other):
        wire.ask([read("{x:0}", "PING")])
    try:
        request = next(PREPARE_EVERY[name](store))
        requests = [replace(one, at=Tag(one.at, 1)) for one in (request if isinstance(request, list) else [request])]
        lagging.replica.pause()
        with impatient(made, 0.01), impatient(other, 0.01):  # The trip has its normal timeout. Only its WAIT is short.
            assert _unconfirmed(made, requests), "the first time"
            assert _unconfirmed(other, requests), "the second time"
        lagging.replica.resume()
        assert not _unconfirmed(store.wire, requests)
    finally:
        lagging.replica.resume()
        made.close()
        other.close()
        store.close()


def _unconfirmed(wire: Wire, requests: Sequence[Call]) -> bool:
    return all(isinstance(answer, Unconfirmed) for answer in wire.ask(requests))


def test_script_that_does_not_wait_documents_the_reason() -> None:
    for script in SCRIPTS:
        if "Unconfirmed" in script.head:
            assert " ".join(script.head["Unconfirmed"]).count(" ") >= 2, script.name
    assert {"enqueue", "claim", "checkpoint", "complete", "fail", "retry", "release", "cancel"} <= set(CONFIRMED)
    assert read("{x:0}", "PING").replicas == 0


# ---- checkpoints alone ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_checkpoint_without_a_replica_is_unconfirmed(pair: Pair, wire: Wire, namespace: str, how: str) -> None:
    """Check that the checkpoint store keeps the durability of its namespace."""
    create_namespace(wire, namespace)
    checkpoint = Checkpoint(Meta("r1", "a"), [{"role": "user", "content": "hello"}])
    plain = RedisStore(pair.master.url, namespace, timeout=3)
    asynchronous = AsyncRedisStore(pair.master.url, namespace, timeout=3)

    async def save() -> None:
        if how == "async":
            return await asynchronous.save(checkpoint)
        return await asyncio.to_thread(plain.save, checkpoint)

    pair.replica.pause()
    try:
        with pytest.raises(Unconfirmed, match="0 of 1 replicas"):
            await save()
    finally:
        pair.replica.resume()
    await asyncio.to_thread(replicated, pair.master)
    await save()
    assert pair.replica.admin.exists(Keys(namespace, 0).record("r1"))
    await asyncio.to_thread(plain.close)
    await asynchronous.close()
