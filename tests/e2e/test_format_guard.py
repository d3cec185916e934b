"""A process that meets a namespace with a format that it can't read says what to do, ends, and changes nothing on the server.

The other version is a copy of this one with another format. So its namespaces, runs and processes are real.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.main import get_command

from coordinator import AsyncClient, Client, NotConfigured, Status
from coordinator.cli.app import app as coordinator_app
from coordinator.store.keys import Keys
from tests.conftest import StartServer
from tests.e2e.conftest import MakeStage
from tests.e2e.processes import ROOT, Stage, children, wait_for_start
from tests.e2e.upgrade_load import ClientProcess
from tests.e2e.versions import Fleet, copy_this_version, stop_cleanly
from tests.servers import Server
from tests.waiting import wait_until
from workers.cli.app import app as workers_app
from workers.durable import AsyncRedisStore, Meta, RedisStore
from workers.durable import Checkpoint as Record

APP = "tests.e2e.app:runs"
FORMAT_FILE = Path("coordinator/store/plans/namespace.py")
STARTS = (
    "start this process with the version that the other processes of the namespace use, or give it another namespace"
)

# All commands that use a namespace, with arguments. RUN stands for the id of a run.
COMMANDS = {
    "coordinator": (
        ["init"],
        ["init", "--partitions", "4", "--durability", "local"],
        ["start"],
        ["enqueue", "steps", "total:=1"],
        ["enqueue", "steps", "total:=1", "--wait"],
        ["status"],
        ["runs"],
        ["runs", "--stuck"],
        ["show", "RUN"],
        ["events"],
        ["events", "--follow"],
        ["top"],
        ["stream", "RUN"],
        ["send", "RUN", "topic"],
        ["grant", "RUN", "--usd", "1"],
        ["cancel", "RUN"],
        ["cancel", "--kind", "steps", "--yes"],
        ["revive", "RUN"],
        ["discard", "RUN"],
        ["check"],
        ["pause", "--kind", "steps"],
        ["unpause", "--kind", "steps"],
        ["doctor"],
        ["doctor", "--repair"],
        ["schedule", "set", "hourly", "0 * * * *", "steps"],
        ["schedule", "list"],
        ["schedule", "remove", "nightly"],
        ["limit", "set", "steps", "--at-once", "1"],
        ["limit", "list"],
        ["limit", "remove", "steps"],
        ["rate", "set", "api", "--rate", "1/s"],
        ["rate", "list"],
        ["rate", "remove", "api"],
    ),
    "workers": (
        ["start", APP],
        ["start", APP, "--coordinator"],
        ["dev", APP],
        ["list"],
        ["roll"],
        ["drain", "1"],
    ),
}
APART = {"acl", "web"}  # `acl` asks no server, and `web` has a test of its own


def describe_format(namespace: str, stored: int, reads: int) -> str:
    """Return the sentence of a version that reads one format for a namespace of another."""
    return f"namespace {namespace!r} has format {stored}, but this version reads format {reads}: {STARTS}"


@pytest.fixture(scope="module")
def other_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a version of this product with another format."""
    folder = copy_this_version(tmp_path_factory.mktemp("versions") / "other_version")
    text = (folder / FORMAT_FILE).read_text()
    changed = text.replace('FORMAT = "1"\n', 'FORMAT = "2"\n')
    assert changed != text
    (folder / FORMAT_FILE).write_text(changed)
    return folder


class Foreign:
    """A namespace that the other version has created on a server of its own, with runs, a schedule, a limit and a rate."""

    def __init__(self, server: Server, stage: Stage, other_version: Path) -> None:
        self.server, self.stage = server, stage
        self.fleet = Fleet(stage, {"other": other_version, "this": ROOT})
        self.fleet.command("other", "init", "--partitions", "2")
        client = ClientProcess(self.fleet, "other")
        self.run, _ = client.call("enqueue", kind="steps", inputs={"total": 3})
        client.call("enqueue", kind="steps", inputs={"total": 3}, delay=3600)
        client.call("send", run=self.run, topic="topic", payload=1, key="first")
        client.call("schedule", name="nightly", when="0 2 * * *", kind="steps")
        client.call("set_rate", name="api", rate="10/s", burst=10, at_once=1)
        client.close()
        for key in server.admin.scan_iter():
            server.admin.persist(key)  # a key that expires would look like a change
        self._before = self._content()
        self.sentence = describe_format(stage.namespace, 2, 1)

    def assert_unchanged(self) -> None:
        """Check that no write has reached the server: not even one that leaves the values as they are."""
        assert self._content() == self._before

    def _content(self) -> tuple[dict[Any, Any], int]:
        admin = self.server.admin
        keys = {key: admin.dump(key) for key in sorted(admin.keys())}
        assert len(keys) > 5, "the namespace has runs"
        return keys, admin.info("persistence")["rdb_changes_since_last_save"]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory, other_version: Path) -> Iterator[Foreign]:
    server = Server("valkey", tmp_path_factory.mktemp("valkey"))
    stage = Stage(server.url, "tforeign", tmp_path_factory.mktemp("stage"))
    try:
        yield Foreign(server, stage, other_version)
    finally:
        stage.close()
        server.close()


