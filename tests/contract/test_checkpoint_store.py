"""The contract of checkpoint stores: in memory and on every server, for threads and for event loops."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from coordinator.config import address
from coordinator.errors import BadName, NotPlain, TooLarge, Unreadable
from coordinator.store.keys import Keys
from coordinator.store.script import Call, read
from coordinator.store.transport.wire import Wire, drive
from tests.contract.conftest import TOPOLOGIES, Topology
from tests.servers import Kind, Server
from tests.waiting import wait_until
from workers.durable.records import record_format, record_plans
from workers.durable.records.record import Checkpoint, Fenced, Meta, Phase
from workers.durable.stores.memory_store import AsyncMemoryStore, MemoryStore
from workers.durable.stores.redis_store import AsyncRedisStore, RedisStore
from workers.durable.stores.store_protocols import CheckpointStore

Stores = Callable[..., Any]
SERVERS = ["memory", "valkey", "redis"]


class Blocking:
    """An async store with blocking methods, so that the same tests cover both kinds of stores."""

    def __init__(self, make: Callable[[], Any], runner: asyncio.Runner) -> None:
        self._runner = runner
        self.store = runner.run(self._made(make))

    async def _made(self, make: Callable[[], Any]) -> Any:
        return make()

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self._runner.run(getattr(self.store, name)(*args))

    def claim_interrupted(self) -> list[Checkpoint]:
        async def all_of_them() -> list[Checkpoint]:
            return [checkpoint async for checkpoint in self.store.claim_interrupted()]

        return self._runner.run(all_of_them())


class Place:
    """A server or a memory in which stores are opened. Each store stands for a process that may die."""

    def __init__(self, kind: str, url: str, namespace: str) -> None:
        self.kind, self.url, self.namespace = kind, url, namespace
        self.keys = Keys(namespace, 0)
        self._opened: list[Any] = []
        self._wire = Wire(address(url)) if url else None
        self._runner = asyncio.Runner() if kind.startswith("async") else None

    def open(self, **options: Any) -> Any:
        first = self._opened[0] if self._opened else None
        if self._runner is None:
            made: Any = RedisStore(self.url, self.namespace, **options) if self.url else MemoryStore(first)
        elif self.url:
            made = Blocking(lambda: AsyncRedisStore(self.url, self.namespace, **options), self._runner)
        else:
            made = Blocking(lambda: AsyncMemoryStore(first and first.store), self._runner)
        self._opened.append(made)
        return made

    def die(self, store: Any) -> None:
        """Let the lease of a store expire, as if its process had been killed.

        The object can still be used, like a process that only hung.
        """
        inner = getattr(store, "store", store)
        if not self.url:
            getattr(inner, "_store", inner).close()
            return
        inner._records.stop()
        self.ask("ZADD", self.keys.record_owners(), 1, inner._records.owner)

    def ask(self, *command: Any) -> Any:
        assert self._wire is not None
        return self._wire.ask([read(self.keys.at, *command)])[0]

    def all_keys(self) -> list[str]:
        return [key.decode() for key in self.ask("KEYS", f"{{{self.namespace}:*")]

    def close(self) -> None:
        for store in self._opened:
            store.close()
        if self._runner is not None:
            self._runner.close()
        if self._wire is not None:
            if keys := self.all_keys():
                self.ask("UNLINK", *keys)
            self._wire.close()


def place_of(kind: str, namespace: str, servers: Callable[[Kind], Server], topology: Topology) -> Place:
    server = kind.removeprefix("async ")
    if server == "MemoryStore":
        return Place(kind, "", namespace)
    if server in TOPOLOGIES:
        return Place(kind, topology(server).url, namespace)
    url = f"memory://{namespace}" if server == "memory" else servers(server).url  # type: ignore[arg-type]
    return Place(kind, url, namespace)


@pytest.fixture(
    params=[
        "MemoryStore", *SERVERS, *TOPOLOGIES, "async MemoryStore", "async memory", "async valkey", "async redis", "async cluster",
    ]
)  # fmt: skip
def place(
    request: pytest.FixtureRequest, namespace: str, shared_servers: Callable[[Kind], Server], topology: Topology
) -> Iterator[Place]:
    place = place_of(request.param, namespace, shared_servers, topology)
    yield place
    place.close()


@pytest.fixture(params=[*SERVERS, *TOPOLOGIES])
def server_place(
    request: pytest.FixtureRequest, namespace: str, shared_servers: Callable[[Kind], Server], topology: Topology
) -> Iterator[Place]:
    place = place_of(request.param, namespace, shared_servers, topology)
    yield place
    place.close()


@pytest.fixture
def store(place: Place) -> Any:
    return place.open()


@pytest.fixture
def redis_store(server_place: Place) -> RedisStore:
    store: RedisStore = server_place.open()
    return store


def checkpoint(id: str = "r1", *messages: Any, **more: Any) -> Checkpoint:
    return Checkpoint(Meta(id), list(messages), **more)


def ids(checkpoints: Any) -> list[str]:
    return [one.meta.run_id for one in checkpoints]


# ---- saving and loading ------------------------------------------------------------------------------------------------


def test_missing_checkpoint_is_none_and_not_an_error(store):
    assert store.load("r1") is None
    assert store.list_interrupted() == []


def test_checkpoint_round_trips_with_its_types(store):
    meta = Meta("r/1: ä", "a1", "Ada", "c1", "ch1", "g1", "why is the sea salty?", "large", "r0")
    saved = Checkpoint(
        meta,
        [{"role": "user", "content": "why?"}, {"n": 1.5, "raw": b"\x00", "pair": (1, None)}],
        iteration=7,
        phases=(Phase("plan", ["a", {"b": datetime(2026, 1, 2, tzinfo=UTC)}]), Phase("plan"), Phase("act", b"x")),
        state={"cursor": 3, "on": True},
        updated_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        schema=3,
    )
    store.save(saved)
    found = store.load(meta.run_id)
    assert found.seq > 0
    assert replace(found, seq=0) == saved
    assert type(found.messages[1]["pair"]) is tuple
    assert [phase.name for phase in found.phases] == ["plan", "plan", "act"]


def test_save_replaces_the_previous_one(store):
    store.save(checkpoint("r1", "a", iteration=1, phases=(Phase("p", 1), Phase("q", 2)), state={"a": 1}))
    store.save(checkpoint("r1", "a", "b", iteration=2, phases=(Phase("p", 1),), state={}))
    found = store.load("r1")
    assert (found.messages, found.iteration, found.phases, found.state) == (["a", "b"], 2, (Phase("p", 1),), {})


@pytest.mark.parametrize(
    "transcripts",
    [
        pytest.param(["a", "ab", "abc", "abcdef"], id="growing"),
        pytest.param(["abc", "aXc", "aXcd"], id="edited in the middle"),
        pytest.param(["abc", "S", "Sd", "Sdef"], id="compacted"),
        pytest.param(["abc", "ab", "abx"], id="shortened"),
        pytest.param(["abc", "", "x"], id="emptied"),
        pytest.param(["abc", "abc", "abc"], id="unchanged"),
    ],
)
def test_every_transcript_round_trips(store, transcripts):
    for iteration, transcript in enumerate(transcripts):
        store.save(checkpoint("r1", *transcript, iteration=iteration))
        assert store.load("r1").messages == list(transcript)


def test_changes_after_a_save_do_not_reach_it(store):
    messages, state = [{"content": "a"}], {"n": 1}
    store.save(Checkpoint(Meta("r1"), messages, state=state))
    messages[0]["content"] = "changed"
    state["n"] = 2
    store.load("r1").messages[0]["content"] = "changed, too"
    found = store.load("r1")
    assert (found.messages, found.state) == ([{"content": "a"}], {"n": 1})


def test_message_edited_in_place_is_saved_as_it_is_now(store):
    messages = [{"content": "a"}, {"content": "b"}]
    store.save(Checkpoint(Meta("r1"), messages))
    messages[0]["content"] = "edited"
    store.save(Checkpoint(Meta("r1"), messages))
    assert store.load("r1").messages == [{"content": "edited"}, {"content": "b"}]


def test_value_that_cannot_be_stored_is_refused_with_its_path_and_the_last_checkpoint_stays(store, monkeypatch):
    store.save(checkpoint("r1", "good"))
    with pytest.raises(NotPlain, match=r"messages\[1\]\.call is an object"):
        store.save(checkpoint("r1", "good", {"call": object()}))
    with pytest.raises(NotPlain, match=r"phase 'p'\[1\]"):
        store.save(checkpoint("r1", phases=(Phase("p", {1, 2}),)))
    with pytest.raises(TooLarge, match=r"messages\[0\] has"):
        store.save(checkpoint("r1", "x" * (8 * 1024 * 1024 + 1)))
    monkeypatch.setattr(record_format, "RECORD_LIMIT", 1000)
    with pytest.raises(TooLarge, match=r"the record of run r1 has 1,\d+ bytes, and the limit is 1,000"):
        store.save(checkpoint("r1", "x" * 600, "y" * 600))
    assert store.load("r1").messages == ["good"]


@pytest.mark.parametrize("id", ["", "a\nb", "x" * 201])
def test_run_requires_an_id(store, id):
    for call in (store.load, store.delete, Meta):
        with pytest.raises(BadName, match="run id"):
            call(id)


# ---- recovery candidates -----------------------------------------------------------------------------------------------


def test_saved_and_deleted_run_is_no_longer_a_recovery_candidate(store):
    store.save(checkpoint("r1"))
    assert ids(store.list_interrupted()) == ["r1"]
    store.delete("r1")
    assert store.list_interrupted() == []
    assert store.load("r1") is None


def test_deleting_a_missing_checkpoint_succeeds(store):
    store.delete("r1")
    store.save(checkpoint("r1"))
    store.delete("r1")
    store.delete("r1")


def test_run_may_start_again_after_its_end(store, place):
    store.save(checkpoint("r1", "old"))
    store.delete("r1")
    store.save(checkpoint("r1", "new"))
    assert store.load("r1").messages == ["new"]
    store.delete("r1")
    place.open().save(checkpoint("r1", "elsewhere"))
    assert store.load("r1").messages == ["elsewhere"]


def test_interrupted_runs_are_listed_in_the_order_of_their_saves(store):
    for id in ("r1", "r2", "r3"):
        store.save(checkpoint(id, id))
    store.save(checkpoint("r1", "again"))
    assert ids(store.list_interrupted()) == ["r2", "r3", "r1"]
    assert [one.messages for one in store.list_interrupted()] == [["r2"], ["r3"], ["again"]]


# ---- order -------------------------------------------------------------------------------------------------------------


def test_late_save_never_overwrites_a_newer_one(store):
    store.save(checkpoint("r1", "new", seq=7))
    store.save(checkpoint("r1", "late", seq=6))
    assert (store.load("r1").seq, store.load("r1").messages) == (7, ["new"])
    store.save(checkpoint("r1", "newer", seq=8))
    assert store.load("r1").messages == ["newer"]


def test_save_with_an_equal_number_is_a_repetition(store, place):
    store.save(checkpoint("r1", "first", seq=7))
    store.save(checkpoint("r1", "second", seq=7))
    place.die(store)
    place.open().save(checkpoint("r1", "third", seq=7))
    assert store.load("r1").messages == ["first"]


def test_repetition_with_different_content_changes_nothing(store, place):
    store.save(checkpoint("r1", "a", "b", seq=7))
    place.die(store)
    other = place.open()
    other.save(checkpoint("r1", "X", "Y", seq=7))
    other.save(checkpoint("r1", "X", "Y", "new", seq=8))
    assert other.load("r1").messages == ["X", "Y", "new"]


def test_save_without_a_number_is_the_newest(store):
    far = 4_000_000_000_000
    store.save(checkpoint("r1", "from a clock that is ahead", seq=far))
    store.save(checkpoint("r1", "new"))
    assert (store.load("r1").messages, store.load("r1").seq > far) == (["new"], True)


def test_late_save_does_not_restore_a_deleted_checkpoint(store):
    store.save(checkpoint("r1", seq=3))
    store.delete("r1")
    store.save(checkpoint("r1", seq=4))
    assert store.load("r1") is None
    assert store.list_interrupted() == []


# ---- processes ---------------------------------------------------------------------------------------------------------


def test_run_of_another_live_process_is_not_listed(store, place):
    store.save(checkpoint("r1"))
    other = place.open()
    assert other.list_interrupted() == []
    assert list(other.claim_interrupted()) == []
    place.die(store)
    assert ids(other.list_interrupted()) == ["r1"]


def test_runs_of_a_closed_store_can_be_claimed_at_once(store, place):
    store.save(checkpoint("r1"))
    store.close()
    assert ids(place.open().claim_interrupted()) == ["r1"]


def test_closed_store_can_be_used_again(store, place):
    store.save(checkpoint("r1", "a"))
    store.close()
    assert ids(store.claim_interrupted()) == ["r1"]
    store.save(checkpoint("r1", "a", "b"))
    assert place.open().list_interrupted() == []
    assert store.load("r1").messages == ["a", "b"]


def test_interrupted_run_is_claimed_once(store, place):
    for id in ("r1", "r2"):
        store.save(checkpoint(id, id))
    place.die(store)
    one, two = place.open(), place.open()
    assert sorted(ids(one.claim_interrupted())) == ["r1", "r2"]
    assert list(two.claim_interrupted()) == []
    assert list(one.claim_interrupted()) == [], "nor does it get what it executes itself a second time"
    assert two.list_interrupted() == []


def test_claimed_run_continues_in_the_same_record(store, place):
    store.save(checkpoint("r1", "a", "b", phases=(Phase("p", 1),), state={"n": 1}))
    before = store.load("r1").seq
    place.die(store)
    other = place.open()
    (claimed,) = other.claim_interrupted()
    assert (claimed.messages, claimed.seq) == (["a", "b"], before)
    other.save(checkpoint("r1", "a", "b", "c", phases=(Phase("p", 1), Phase("q", 2)), state={"n": 1}))
    found = other.load("r1")
    assert (found.messages, found.phases, found.state) == (["a", "b", "c"], (Phase("p", 1), Phase("q", 2)), {"n": 1})
    assert found.seq > before
    assert ids(other.list_interrupted()) == ["r1"], "one record"


def test_process_that_lost_its_run_can_neither_save_nor_delete(store, place):
    store.save(checkpoint("r1", "a"))
    place.die(store)
    other = place.open()
    assert ids(other.claim_interrupted()) == ["r1"]
    for call in (lambda: store.save(checkpoint("r1", "a", "stale")), lambda: store.delete("r1")):
        with pytest.raises(Fenced, match="run r1 was taken over by another process"):
            call()
    assert other.load("r1").messages == ["a"]
    other.save(checkpoint("r1", "a", "b"))
    assert store.load("r1").messages == ["a", "b"]


def test_process_that_hung_continues_if_no_process_claimed_its_run(store, place):
    store.save(checkpoint("r1", "a"))
    place.die(store)
    store.save(checkpoint("r1", "a", "b"))
    assert store.load("r1").messages == ["a", "b"]


def test_store_without_claims_takes_over_the_record_of_a_dead_process_by_saving(store, place):
    store.save(checkpoint("r1", "a"))
    place.die(store)
    other = place.open()
    (found,) = other.list_interrupted()
    other.save(replace(found, messages=[*found.messages, "b"], seq=0))
    assert other.load("r1").messages == ["a", "b"]
    with pytest.raises(Fenced):
        store.save(checkpoint("r1", "a", "stale"))


# ---- on a server -------------------------------------------------------------------------------------------------------


def test_each_run_is_claimed_by_one_of_many_starting_processes(server_place):
    first = server_place.open()
    wanted = [f"r{number}" for number in range(20)]
    for id in wanted:
        first.save(checkpoint(id))
    server_place.die(first)
    stores = [server_place.open() for _ in range(4)]
    begin, got = threading.Barrier(4), []

    def boot(store: RedisStore) -> None:
        begin.wait()
        got.extend(ids(store.claim_interrupted()))

    threads = [threading.Thread(target=boot, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(wanted)


def test_lease_is_renewed_and_expires_with_its_process(server_place):
    dead, other = server_place.open(lease=1.0), server_place.open()
    dead.save(checkpoint("r1"))
    deadline = float(server_place.ask("ZSCORE", server_place.keys.record_owners(), dead._records.owner))
    wait_until(
        lambda: float(server_place.ask("ZSCORE", server_place.keys.record_owners(), dead._records.owner)) > deadline,
        "a renewal",
    )
    dead._records.stop()
    wait_until(lambda: ids(other.list_interrupted()) == ["r1"], "the end of the lease")


def test_deadline_from_a_clock_that_was_ahead_is_limited_to_one_lease(server_place):
    dead, other = server_place.open(lease=0.5), server_place.open()
    dead.save(checkpoint("r1"))
    dead._records.stop()
    server_place.ask("ZADD", server_place.keys.record_owners(), 4_000_000_000_000, dead._records.owner)
    assert other.list_interrupted() == []
    wait_until(lambda: ids(other.list_interrupted()) == ["r1"], "the end of one lease")


def sent_by(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Record the saves that are sent from now on."""
    sent: list[Call] = []
    ask = store._wire.ask

    def noted(requests: Any, timeout: float | None = None) -> Any:
        sent.extend(one for one in requests if isinstance(one, Call) and one.script.name == "record_save")
        return ask(requests, timeout)

    monkeypatch.setattr(store._wire, "ask", noted)
    return sent


