"""The wires: lost replies, scripts and servers; requests that share a trip; errors that say what to do and contain no secret."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from coordinator.config import address
from coordinator.errors import CoordinatorError, NotConfigured, Unconfirmed, Unreachable
from coordinator.store import scripts
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans.clients import NewRun
from coordinator.store.script import read
from coordinator.store.scripts import SCRIPTS
from coordinator.store.transport import sync_wire as sync_wires
from coordinator.store.transport.wire import AsyncWire, Wire, drive, drive_async
from tests.conftest import StartServer
from tests.lua.calls import ANSWERS_DIFFER_WHEN_REPEATED, PREPARE
from tests.lua.store import ROUTES, Store, delta
from tests.proxy import Proxy, naming
from tests.servers import Server
from tests.waiting import eventually, wait_until

SECRET = "s3cr3t-pa55"
PING = read("{x:0}", "PING")


@pytest.fixture
def proxy(valkey_server: Server) -> Iterator[Proxy]:
    proxy = Proxy(valkey_server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def open_store(namespace: str) -> Iterator[Callable[..., Store]]:
    """Open stores for this test, each in a namespace of its own."""
    stores: list[Store] = []

    def open_one(server: Server) -> Store:
        stores.append(Store(server.url, f"{namespace}.{len(stores)}"))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def sync_wire() -> Iterator[Callable[..., Wire]]:
    wires: list[Wire] = []

    def make(url: str, timeout: float = 10) -> Wire:
        wires.append(Wire(address(url), timeout))
        return wires[-1]

    yield make
    for made in wires:
        made.close()


@pytest.fixture
async def async_wire() -> AsyncIterator[Callable[..., AsyncWire]]:
    wires: list[AsyncWire] = []

    def make(url: str, timeout: float = 10, **more: Any) -> AsyncWire:
        wires.append(AsyncWire(address(url), timeout, **more))
        return wires[-1]

    yield make
    for made in wires:
        await made.close()


def load_all(server: Server) -> None:
    for script in SCRIPTS:
        server.admin.script_load(script.text)


def contents(store: Store) -> dict[str, Any]:
    """Return everything that is stored, without the namespace's name."""
    return {key.split("}:", 1)[1]: value for key, value in store.dump().items()}


async def carried(
    how: str, make_sync: Callable[..., Wire], make_async: Callable[..., AsyncWire], url: str, plan: Any
) -> Any:
    if how == "async":
        return await drive_async(make_async(url), plan)
    return await asyncio.to_thread(drive, make_sync(url), plan)


# ---- lost replies ------------------------------------------------------------------------------------------------------


@pytest.mark.quick_cases(46)
@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("name", PREPARE)
async def test_call_with_a_lost_reply_is_repeated_with_the_same_answer(
    valkey_server: Server, proxy: Proxy, open_store: Any, sync_wire: Any, async_wire: Any, name: str, how: str
) -> None:
    """Call it once without a fault and once with a reply that is lost after the execution: the answer and the stored data are the
    same.
    """
    load_all(valkey_server)
    plain, faulty = open_store(valkey_server), open_store(valkey_server)
    expected = plain.do(PREPARE[name](plain))
    plan = PREPARE[name](faulty)
    script = next(script for script in SCRIPTS if script.name == name)
    cut = proxy.cut_next_reply(naming(script.sha.encode()))
    answer = await carried(how, sync_wire, async_wire, proxy.url, plan)
    assert cut.happened.is_set()
    if name == "create_namespace":
        assert answer.birth == expected.birth
    elif name not in ANSWERS_DIFFER_WHEN_REPEATED:
        assert answer == expected
    # A repeated trim_children finds that the children were just looked at. It removes them at the next look. The entry of
    # `interrupt` has the server's time as its id.
    if name not in ("recover", "create_namespace", "trim_children", "interrupt"):
        assert contents(faulty) == contents(plain)


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_repeated_recovery_continues_with_the_next_batch(
    valkey_server: Server, proxy: Proxy, open_store: Any, sync_wire: Any, async_wire: Any, how: str
) -> None:
    load_all(valkey_server)
    store = open_store(valkey_server)
    plan = PREPARE["recover"](store)
    proxy.cut_next_reply(naming(scripts.RECOVER.sha.encode()))
    answer = await carried(how, sync_wire, async_wire, proxy.url, plan)
    assert (answer.queued, answer.left) == (1, 0), "two batches of one"


