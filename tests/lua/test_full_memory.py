"""Every script while the memory of the server is full.

The server refuses a script that has no flag before the script's first command. It executes a script with the flag allow-oom.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from coordinator.config import address
from coordinator.errors import ServerFull
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans.clients import NewRun
from coordinator.store.script import Call, Request, Script
from coordinator.store.scripts import SCRIPTS
from coordinator.store.transport.wire import AsyncWire, drive, drive_async
from tests.conftest import require
from tests.lua.calls import PREPARE_EVERY
from tests.lua.store import ROUTES, Store, delta
from tests.servers import Kind, Server

# What each script does when memory is full, and why. A new script needs an entry: decide whether the server may refuse it.
REFUSED = {
    "It stores new data, and its caller can send it again later.": (
        "enqueue", "send", "schedule", "fire", "join_children", "graph_save", "graph_copy", "session_add",
    ),
    "It stores more of a run that continues without it. The last save and the last events are sent again with the ending.": (
        "checkpoint", "emit", "note", "record_save",
    ),
}  # fmt: skip
EXECUTED = {
    "It ends an attempt or a run. Finished work must not be repeated, and ended runs expire.": (
        "complete", "fail", "retry", "release", "reject", "suspend", "kill", "cancel", "block_children", "interrupt",
    ),
    "It takes a run to its end: runs that end are what frees memory.": (
        "claim", "load", "collect", "receive", "spend", "extend", "acquire", "back_off", "finish", "revive",
    ),
    "It keeps a lease, without which live workers would count as lost, or lets workers be replaced.": (
        "join", "leave", "heartbeat", "drain", "supervise", "roll", "roll_part", "lock", "unlock",
        "record_keep", "record_claim", "record_list", "record_load",
    ),
    "It requeues runs of lost workers, and lets runs continue that wait.": (
        "judge", "recover", "abandon", "due", "ring", "sweep", "upcoming", "postpone",
    ),
    "It deletes data.": (
        "trim", "trim_children", "cap", "take_endings", "discard", "record_delete", "graph_delete", "session_remove",
        "unschedule",
    ),
    "It is how an operator or a client sees and settles the trouble. It stores a few bytes.": (
        "pause", "unpause", "limit", "rate", "pause_schedule", "wait", "listen", "confirm", "create_namespace",
        "repair_run", "repair_entry", "repair_key", "repair_type",
    ),
    "It only reads.": (
        "view", "transcript", "examine", "examine_entries", "examine_keys", "graph_get", "graph_history",
    ),
}  # fmt: skip
REFUSED_NAMES = frozenset(name for names in REFUSED.values() for name in names)
EXECUTED_NAMES = frozenset(name for names in EXECUTED.values() for name in names)
# Commands with which a client and this test call a script, and ask for its effects.
CALLS_A_SCRIPT = {
    "evalsha",
    "eval",
    "script",
    "config",
    "info",
    "scan",
    "dump",
    "pexpiretime",
    "select",
    "hello",
    "client",
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Kind], Server]]:
    """One server of each kind for this module, without the keys of other tests."""
    made: dict[Kind, Server] = {}

    def of(kind: Kind) -> Server:
        require(kind)
        if kind not in made:
            made[kind] = Server(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    yield of
    for server in made.values():
        server.close()


@pytest.fixture(params=["valkey", "redis"])
def server(request: pytest.FixtureRequest, servers: Callable[[Kind], Server]) -> Server:
    return servers(request.param)


@pytest.fixture
def open_store(server: Server, namespace: str) -> Iterator[Callable[[], Store]]:
    """Open stores, each in a namespace of its own. The names are equally long, so that sizes can be compared."""
    stores: list[Store] = []

    def open_one() -> Store:
        stores.append(Store(server.url, f"{namespace}.{len(stores)}"))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@contextmanager
def full_memory(server: Server) -> Iterator[None]:
    """Lower the limit of the server's memory to just below what the server uses."""
    server.admin.config_set("maxmemory", int(server.admin.info("memory")["used_memory"]) - 1024)
    try:
        yield
    finally:
        server.admin.config_set("maxmemory", 0)


def snapshot(server: Server) -> dict[bytes, tuple[Any, Any]]:
    """Return the serialized value and the time of expiry of every key."""
    keys = list(server.admin.scan_iter(count=10_000))
    return {key: (server.admin.dump(key), server.admin.execute_command("PEXPIRETIME", key)) for key in keys}


def commands_executed(server: Server) -> set[str]:
    """Return the commands that the server has executed since CONFIG RESETSTAT, also those that scripts called."""
    return {name.removeprefix("cmdstat_").partition("|")[0] for name in server.admin.info("commandstats")}


def contents(store: Store) -> dict[str, Any]:
    """Return everything that is stored, without the namespace's name."""
    found = {key.split("}:", 1)[1]: value for key, value in store.dump().items()}
    return {
        # The server's own time is the id of an entry of a stream.
        key: (kind, [fields for _, fields in value] if kind == "stream" else value, expires)
        for key, (kind, value, expires) in found.items()
    }