def test_only_new_content_is_sent(redis_store, server_place, monkeypatch):
    messages = [{"content": "x" * 10_000, "n": number} for number in range(50)]
    state, phases = {"big": "y" * 50_000}, (Phase("p", "z" * 50_000),)
    redis_store.save(Checkpoint(Meta("r1"), messages, phases=phases, state=state))
    sent = sent_by(redis_store, monkeypatch)
    for number in range(3):
        messages.append({"content": "new", "n": number})
        redis_store.save(Checkpoint(Meta("r1"), messages, iteration=number, phases=phases, state=state))
    assert len(sent) == 3
    assert all(call.size < 1000 for call in sent)
    server_place.die(redis_store)
    other = server_place.open()
    assert len(list(other.claim_interrupted())) == 1
    sent = sent_by(other, monkeypatch)
    other.save(Checkpoint(Meta("r1"), [*messages, "more"], phases=phases, state=state))
    assert sent[0].size < 1000, "nor does a recovery begin by sending what is there"
    assert other.load("r1").messages == [*messages, "more"]


def test_after_a_save_without_a_reply_nothing_is_duplicated_or_lost(redis_store, monkeypatch):
    redis_store.save(checkpoint("r1", "a"))
    ask = redis_store._wire.ask

    def lost(requests: Any, timeout: float | None = None) -> Any:
        ask(requests, timeout)
        raise ConnectionError

    monkeypatch.setattr(redis_store._wire, "ask", lost)
    with pytest.raises(ConnectionError):
        redis_store.save(checkpoint("r1", "a", "b"))
    monkeypatch.setattr(redis_store._wire, "ask", ask)
    redis_store.save(checkpoint("r1", "a", "b", "c"))
    assert redis_store.load("r1").messages == ["a", "b", "c"]