# ---- processes that start ----------------------------------------------------------------------------------------------


def run_command(foreign: Foreign, folder: Path, program: str, words: list[str]) -> tuple[int, str, str]:
    """Run a command of this version in a folder, and return its exit code and what it wrote to stdout and stderr."""
    words = [foreign.run if word == "RUN" else word for word in words]
    done = subprocess.run(
        [sys.executable, "-m", f"{program}.cli", *words], cwd=folder, env=foreign.fleet.environment("this"),
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    ("program", "words"),
    [
        pytest.param(program, words, id=" ".join((program, *words)))
        for program in COMMANDS
        for words in COMMANDS[program]
    ],
)
def test_command_says_what_to_do_and_changes_nothing(
    foreign: Foreign, tmp_path: Path, program: str, words: list[str]
) -> None:
    code, said, problem = run_command(foreign, tmp_path, program, words)
    assert (code, said) == (3, ""), problem
    assert problem.splitlines()[-1] == f"error: {foreign.sentence}"
    assert "Traceback" not in problem
    foreign.assert_unchanged()


def test_every_command_that_uses_a_namespace_is_tested() -> None:
    for program, app in (("coordinator", coordinator_app), ("workers", workers_app)):
        names = set(get_command(app).commands)  # type: ignore[attr-defined]  # a group has them
        assert {words[0] for words in COMMANDS[program]} == names - APART


@pytest.mark.matrix("more cases with real processes")
def test_error_is_a_json_object_with_the_option_json(foreign: Foreign, tmp_path: Path) -> None:
    code, said, problem = run_command(foreign, tmp_path, "coordinator", ["status", "--json"])
    assert (code, said) == (3, "")
    assert json.loads(problem) == {"error": {"type": "NotConfigured", "message": foreign.sentence}}
    foreign.assert_unchanged()


@pytest.mark.matrix("more cases with real processes")
def test_web_server_refuses_every_request_and_its_log_says_what_to_do(foreign: Foreign) -> None:
    """Callers over HTTP are told where to look: the sentence is for the operator of the server."""
    web = foreign.fleet.start("this", "coordinator.cli", "web", "--port", "0", "--allow-changes", role="producer")

    def find_url() -> str:
        found = re.search(r"web server started: (http://\S+:\d+)/", foreign.fleet.log_of(web))
        return found[1] if found else ""

    url = wait_until(find_url, "the web server to start", timeout=60)
    body = {"kind": "steps", "inputs": {"total": 1}}
    answers = [
        httpx.get(f"{url}/api/runs"),
        httpx.get(f"{url}/api/runs/{foreign.run}"),
        httpx.post(f"{url}/api/runs", json=body),
        httpx.post(f"{url}/api/runs/{foreign.run}/cancel", json={}),
    ]
    for answer in answers:
        problem = answer.json()
        assert (answer.status_code, problem["error"]) == (503, "NotConfigured"), problem
        assert "The log of the web server says more" in problem["detail"]
    assert foreign.fleet.log_of(web).count(foreign.sentence) == len(answers)
    foreign.assert_unchanged()
    stop_cleanly(web)