async def test_lost_reply_in_a_pipeline_does_not_affect_other_requests(
    valkey_server: Server, proxy: Proxy, open_store: Any, async_wire: Any
) -> None:
    load_all(valkey_server)
    store = open_store(valkey_server)
    runs = [store.running() for _ in range(4)]
    proxy.cut_next_reply(naming(scripts.RELEASE.sha.encode()))
    made = async_wire(proxy.url)
    answers: Any = await asyncio.gather(
        drive_async(made, attempt_plans.complete(store.keys, runs[0].id, runs[0].token, b"", now=store.at)),
        drive_async(made, attempt_plans.release(store.keys, runs[1].id, runs[1].token, mode="stopping", now=store.at)),
        drive_async(
            made, attempt_plans.checkpoint(store.keys, runs[2].id, runs[2].token, delta(1, count=1), now=store.at)
        ),
        drive_async(made, attempt_plans.fail(store.keys, runs[3].id, runs[3].token, b"e", now=store.at)),
    )
    assert list(answers) == ["ok", "ok", ("ok", 1), "ok"]
    assert store.counters(runs[1].id).releases == 1


# ---- lost scripts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_scripts_lost_by_the_server_are_resent(
    real_server: Server, open_store: Any, sync_wire: Any, async_wire: Any, how: str
) -> None:
    store = open_store(real_server)
    for name, prepare in PREPARE.items():
        script = next(script for script in SCRIPTS if script.name == name)
        plan = prepare(open_store(real_server))
        real_server.admin.script_flush()
        await carried(how, sync_wire, async_wire, real_server.url, plan)
        assert real_server.admin.script_exists(script.sha) == [True], f"{name} was not sent"
    assert store.enqueue()


async def test_pipeline_of_lost_scripts_is_answered_in_order(
    real_server: Server, open_store: Any, async_wire: Any
) -> None:
    store = open_store(real_server)
    runs = [store.running() for _ in range(3)]
    made = async_wire(real_server.url)
    real_server.admin.script_flush()
    real_server.admin.script_load(scripts.FAIL.text)  # The server knows one of them.
    answers: Any = await asyncio.gather(
        drive_async(made, attempt_plans.complete(store.keys, runs[0].id, runs[0].token, b"r", now=store.at)),
        drive_async(made, attempt_plans.fail(store.keys, runs[1].id, runs[1].token, b"e", now=store.at)),
        drive_async(made, client_plans.cancel(store.keys, runs[2].id, operation="o", grace=1, now=store.at)),
        drive_async(made, attempt_plans.complete(store.keys, runs[1].id, "1-1-w1", b"r", now=store.at)),
        drive_async(made, client_plans.view(store.keys, "00000000000000000009-00")),
    )
    assert list(answers) == ["ok", "ok", ["cancelling"], "fenced", None]
    assert made.trips <= 2


# ---- lost servers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_wire_reconnects_to_a_restarted_server(
    start_server: StartServer, open_store: Any, sync_wire: Any, async_wire: Any, how: str
) -> None:
    server = start_server()
    store = open_store(server)
    run = store.running()
    made = sync_wire(server.url, 60) if how == "sync" else async_wire(server.url, 60)
    ask = (
        (lambda plan: asyncio.to_thread(drive, made, plan)) if how == "sync" else (lambda plan: drive_async(made, plan))
    )
    assert await ask(attempt_plans.checkpoint(store.keys, run.id, run.token, delta(1, count=1), now=store.at)) == (
        "ok",
        1,
    )
    server.kill()
    back = threading.Timer(0.3, server.restart)
    back.start()
    assert await ask(attempt_plans.complete(store.keys, run.id, run.token, b"r", now=store.at)) == "ok"
    back.join()
    assert store.status(run.id) == "completed"


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_missing_server_is_unreachable_within_the_timeout(
    proxy: Proxy, sync_wire: Any, async_wire: Any, namespace: str, how: str
) -> None:
    proxy.refuse()
    plan = namespace_plans.create(namespace, birth="b")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with pytest.raises(Unreachable, match=f"redis://127.0.0.1:{proxy.port}/0 can't be reached"):
        await carried(how, partial(sync_wire, timeout=0.5), partial(async_wire, timeout=0.5), proxy.url, plan)
    assert loop.time() - begun < 20, "as a wire that has no timeout given would try"


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_request_without_an_answer_is_unconfirmed(
    valkey_server: Server, proxy: Proxy, open_store: Any, sync_wire: Any, async_wire: Any, monkeypatch: Any, how: str
) -> None:
    load_all(valkey_server)
    store = open_store(valkey_server)
    run = store.running()
    monkeypatch.setattr(sync_wires, "TRIP_SECONDS", 0.3)
    proxy.hold_requests(naming(scripts.COMPLETE.sha.encode()))
    plan = attempt_plans.complete(store.keys, run.id, run.token, b"r", now=store.at)
    made = sync_wire(proxy.url) if how == "sync" else async_wire(proxy.url, trip_seconds=0.3)
    # A client that can not connect in this short time, on a busy machine, has sent nothing.
    await (asyncio.to_thread(made.ask, [PING]) if how == "sync" else made.ask([PING]))
    with pytest.raises(Unconfirmed, match="may have been carried out"):
        await (asyncio.to_thread(drive, made, plan, 0.5) if how == "sync" else drive_async(made, plan, 0.5))
    assert store.status(run.id) == "running"
    proxy.release_requests()
    wait_until(lambda: store.status(run.id) == "completed", "the late request to be carried out")