def test_server_that_lost_the_record_receives_everything_again(redis_store, server_place):
    redis_store.save(checkpoint("r1", "a", "b", state={"n": 1}, phases=(Phase("p", 1),)))
    server_place.ask("UNLINK", *server_place.all_keys())
    redis_store.save(checkpoint("r1", "a", "b", "c", state={"n": 1}, phases=(Phase("p", 1),)))
    found = redis_store.load("r1")
    assert (found.messages, found.state, found.phases) == (["a", "b", "c"], {"n": 1}, (Phase("p", 1),))


def test_large_record_is_read_in_pages(redis_store, monkeypatch):
    messages = ["x" * 3000 for _ in range(20)]
    for count in range(1, 21):
        redis_store.save(checkpoint("r1", *messages[:count]))
    trips: list[Any] = []
    ask = redis_store._wire.ask

    def counted(requests: Any, timeout: float | None = None) -> Any:
        trips.append(requests)
        return ask(requests, timeout)

    monkeypatch.setattr(redis_store._wire, "ask", counted)
    found = drive(redis_store._wire, record_plans.load(Keys(redis_store._settings.namespace, 0), "r1", room=10_000))
    assert found is not None
    assert found.checkpoint.messages == messages
    assert len(trips) >= 7


def test_pages_of_two_saves_are_never_mixed(redis_store):
    for count in range(1, 11):
        redis_store.save(checkpoint("r1", *["x" * 3000] * count))
    keys, wire = Keys(redis_store._settings.namespace, 0), redis_store._wire
    plan = record_plans.load(keys, "r1", room=10_000)
    request = next(plan)
    request = plan.send(wire.ask([request])[0])
    redis_store.save(checkpoint("r1", *["y" * 3000] * 10))
    found: Any = None
    try:
        while True:
            request = plan.send(wire.ask([request])[0])
    except StopIteration as done:
        found = done.value
    assert found.checkpoint.messages == ["y" * 3000] * 10