# ---- the library -------------------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Any, str], Any]] = {
    "enqueue": lambda client, run: client.enqueue("steps", {"total": 1}),
    "enqueue with a group": lambda client, run: client.enqueue("steps", {"total": 1}, group="acme"),
    "enqueue_many": lambda client, run: client.enqueue_many([("steps", {"total": 1})] * 3),
    "view": lambda client, run: client.handle(run).view(),
    "wait": lambda client, run: client.handle(run).wait(timeout=5),
    "result": lambda client, run: client.handle(run).result(timeout=5),
    "send": lambda client, run: client.handle(run).send("topic", 2),
    "grant": lambda client, run: client.handle(run).grant(usd=1),
    "cancel": lambda client, run: client.handle(run).cancel(),
    "cancel_tree": lambda client, run: client.handle(run).cancel_tree(),
    "revive": lambda client, run: client.handle(run).revive(),
    "discard": lambda client, run: client.handle(run).discard(),
    "position": lambda client, run: client.handle(run).position(),
    "workers": lambda client, run: client.workers(),
    "status": lambda client, run: client.status(),
    "list": lambda client, run: client.list(),
    "schedule": lambda client, run: client.schedule("hourly", "0 * * * *", "steps"),
    "schedules": lambda client, run: client.schedules(),
    "pause_schedule": lambda client, run: client.pause_schedule("nightly"),
    "unpause_schedule": lambda client, run: client.unpause_schedule("nightly"),
    "unschedule": lambda client, run: client.unschedule("nightly"),
    "pause": lambda client, run: client.pause(kind="steps"),
    "unpause": lambda client, run: client.unpause(kind="steps"),
    "set_limit": lambda client, run: client.set_limit("steps", at_once=1),
    "remove_limit": lambda client, run: client.remove_limit("steps"),
    "limits": lambda client, run: client.limits(),
    "set_rate": lambda client, run: client.set_rate("api", "1/s"),
    "remove_rate": lambda client, run: client.remove_rate("api"),
    "rates": lambda client, run: client.rates(),
}  # fmt: skip


def test_every_call_of_a_client_raises_the_error_and_changes_nothing(foreign: Foreign) -> None:
    with Client(foreign.stage.url, foreign.stage.namespace) as client:
        for name, call in CALLS.items():
            with pytest.raises(NotConfigured) as raised:
                call(client, foreign.run)
            assert str(raised.value) == foreign.sentence, name
        for read in (client.handle(foreign.run).stream(timeout=5), client.handle(foreign.run).messages()):
            with pytest.raises(NotConfigured):
                next(read)
        with pytest.raises(NotConfigured):
            next(client.wait([client.handle(foreign.run)], timeout=5))
    foreign.assert_unchanged()


async def test_every_call_of_a_client_in_an_event_loop_raises_the_error_and_changes_nothing(foreign: Foreign) -> None:
    async with AsyncClient(foreign.stage.url, foreign.stage.namespace) as client:
        for name, call in CALLS.items():
            with pytest.raises(NotConfigured) as raised:
                await call(client, foreign.run)
            assert str(raised.value) == foreign.sentence, name
        with pytest.raises(NotConfigured):
            await anext(client.handle(foreign.run).stream(timeout=5))
        with pytest.raises(NotConfigured):
            await anext(aiter(client.handle(foreign.run).messages()))
    foreign.assert_unchanged()


def test_every_method_of_a_client_is_tested() -> None:
    methods = {name for name in dir(Client) if not name.startswith("_")}
    assert methods - {"close", "handle"} <= CALLS.keys()


async def test_stores_of_checkpoints_without_runs_raise_the_error_and_change_nothing(foreign: Foreign) -> None:
    url, namespace = foreign.stage.url, foreign.stage.namespace
    record = Record(Meta(run_id="alone"))
    with RedisStore(url, namespace) as store:
        for call in (lambda: store.save(record), lambda: store.load("alone"), store.list_interrupted):
            with pytest.raises(NotConfigured) as raised:
                call()
            assert str(raised.value) == foreign.sentence
    async with AsyncRedisStore(url, namespace) as async_store:
        with pytest.raises(NotConfigured) as raised:
            await async_store.save(record)
        assert str(raised.value) == foreign.sentence
    foreign.assert_unchanged()


# ---- fleets that run ---------------------------------------------------------------------------------------------------


@pytest.fixture
def fleet(stage: Stage, other_version: Path, tmp_path: Path) -> Fleet:
    """Return a fleet whose version `deployed` is a link to the packages that are on disk."""
    return Fleet(stage, {"this": ROOT, "other": other_version, "deployed": tmp_path / "deployed"}, APP)


def deploy(fleet: Fleet, version: str) -> None:
    link = fleet.folders["deployed"].with_name("next")
    link.symlink_to(fleet.folders[version])
    link.replace(fleet.folders["deployed"])