async def test_sent_request_stays_unconfirmed_after_a_refused_reconnect(
    valkey_server: Server, proxy: Proxy, open_store: Any, async_wire: Any
) -> None:
    load_all(valkey_server)
    store = open_store(valkey_server)
    run = store.running()
    proxy.hold_requests(naming(scripts.COMPLETE.sha.encode()))
    made = async_wire(proxy.url, trip_seconds=0.5)
    await made.ask([PING])
    plan = attempt_plans.complete(store.keys, run.id, run.token, b"r", now=store.at)
    caller = asyncio.create_task(drive_async(made, plan, 0.5))
    await eventually(lambda: proxy.held == 1, "the trip to be sent")
    proxy.refuse()
    with pytest.raises(Unconfirmed, match="may have been carried out"):
        await caller


# ---- requests that share a trip ----------------------------------------------------------------------------------------


def evalshas(server: Server) -> int:
    stats = server.admin.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval"))


async def test_calls_of_one_loop_turn_share_a_trip_and_a_command(
    start_server: StartServer, open_store: Any, async_wire: Any
) -> None:
    server = start_server()
    load_all(server)
    store = open_store(server)
    store.join()
    made = async_wire(server.url)
    new = [NewRun(store.id(), ROUTES[0], b"spec") for _ in range(200)]
    before = evalshas(server)
    answers = await asyncio.gather(
        *(drive_async(made, client_plans.enqueue(store.ns, [run], now=store.at)) for run in new)
    )
    assert [answer[0] for answer in answers] == [("created", run.id) for run in new]
    assert (made.trips, evalshas(server) - before) == (1, 1)
    runs = store.claim(want=200)[1]
    before = evalshas(server)
    saves = [
        drive_async(made, attempt_plans.checkpoint(store.keys, run.id, run.token, delta(1, count=1), now=store.at))
        for run in runs
    ]
    assert set(await asyncio.gather(*saves)) == {("ok", 1)}
    assert (made.trips, evalshas(server) - before) == (2, 1)


async def test_calls_about_one_run_keep_their_order(valkey_server: Server, open_store: Any, async_wire: Any) -> None:
    store = open_store(valkey_server)
    run = store.running()
    made = async_wire(valkey_server.url)
    saved = await drive_async(
        made, attempt_plans.checkpoint(store.keys, run.id, run.token, delta(1, count=1), now=store.at)
    )
    released = await drive_async(
        made, attempt_plans.release(store.keys, run.id, run.token, mode="stopping", now=store.at)
    )
    assert (saved, released) == (("ok", 1), "ok")