@pytest.mark.parametrize("spoiled", ["head", "meta", "state", "messages", "type", "phase"])
def test_corrupt_record_is_unreadable_and_does_not_break_the_list(redis_store, server_place, caplog, spoiled):
    for id in ("r1", "r2"):
        redis_store.save(checkpoint(id, "a", phases=(Phase("p", 1), Phase("q", 2)), state={"n": 1}))
    record = server_place.keys.record("r1")
    match spoiled:
        case "type":
            server_place.ask("DEL", record)
            server_place.ask("SET", record, "x")
        case "messages":
            server_place.ask("HSET", server_place.keys.record_messages("r1", "1"), "0", b"\xc1")
        case "phase":
            server_place.ask("HDEL", record, "phase:0")
        case _:
            server_place.ask("HSET", record, spoiled, b"\xc1")
    with pytest.raises(Unreadable, match="run r1"):
        redis_store.load("r1")
    with caplog.at_level(logging.ERROR):
        assert ids(redis_store.list_interrupted()) == ["r2"]
    assert "run r1" in caplog.text
    server_place.die(redis_store)
    other = server_place.open()
    assert ids(other.claim_interrupted()) == ["r2"]
    other.delete("r1")
    other.save(checkpoint("r1", "new"))
    assert other.load("r1").messages == ["new"]