@pytest.mark.matrix("more cases with real processes")
def test_roll_to_a_version_with_another_format_stops_and_the_fleet_continues(stage: Stage, fleet: Fleet) -> None:
    deploy(fleet, "this")
    fleet.coordinator("this")
    workers = fleet.workers("deployed", processes=2)
    with Client(stage.url, stage.namespace) as client:
        handles = client.enqueue_many([("steps", {"total": 10_000, "seconds": 0.05, "gate": "enough"})] * 4)
        wait_for_start(stage, 4)
        before = set(children(workers.pid))
        deploy(fleet, "other")
        command = [sys.executable, "-m", "workers.cli", "roll"]
        rolled = subprocess.run(command, env=fleet.environment("this"), capture_output=True, text=True, timeout=120)
        assert rolled.returncode == 1
        problem = f"a new process can't start: {describe_format(stage.namespace, 1, 2)}"
        assert problem in rolled.stderr
        assert "0 of 2 replaced, the other processes continue with the old code" in rolled.stderr
        assert set(children(workers.pid)) == before
        stage.open_gate("enough")
        done = [handle.result(timeout=60) for handle in handles]
        assert {handle.view().attempt for handle in handles} == {1}, "no run was interrupted"
        steps = stage.steps()
        assert [len(steps[handle.id]) for handle in handles] == done
    assert "no problems" in fleet.command("this", "doctor")


@pytest.mark.matrix("more cases with real processes")
def test_process_that_starts_after_the_format_has_changed_refuses_and_its_runs_wait(stage: Stage, fleet: Fleet) -> None:
    """A process looks at the format when it starts. So a namespace may only be converted while no process uses it."""
    coordinator, workers = fleet.coordinator("this"), fleet.workers("this")
    admin, facts = stage.place.admin, Keys(stage.namespace, 0).namespace()
    with Client(stage.url, stage.namespace) as client:
        handle = client.enqueue("steps", {"total": 10_000, "seconds": 0.05, "gate": "enough"})
        wait_until(lambda: len(stage.events("step")) > 3, "the run has made progress, so that its loss is no strike")
        admin.hset(facts, "format", 2)
        (child,) = children(workers.pid)
        subprocess.run(["kill", "-9", str(child)], check=True)
        sentence = describe_format(stage.namespace, 2, 1)
        wait_until(lambda: fleet.log_of(workers).count(f"workers: {sentence}") >= 3, "new processes refuse", timeout=60)
        assert workers.poll() is None, "the supervisor tries again"
        wait_until(
            lambda: "worker processes end as soon as they start (3 times in a row)" in fleet.log_of(workers), "a wait"
        )
        assert '"status": "queued"' in fleet.command("other", "show", handle.id, "--json")
        coordinator.kill()
        coordinator.wait()
        refused = fleet.coordinator("this")
        assert refused.wait(60) == 3
        assert fleet.log_of(refused).splitlines()[-1] == f"error: {sentence}"
        admin.hset(facts, "format", 1)
        fleet.coordinator("this")
        wait_for_start(stage, 2)
        stage.open_gate("enough")
        total = handle.result(timeout=60)
        assert {event.number for event in stage.steps()[handle.id]} == set(range(total))
        counters = handle.view().counters
        assert (counters.strikes, counters.recoveries) == (0, 1), "only the kill counts"


@pytest.mark.matrix("more cases with real processes")
def test_fleet_whose_namespace_was_replaced_by_one_of_another_format_stops_and_touches_no_run(
    make_stage: MakeStage, start_server: StartServer, other_version: Path
) -> None:
    """The server is restored from a backup of a newer version while a fleet of this version runs."""
    server = start_server()
    stage = make_stage(server)
    fleet = Fleet(stage, {"this": ROOT, "other": other_version}, APP)
    coordinator, workers = fleet.coordinator("this"), fleet.workers("this")
    sentence = describe_format(stage.namespace, 2, 1)
    with Client(stage.url, stage.namespace) as client:
        client.enqueue("sleeper")
        wait_for_start(stage)
        restored = server.admin.pipeline(transaction=True)
        restored.flushall()
        facts: dict[Any, Any] = {
            "format": "2",
            "partitions": "1",
            "durability": "local",
            "birth": "another",
            "clock": "server",
        }
        restored.hset(Keys(stage.namespace, 0).namespace(), mapping=facts)
        restored.execute()
        run = fleet.command("other", "enqueue", "steps", "total:=3").split()[-1]
        with pytest.raises(NotConfigured) as raised:
            client.enqueue("steps", {"total": 3})
        assert str(raised.value) == sentence
        assert coordinator.wait(60) == 3
        assert fleet.log_of(coordinator).splitlines()[-1] == f"error: {sentence}"
        wait_until(lambda: f"workers: {sentence}" in fleet.log_of(workers), "a new worker process refuses", timeout=60)
        assert "is not the one that this process started with" in fleet.log_of(workers)
        assert workers.poll() is None, "the supervisor tries again"
    reader = ClientProcess(fleet, "other")
    assert reader.call("list_ids", kind="steps") == [run]
    assert reader.call("view", run=run)["status"] == str(Status.QUEUED), "no process of this version has claimed it"
    fleet.workers("other")
    assert reader.call("result", run=run) == 3
    reader.close()