async def test_cancelling_a_caller_does_not_affect_the_trip(
    valkey_server: Server, proxy: Proxy, open_store: Any, async_wire: Any
) -> None:
    load_all(valkey_server)
    store = open_store(valkey_server)
    runs = [store.running() for _ in range(3)]
    made = async_wire(proxy.url)
    proxy.hold_requests(naming(scripts.COMPLETE.sha.encode()))
    callers = [
        asyncio.create_task(
            drive_async(made, attempt_plans.complete(store.keys, run.id, run.token, b"r", now=store.at))
        )
        for run in runs
    ]
    await eventually(lambda: proxy.held == 1, "the trip to be sent")
    callers[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await callers[1]
    proxy.release_requests()
    assert await callers[0] == await callers[2] == "ok"
    assert made.trips == 1
    assert store.status(runs[1].id) == "completed", "the trip belongs to the wire"


async def test_bad_item_does_not_affect_other_items(valkey_server: Server, open_store: Any, async_wire: Any) -> None:
    store = open_store(valkey_server)
    made = async_wire(valkey_server.url)
    good, bad, other = (NewRun(store.id(), ROUTES[0], b"") for _ in range(3))
    spoilt = store.id()
    store.spoil(store.keys.run(spoilt))
    answers = await asyncio.gather(
        drive_async(made, client_plans.enqueue(store.ns, [good], now=store.at)),
        drive_async(made, client_plans.enqueue(store.ns, [bad._replace(due="soon")], now=store.at)),
        drive_async(made, client_plans.enqueue(store.ns, [NewRun(spoilt, ROUTES[0], b"")], now=store.at)),
        drive_async(made, client_plans.enqueue(store.ns, [other], now=store.at)),
    )
    assert [answer[0][0] for answer in answers] == ["created", "bad", "unreadable", "created"]
    assert store.line(store.keys.ready(ROUTES[0])) == [good.id, other.id]


# ---- errors say what to do, and contain no secrets ---------------------------------------------------------------------


async def refused(
    how: str, sync_wire: Any, async_wire: Any, url: str, plan: Any, timeout: float = 30
) -> CoordinatorError:
    """Return the error of a call that is not retried. A short timeout ends the calls that are."""
    with pytest.raises(CoordinatorError) as caught:
        await carried(how, partial(sync_wire, timeout=timeout), partial(async_wire, timeout=timeout), url, plan)
    assert SECRET not in str(caught.value) + repr(caught.value)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__
    return caught.value


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_wrong_password_is_reported(
    start_server: StartServer, sync_wire: Any, async_wire: Any, namespace: str, how: str
) -> None:
    server = start_server()
    server.admin.config_set("requirepass", "right")
    for url in (
        f"redis://:{SECRET}@127.0.0.1:{server.port}/0",
        f"redis://user:{SECRET}@127.0.0.1:{server.port}/0",
        server.url,
    ):
        error = await refused(how, sync_wire, async_wire, url, namespace_plans.create(namespace, birth="b"))
        assert isinstance(error, NotConfigured)
        assert f"redis://127.0.0.1:{server.port}/0 refused the user or password" in str(error)


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_missing_rights_are_reported(
    start_server: StartServer, sync_wire: Any, async_wire: Any, namespace: str, how: str
) -> None:
    server = start_server()
    server.admin.execute_command("ACL", "SETUSER", "weak", "on", f">{SECRET}", "~*", "+@all", "-eval", "-evalsha")
    server.admin.execute_command("ACL", "SETUSER", "blind", "on", f">{SECRET}", "~other:*", "+@all")
    for user in ("weak", "blind"):
        url = f"redis://{user}:{SECRET}@127.0.0.1:{server.port}/0"
        error = await refused(how, sync_wire, async_wire, url, namespace_plans.create(namespace, birth="b"))
        assert isinstance(error, NotConfigured)
        assert "coordinator acl" in str(error)


@pytest.mark.matrix("waits through a timeout")
@pytest.mark.parametrize("how", ["sync", "async"])
async def test_replica_is_reported(
    start_server: StartServer, sync_wire: Any, async_wire: Any, namespace: str, how: str
) -> None:
    primary, replica = start_server(settings={"repl-diskless-sync-delay": "0"}), start_server()
    replica.admin.execute_command("REPLICAOF", "127.0.0.1", primary.port)
    wait_until(lambda: replica.admin.info("replication")["master_link_status"] == "up", "the replica to be in sync")
    error = await refused(
        how, sync_wire, async_wire, replica.url, namespace_plans.create(namespace, birth="b"), timeout=2
    )
    assert isinstance(error, Unreachable)
    assert "is a replica and takes no writes: use the address of its primary" in str(error)


async def test_no_error_shows_a_password(proxy: Proxy, sync_wire: Any, async_wire: Any, namespace: str) -> None:
    proxy.refuse()
    for how in ("sync", "async"):
        url = f"redis://user:{SECRET}@127.0.0.1:{proxy.port}/0"
        error = await refused(
            how, sync_wire, async_wire, url, namespace_plans.create(namespace, birth="b"), timeout=0.3
        )
        assert isinstance(error, Unreachable)