def test_every_key_expires_and_has_the_hash_tag_of_the_namespace(redis_store, server_place):
    redis_store.save(checkpoint("r1", "a"))
    redis_store.save(checkpoint("r1", "b"))
    redis_store.save(checkpoint("r2", "a"))
    redis_store.delete("r2")
    for key in server_place.all_keys():
        assert key.startswith(f"{{{server_place.namespace}:0}}:record")
        if key != server_place.keys.records():  # its members are removed with their records
            assert server_place.ask("PTTL", key) > 0, key
    assert len([key for key in server_place.all_keys() if "record-messages:r1" in key]) == 1
    days = server_place.ask("PTTL", server_place.keys.record("r1")) / 86_400_000
    assert 29.9 < days <= 30
    assert server_place.ask("PTTL", server_place.keys.record("r2")) <= 60_000


def test_record_that_is_never_deleted_expires_after_its_ttl(server_place):
    store = server_place.open(lease=0.2, ttl=0.2)
    store.save(checkpoint("r1", "a"))
    wait_until(lambda: store.load("r1") is None, "the end of the record")
    assert store.list_interrupted() == []
    wait_until(
        lambda: not server_place.ask("ZCARD", server_place.keys.records()) or store.list_interrupted(), "a clean index"
    )


def test_every_save_renews_the_ttl(redis_store, server_place):
    redis_store.save(checkpoint("r1", "a"))
    record, messages = server_place.keys.record("r1"), server_place.keys.record_messages("r1", "1")
    for key in (record, messages):
        server_place.ask("PEXPIRE", key, 60_000)
    redis_store.save(checkpoint("r1", "a", iteration=1))
    assert min(server_place.ask("PTTL", key) for key in (record, messages)) > 86_400_000


def test_record_is_independent_of_a_run_with_the_same_id(redis_store, server_place):
    run = server_place.keys.run("r1")
    server_place.ask("HSET", run, "route", "default:k@1", "status", "running")
    redis_store.save(checkpoint("r1", "a", schema=1))
    redis_store.save(checkpoint("r1", "a", schema=2))
    redis_store.delete("r1")
    assert server_place.ask("HGETALL", run) == [b"route", b"default:k@1", b"status", b"running"]


def test_stores_implement_the_checkpoint_store_protocol(place):
    store: CheckpointStore = RedisStore("redis://127.0.0.1:1/0")
    assert store is not None
    store.close()  # type: ignore[attr-defined]