class FullServer:
    """A wire whose server is full whenever a request arrives. It repeats refused requests after memory was freed.

    Attributes:
        refused: The names of the scripts that the server refused.
    """

    def __init__(self, server: Server, store: Store, *, forget_scripts: bool) -> None:
        self.server, self.store, self.forget_scripts = server, store, forget_scripts
        self.refused: list[str] = []

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> list[Any]:
        before = snapshot(self.server)
        if self.forget_scripts:
            self.server.admin.script_flush()
        self.server.admin.config_resetstat()
        with full_memory(self.server):
            answers = self.store.wire.ask(requests, timeout)
        for request, answer in zip(requests, answers, strict=True):
            if not isinstance(answer, ServerFull):
                continue
            assert isinstance(request, Call)
            assert "is full: raise maxmemory or let runs end" in str(answer)
            self.refused.append(request.script.name)
        if all(isinstance(answer, ServerFull) for answer in answers):
            assert commands_executed(self.server) <= CALLS_A_SCRIPT
            assert snapshot(self.server) == before
        refused = [i for i, answer in enumerate(answers) if isinstance(answer, ServerFull)]
        again = self.store.wire.ask([requests[i] for i in refused], timeout)
        for i, answer in zip(refused, again, strict=True):
            answers[i] = answer
        return answers


def comparable(answer: Any) -> Any:
    """Return an answer without what belongs to its namespace alone."""
    return answer.birth if hasattr(answer, "birth") else answer


@pytest.mark.quick_cases(82)
@pytest.mark.parametrize("forget_scripts", [False, True], ids=["known", "forgotten"])
@pytest.mark.parametrize("name", [script.name for script in SCRIPTS])
def test_script_is_executed_or_refused_before_its_first_command(
    server: Server, open_store: Callable[[], Store], name: str, forget_scripts: bool
) -> None:
    """Call it once with free and once with full memory: the answer and all keys are the same. If the server refuses the script, no
    command of it is executed, no key changes, and the repetition after memory was freed has the same answer and the same effect.
    A server that has restarted does not know the scripts: they can be loaded into a full memory, too.
    """
    plain, full = open_store(), open_store()
    expected = plain.do(PREPARE_EVERY[name](plain))
    wire: Any = FullServer(server, full, forget_scripts=forget_scripts)
    answer = drive(wire, PREPARE_EVERY[name](full))
    assert set(wire.refused) == {name} & REFUSED_NAMES
    assert comparable(answer) == comparable(expected)
    if name == "recover":  # It requeues one of two runs, chosen at random.
        assert plain.recover() == full.recover()
    assert contents(full) == contents(plain)


def test_every_script_has_a_reason_to_be_refused_or_executed() -> None:
    decided = [name for names in (*REFUSED.values(), *EXECUTED.values()) for name in names]
    assert sorted(decided) == sorted(script.name for script in SCRIPTS)
    flagged = {script.name for script in SCRIPTS if {"allow-oom", "no-writes"} & set(script.head.get("Flags", ()))}
    assert flagged == EXECUTED_NAMES


def _leaves_a_status(script: Script) -> bool:
    """Return True if the script moves runs that exist, and creates none."""
    moves = script.head.get("Moves", ())
    return bool(moves) and not any(move.startswith("none ->") for move in moves)


def test_no_script_that_ends_releases_or_recovers_a_run_is_refused() -> None:
    """The one exception is `send`: it lets a waiting run continue, but it has to store the signal."""
    moving = {script.name for script in SCRIPTS if _leaves_a_status(script)}
    assert moving - EXECUTED_NAMES == {"send"}


def test_memory_that_becomes_full_during_a_script_does_not_stop_it(
    server: Server, open_store: Callable[[], Store]
) -> None:
    """Move the limit in small steps: each enqueue of many runs is refused as a whole or stores all its runs."""
    store, refusals, crossings = open_store(), 0, 0
    memory: Callable[[], int] = lambda: int(server.admin.info("memory")["used_memory"])  # noqa: E731
    for step in range(40):
        runs = [NewRun(store.id(), ROUTES[0], b"spec") for _ in range(100)]
        before = len(store.line(store.keys.ready(ROUTES[0])))
        limit = memory() + (step - 4) * 4096
        server.admin.config_set("maxmemory", limit)
        try:
            answers = store.do(client_plans.enqueue(store.ns, runs, now=store.at))
            crossings += memory() > limit and not isinstance(answers[0], ServerFull)
        finally:
            server.admin.config_set("maxmemory", 0)
        refused = [isinstance(answer, ServerFull) for answer in answers]
        assert all(refused) or not any(refused)
        refusals += refused[0]
        assert len(store.line(store.keys.ready(ROUTES[0]))) == before + (0 if refused[0] else 100)
    assert refusals
    assert crossings, "some calls began below the limit and ended above it"


async def test_ending_is_stored_although_saves_in_the_same_trip_are_refused(
    server: Server, open_store: Callable[[], Store]
) -> None:
    store = open_store()
    first, second, third = (store.running() for _ in range(3))
    wire = AsyncWire(address(server.url))
    saves = [
        drive_async(
            wire, attempt_plans.checkpoint(store.keys, run.id, run.token, delta(1, count=2, state=b"s"), now=store.at)
        )
        for run in (first, second)
    ]
    ending = drive_async(wire, attempt_plans.complete(store.keys, third.id, third.token, b"result", now=store.at))
    try:
        with full_memory(server):
            *refused, ended = await asyncio.gather(*saves, ending, return_exceptions=True)
    finally:
        await wire.close()
    assert [type(answer) for answer in refused] == [ServerFull, ServerFull]
    assert ended == "ok"
    assert [store.status(run.id) for run in (first, second, third)] == ["running", "running", "completed"]
    assert store.save(first, delta(1, count=2, state=b"s")) == "ok"
