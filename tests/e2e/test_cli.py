"""The command `coordinator` as a real process: output, exit codes, and one sentence for every error."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.client.client import Client
from coordinator.config import address
from coordinator.model.run_id import is_run_id
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.transport.wire import Wire, drive
from tests.conftest import StartServer
from tests.e2e.places import Place, role_of
from tests.servers import Server
from tests.waiting import wait_until

APP = """
import asyncio
from workers import AsyncRun, Registry, Run

runs = Registry()

@runs.handler
async def greet(run: AsyncRun, name: str = "you", times: int = 1) -> str:
    return " ".join([f"hello {name}"] * times)

@runs.handler
async def talks(run: AsyncRun) -> str:
    run.emit("once upon")
    run.emit({"delta": "a time"})
    return "the end"

@runs.handler
def breaks(run: Run) -> str:
    raise ValueError("out of tides")
"""


@dataclass
class Output:
    """The output of a command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code == 0, self
        return json.loads(self.out)

    def failed_with(self, code: int) -> str:
        """Check that the command failed with one sentence on stderr and printed nothing else."""
        assert (self.code, self.out) == (code, ""), self
        assert re.fullmatch(r"error: [^\n]+\n", self.err), self.err
        return self.err


@dataclass
class Shell:
    """Runs commands, with a server and a namespace in the environment."""

    cwd: Path
    environment: Mapping[str, str]
    namespace: str = ""
    urls: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.urls["producer"]

    def environment_of(self, program: str, words: Sequence[str]) -> Mapping[str, str]:
        """Return the environment, with the URL of the role that the command has."""
        named = {"RUNS_URL": self.urls[role_of(program, words)]} if self.urls else {}
        return {**self.environment, **named}

    def __call__(self, *words: str, stdin: str = "", program: str = "coordinator") -> Output:
        done = subprocess.run(
            self.command(program, *words), cwd=self.cwd, env=self.environment_of(program, words), input=stdin, text=True,
            capture_output=True, timeout=60,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return Output(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, program: str = "coordinator") -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(program, *words), cwd=self.cwd, env=self.environment_of(program, words), text=True, stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    @staticmethod
    def command(program: str, *words: str) -> list[str]:
        return [sys.executable, "-m", f"{program}.cli", *words]


@pytest.fixture
def shell(valkey_server: Server, namespace: str, tmp_path: Path) -> Shell:
    (tmp_path / "app.py").write_text(APP)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RUNS_", "REDIS_", "COLUMNS"))}
    urls = Place(valkey_server).urls(namespace)
    named = {"RUNS_URL": urls["producer"], "RUNS_NAMESPACE": namespace}
    return Shell(tmp_path, {**clean, **named}, namespace, urls)


@pytest.fixture
def client(shell: Shell) -> Iterator[Client]:
    with Client(shell.url, shell.namespace) as client:
        yield client


@pytest.fixture
def worker(shell: Shell, client: Client) -> Iterator[subprocess.Popen[str]]:
    process = shell.start("start", "app:runs", "--concurrency", "5", "--code", "v1", program="workers")
    wait_until(
        lambda: any(one.memory for one in client.workers()), "the worker's first heartbeat, which tells its memory"
    )
    yield process
    process.terminate()
    process.communicate(timeout=30)


# ---- init ------------------------------------------------------------------------------------------------------------


@pytest.mark.matrix("commands, case by case")
def test_init_settings_can_not_change_later(shell: Shell) -> None:
    said = shell("init", "--partitions", "4", "--json").json()
    assert said == {"namespace": shell.namespace, "partitions": 4, "durability": "local", "created": True}
    assert shell("init", "--json").json() == {**said, "created": False}
    assert "4 partitions, not 2" in shell("init", "--partitions", "2").failed_with(3)


@pytest.mark.matrix("commands, case by case")
def test_init_rejects_unknown_durability(shell: Shell) -> None:
    assert "none, local, synced" in shell("init", "--durability", "eternal").failed_with(2)


@pytest.mark.matrix("commands, case by case")
def test_init_rejects_durability_that_the_server_settings_contradict(shell: Shell) -> None:
    assert "CONFIG SET appendfsync always" in shell("init", "--durability", "synced").failed_with(3)


# ---- enqueue ---------------------------------------------------------------------------------------------------------


def test_enqueue_prints_the_id_and_passes_the_inputs(shell: Shell, client: Client) -> None:
    said = shell(
        "enqueue", "greet", "name=tide", "times:=2", 'list:=["a", {"b": null}]', "--priority", "5", "--queue", "q"
    )
    id = said.out.strip()
    assert said.code == 0
    assert is_run_id(id)
    view = client.handle(id).view()
    assert dict(view.inputs) == {"name": "tide", "times": 2, "list": ["a", {"b": None}]}
    assert (view.kind, view.queue) == ("greet", "q")
    assert "no live worker handles kind 'greet'" in said.err


def test_enqueue_warns_that_the_queue_is_paused(shell: Shell, client: Client) -> None:
    client.pause(queue="default")
    said = shell("enqueue", "greet")
    assert said.err == "queue 'default' is paused; the run waits until it is unpaused\n"
    assert client.handle(said.out.strip()).view().status == "queued"


@pytest.mark.matrix("each option of a command")
def test_limits_are_set_listed_and_removed_while_runs_wait_for_them(
    shell: Shell, client: Client, worker: subprocess.Popen[str]
) -> None:
    assert shell("limit", "list").out == "no limits\n"
    set_zero = shell("limit", "set", "greet", "--at-once", "0", "--json").json()
    assert set_zero == {"kind": "greet", "group": None, "at_once": 0, "changed": True}
    assert "its runs need a group" in shell("enqueue", "greet").failed_with(2)
    id = shell("enqueue", "greet", "--group", "acme").out.strip()
    shown = shell("show", id).out
    assert "has a limit of 0, so it admits no run" in " ".join(shown.split())
    assert [row["id"] for row in shell("runs", "--stuck", "--json").json()["runs"]] == [id]
    status = " ".join(shell("status").out.split())
    assert "1 queued run of kind greet waits for a place in its group (1 group), the first for " in status
    assert "1 group with a limit of 0 admits no run: acme of greet" in status
    set_two = shell("limit", "set", "greet", "--at-once", "2", "--group", "acme")
    assert set_two.out == "group 'acme' of kind greet: 2 runs at once\n"
    assert "no coordinator is running: the change applies when" in " ".join(set_two.err.split())
    rows = shell("limit", "list", "--json").json()["limits"]
    shared = {"kind": "greet", "rate": None, "burst": None, "source": "operator", "known": True}
    assert rows == [shared | {"group": None, "at_once": 0}, shared | {"group": "acme", "at_once": 2}]
    coordinator = shell.start("start")
    assert client.handle(id).result(timeout=30) == "hello you"
    coordinator.terminate()
    coordinator.communicate(timeout=30)
    set_rate = shell("limit", "set", "greet", "--rate", "10/min", "--burst", "2", "--group", "acme")
    assert set_rate.out == "group 'acme' of kind greet: 10/min starts, 2 at one moment\n"
    row = shell("limit", "list", "--json").json()["limits"][1]
    assert (row["at_once"], row["rate"], row["burst"]) == (2, "10/min", 2)
    assert "give --at-once, --rate, or both" in shell("limit", "set", "greet").failed_with(2)
    assert shell("limit", "set", "gret", "--at-once", "2").err.startswith(
        "no live worker handles kind gret; did you mean 'greet'?"
    )
    assert shell("limit", "remove", "gret").out == "the limit of each group of kind gret was removed\n"
    assert shell("limit", "remove", "greet").out == "the limit of each group of kind greet was removed\n"
    assert "no limit is set for each group of kind greet; did you mean" in shell(
        "limit", "remove", "greet"
    ).failed_with(3)
    similar = shell("limit", "remove", "greet", "--group", "acne").failed_with(3)
    assert "no limit is set for group 'acne' of kind greet; did you mean group 'acme' of kind greet?" in similar
    assert "neither a whole number" in shell("limit", "set", "greet", "--at-once", "many").failed_with(2)


@pytest.mark.matrix("commands, case by case")
def test_rates_are_set_listed_and_removed(shell: Shell) -> None:
    assert shell("rate", "list").out == "no rates\n"
    assert shell("rate", "set", "api", "--rate", "90000/min", "--burst", "10000").out == (
        "rate api: 90000/min, burst 10,000\n"
    )
    assert shell("rate", "set", "gpu", "--at-once", "4").out == "rate gpu: 4 calls at once\n"
    assert "is already set to this" in shell("rate", "set", "gpu", "--at-once", "4").out
    assert shell("rate", "list", "--json").json()["rates"] == [
        {"name": "api", "rate": "90000/min", "burst": 10_000, "at_once": None, "held": 0, "waiting": 0, "wait": 0.0},
        {"name": "gpu", "rate": None, "burst": None, "at_once": 4, "held": 0, "waiting": 0, "wait": 0.0},
    ]
    assert "90000/min" in shell("rate", "list").out
    assert shell("rate", "remove", "gpu").out == "rate gpu was removed\n"
    assert "there is no rate gpu; see 'coordinator rate list'" in shell("rate", "remove", "gpu").failed_with(3)
    assert "there is no rate apo; did you mean 'api'?" in shell("rate", "remove", "apo").failed_with(3)
    error = json.loads(shell("rate", "remove", "gpu", "--json").err)["error"]
    assert error["type"] == "NotFound"
    assert "give --rate, --at-once, or both" in shell("rate", "set", "api").failed_with(2)
    assert "is not a rate such as" in shell("rate", "set", "api", "--rate", "many").failed_with(2)


@pytest.mark.matrix("commands, case by case")
def test_inputs_come_from_an_option_a_file_or_standard_input(shell: Shell, client: Client) -> None:
    (shell.cwd / "in.json").write_text('{"name": "file", "times": 3}')
    given = {
        "option": shell("enqueue", "greet", "--inputs", '{"name": "option"}', "times:=1"),
        "file": shell("enqueue", "greet", "--inputs", "@in.json", "times:=1"),
        "stdin": shell("enqueue", "greet", "--inputs", "-", "times:=1", stdin='{"name": "stdin"}'),
    }
    for name, said in given.items():
        assert said.code == 0, said.err
        assert dict(client.handle(said.out.strip()).view().inputs) == {"name": name, "times": 1}


@pytest.mark.matrix("commands, case by case")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tides"], "'tides' is not an input: write name=text"),
        (["a:=tides"], "the value of a:= is not valid JSON"),
        (["--inputs", "[1]"], "must be a JSON object"),
        (["--inputs", "{"], "--inputs is not valid JSON"),
        (["--inputs", "@absent.json"], "absent.json: No such file"),
        (["--priority", "101"], "priority 101"),
        (["--count", "0"], "--count"),
        (["--count", "2", "--key", "k"], "--key identifies one run"),
        (["--delay", "soon"], "--delay"),
        (["--queue", "a b"], "queue 'a b' is not a valid name"),
    ],
)
def test_bad_inputs_and_options_are_usage_errors(shell: Shell, words: list[str], sentence: str) -> None:
    assert sentence in shell("enqueue", "greet", *words).failed_with(2)


@pytest.mark.matrix("commands, case by case")
def test_too_large_inputs_are_rejected(shell: Shell) -> None:
    big = json.dumps({"name": "x" * 2_000_000})
    assert shell("enqueue", "greet", "--inputs", "-", stdin=big).failed_with(3)


def test_enqueue_many_runs_in_one_call(shell: Shell, client: Client) -> None:
    ids = shell("enqueue", "greet", "--count", "1200", "--delay", "600").out.split()
    assert len(set(ids)) == 1200
    assert client.status().counts["delayed"] == 1200  # type: ignore[index]  # a Status is its word


@pytest.mark.matrix("commands, case by case")
def test_enqueue_with_a_used_key_returns_the_existing_run(shell: Shell) -> None:
    first = shell("enqueue", "greet", "--key", "k", "--json").json()["runs"][0]
    again = shell("enqueue", "greet", "--key", "k", "--json").json()["runs"][0]
    assert (first["created"], again) == (True, {"id": first["id"], "created": False})
    assert "a run with this key exists" in shell("enqueue", "greet", "--key", "k").err
    assert "has other inputs" in shell("enqueue", "greet", "name=other", "--key", "k").failed_with(3)


def test_wait_prints_the_result(shell: Shell, worker: object) -> None:
    assert shell("enqueue", "greet", "name=tide", "--wait") == Output(0, "hello tide\n", "")
    many = shell("enqueue", "greet", "name=tide", "--count", "3", "--wait", "--json").json()["runs"]
    assert [(run["status"], run["result"]) for run in many] == [("completed", "hello tide")] * 3


@pytest.mark.matrix("commands, case by case")
def test_wait_for_a_failed_run_exits_with_1(shell: Shell, worker: object) -> None:
    assert "ended as failed: ValueError: out of tides" in shell("enqueue", "breaks", "--wait").failed_with(1)
    said = shell("enqueue", "breaks", "--wait", "--json")
    assert (said.code, json.loads(said.out)["runs"][0]["error"]) == (1, "ValueError: out of tides")


@pytest.mark.matrix("commands, case by case")
def test_wait_gives_up_after_its_own_timeout_and_the_run_continues(
    shell: Shell, client: Client, worker: object
) -> None:
    said = shell("enqueue", "greet", "--delay", "600", "--wait-timeout", "0.5")
    (view,) = client.list(status="delayed")
    assert (said.code, said.out) == (1, "")
    assert said.err == f"error: run {view.id} is delayed: it has not ended after 0.5 s: {view.why}\n"
    (row,) = json.loads(shell("enqueue", "greet", "--delay", "600", "--wait", "--wait-timeout", "0", "--json").out)[
        "runs"
    ]
    assert (row["status"], row["created"]) == ("delayed", True)
    assert row["error"].startswith("it has not ended after 0 s: ")
    assert "invalid value for '--wait-timeout'" in shell("enqueue", "greet", "--wait-timeout", "nan").failed_with(2)
    assert shell("enqueue", "greet", "name=tide", "--wait-timeout", "60") == Output(0, "hello tide\n", "")


@pytest.mark.matrix("commands, case by case")
def test_wait_says_that_the_timeout_of_the_server_does_not_limit_it(shell: Shell, client: Client) -> None:
    process = shell.start("enqueue", "greet", "--wait", "--timeout", "0.5")
    assert process.stderr is not None
    lines = [process.stderr.readline(), process.stderr.readline()]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert lines[0].startswith("run ")
    assert lines[1].startswith("--timeout limits how long the command waits for an answer of the server, not for ")
    assert "use --wait-timeout for that" in lines[1]


def test_interrupt_while_waiting_prints_no_traceback(shell: Shell, client: Client) -> None:
    process = shell.start("enqueue", "greet", "--wait")
    wait_until(lambda: client.list(status="queued"), "the run")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")


# ---- commands that read ----------------------------------------------------------------------------------------------


def test_status_prints_counts_and_names_what_is_missing(shell: Shell) -> None:
    shell("enqueue", "greet", "--count", "3")
    said = shell("status")
    assert said.code == 0
    assert re.search(r"default +greet +any +3 +no worker", said.out)
    assert "no coordinator is running" in said.out
    assert shell("status", "--json").json()["counts"]["queued"] == 3


@pytest.mark.matrix("commands, case by case")
def test_runs_lists_filtered_runs_with_whole_ids(shell: Shell) -> None:
    one = shell("enqueue", "greet").out.strip()
    other = shell("enqueue", "x" * 100, "--queue", "q", "--delay", "60").out.strip()
    listed = shell("runs").out
    assert one in listed
    assert other in listed
    assert "x" * 100 in listed
    assert [run["id"] for run in shell("runs", "--kind", "greet", "--json").json()["runs"]] == [one]
    assert [run["id"] for run in shell("runs", "--status", "delayed", "--json").json()["runs"]] == [other]
    assert [run["id"] for run in shell("runs", "--queue", "q", "--since", "1h", "--json").json()["runs"]] == [other]
    assert shell("runs", "--since", "0s", "--json").json()["runs"] == []
    assert len(shell("runs", "--limit", "1", "--json").json()["runs"]) == 1
    assert "'queued', 'delayed'" in shell("runs", "--status", "lost").failed_with(2)
    assert "write 30s, 10m" in shell("runs", "--since", "yesterday").failed_with(2)


@pytest.mark.matrix("commands, case by case")
def test_show_names_an_unknown_kind_and_suggests_a_similar_one(shell: Shell) -> None:
    id = shell("enqueue", "reserch", "topic=tides").out.strip()
    assert "no live worker handles kind 'reserch'" in shell("show", id).out
    wire = Wire(address(shell.url))
    space = drive(wire, namespace_plans.create(shell.namespace, birth=""))
    member = worker_plans.WorkerRecord("w-1", 60_000, "host", 1, "", "default", "", 1, ("default:research@0",))
    drive(wire, worker_plans.join(space.keys(0), space.birth, member))
    wire.close()
    said = shell("show", id)
    assert "did you mean 'research'?" in said.out
    assert '"topic": "tides"' in said.out
    assert shell("show", id, "--json").json()["why"].startswith("no live worker handles kind 'reserch'")


def test_show_prints_the_result_or_the_error(shell: Shell, worker: object) -> None:
    done = shell("enqueue", "greet", "--wait", "--json").json()["runs"][0]["id"]
    broken = json.loads(shell("enqueue", "breaks", "--wait", "--json").out)["runs"][0]["id"]
    assert shell("show", done).out.endswith("result\nhello you\n")
    assert shell("show", done, "--json").json()["result"] == "hello you"
    shown = subprocess.run(
        Shell.command("coordinator", "show", broken), env=shell.environment, capture_output=True, text=True
    )
    assert "failed  ValueError: out of tides" in shown.stdout
    assert 'raise ValueError("out of tides")' in shown.stdout, "the handler's own traceback is part of the answer"


@pytest.mark.matrix("commands, case by case")
def test_stream_prints_the_events_of_a_run_until_it_ends(shell: Shell, worker: object) -> None:
    id = shell("enqueue", "talks").out.strip()
    plain = shell("stream", id)
    assert plain.out == 'once upon\n{"delta": "a time"}\n'
    assert f"run {id} is completed" in plain.err
    first, second = map(json.loads, shell("stream", id, "--settled", "--json").out.splitlines())
    assert (first["type"], first["number"], first["value"]) == ("event", 1, "once upon")
    (again,) = map(json.loads, shell("stream", id, "--after", first["id"], "--json").out.splitlines())
    assert again == second
    assert "is not the id of an event" in shell("stream", id, "--after", "x").failed_with(2)


def test_unknown_run_is_reported(shell: Shell) -> None:
    assert "there is no run" in shell("show", "0123456789abcdefghjk-00").failed_with(3)
    assert "names partition 7" in shell("show", "0123456789abcdefghjk-07").failed_with(3)
    assert "is not a run id" in shell("show", "tides").failed_with(2)


@pytest.mark.matrix("commands, case by case")
def test_user_text_is_printed_without_markup_or_escape_sequences(shell: Shell) -> None:
    id = shell("enqueue", "greet", "name=[red]x[/red]\x1b[2J", "--key", "\x1b[2Jk").out.strip()
    shown = shell("show", id).out
    assert "[red]x[/red]" in shown
    assert "\x1b" not in shown


@pytest.mark.matrix("commands, case by case")
def test_grant_names_the_amount_and_is_kept_for_a_run_that_can_be_revived(shell: Shell, client: Client) -> None:
    id = shell("enqueue", "greet").out.strip()
    assert f"granted to run {id}: 5 USD" in shell("grant", id, "--usd", "5").out
    assert shell("grant", id, "--requests", "3", "--json").json() == {"run": id, "usd": 0.0, "tokens": 0, "requests": 3}
    assert "needs an amount" in shell("grant", id).failed_with(2)
    client.handle(id).cancel()
    assert f"granted to run {id}: 5 USD" in shell("grant", id, "--usd", "5").out
    bare = client.enqueue("greet", retention=0)
    bare.cancel()
    assert "can't be revived, so nothing can be granted to it" in shell("grant", bare.id, "--usd", "5").failed_with(3)


# ---- commands that change runs ---------------------------------------------------------------------------------------


def test_cancel_and_revive_runs_by_id(shell: Shell, client: Client) -> None:
    ids = shell("enqueue", "greet", "--count", "2").out.split()
    assert shell("cancel", *ids, "--json").json() == {"runs": [{"id": id, "status": "cancelled"} for id in ids]}
    assert "already ended" not in shell("cancel", ids[0]).out
    assert "requeued from the start" in shell("revive", ids[0], "--from-start").out
    assert client.handle(ids[0]).view().status == "queued"
    assert "has not ended" in shell("revive", ids[0]).failed_with(3)
    unknown = shell("revive", ids[1], "--forget-effect", "charge", "--forget-effect", "mail").failed_with(3)
    assert f"run {ids[1]} was not revived: it has no effect 'charge'; 'coordinator show" in unknown
    assert "requeued, with effects forgotten" in shell("revive", ids[1], "--forget-effects").out


@pytest.mark.matrix("commands, case by case")
def test_refused_run_does_not_stop_changes_of_the_others(shell: Shell, client: Client) -> None:
    id = shell("enqueue", "greet").out.strip()
    said = shell("cancel", "0123456789abcdefghjk-00", id)
    assert (said.code, said.out) == (3, f"{id}  cancelled\n")
    assert "there is no run 0123456789abcdefghjk-00" in said.err
    assert client.handle(id).view().status == "cancelled"


@pytest.mark.matrix("commands, case by case")
def test_change_of_a_whole_kind_requires_yes(shell: Shell, client: Client) -> None:
    shell("enqueue", "greet", "--count", "30")
    other = shell("enqueue", "other").out.strip()
    assert "30 runs match: use --yes to cancel them" in shell("cancel", "--kind", "greet").failed_with(2)
    assert len(shell("cancel", "--kind", "greet", "--dry-run", "--json").json()["runs"]) == 30
    assert len(client.list(status="queued")) == 31
    assert len(shell("cancel", "--kind", "greet", "--yes").out.splitlines()) == 30
    assert [view.id for view in client.list(status="queued")] == [other]
    assert len(shell("revive", "--kind", "greet", "--status", "cancelled", "--yes", "--json").json()["runs"]) == 30
    assert len(client.list(status="queued")) == 31


@pytest.mark.matrix("commands, case by case")
@pytest.mark.parametrize("verb", ["cancel", "revive", "discard"])
def test_dry_run_changes_nothing_even_for_runs_given_by_id(shell: Shell, client: Client, verb: str) -> None:
    handle = client.enqueue("greet")
    if verb != "cancel":
        handle.cancel()
    before = handle.view()
    assert [run["id"] for run in shell(verb, handle.id, "--dry-run", "--json").json()["runs"]] == [handle.id]
    said = shell(verb, handle.id, "0123456789abcdefghjk-00", "--dry-run")
    assert (said.code, handle.id in said.out) == (3, True)
    assert "there is no run 0123456789abcdefghjk-00" in said.err
    assert handle.view() == before


@pytest.mark.matrix("commands, case by case")
def test_status_filter_that_does_not_fit_the_change_is_a_usage_error(shell: Shell) -> None:
    shell("enqueue", "greet")
    said = shell("discard", "--status", "queued", "--dry-run").failed_with(2)
    assert "can't discard runs that are queued: --status must be cancelled, completed, dead or failed" in said
    assert "can't cancel runs that are dead: --status must be" in shell(
        "cancel", "--status", "dead", "--yes"
    ).failed_with(2)
    assert "can't revive runs that are running: --status must be" in shell(
        "revive", "--status", "running", "--yes"
    ).failed_with(2)
    assert "1 run matches: use --yes to cancel it, or --dry-run to list it" in shell(
        "cancel", "--kind", "greet"
    ).failed_with(2)


@pytest.mark.matrix("commands, case by case")
def test_change_requires_ids_or_a_filter(shell: Shell) -> None:
    assert "cancel needs run ids, or a filter" in shell("cancel", "--yes").failed_with(2)
    assert "not both" in shell("revive", "0123456789abcdefghjk-00", "--kind", "greet").failed_with(2)


# ---- send ------------------------------------------------------------------------------------------------------------


@pytest.mark.matrix("commands, case by case")
def test_send_stores_a_signal_once_for_each_key(shell: Shell, client: Client) -> None:
    id = shell("enqueue", "greet").out.strip()
    said = shell("send", id, "approval", "by=ann", "ok:=true", "--key", "k")
    assert said == Output(0, f"signal approval sent to run {id}\n", "")
    again = shell("send", id, "approval", "by=bob", "--key", "k", "--json").json()
    assert again == {"run": id, "topic": "approval", "sent": False}
    said = shell("send", id, "approval", "by=bob", "--key", "k")
    assert said == Output(0, f"not sent: a signal with this key was sent to run {id} before\n", "")
    assert shell("send", id, "approval", "--json").json() == {"run": id, "topic": "approval", "sent": True}
    client.handle(id).cancel()
    ended = f"run {id} has ended as cancelled, so it can't receive signal 'approval'; revive it first"
    assert ended in shell("send", id, "approval").failed_with(3)
    error = shell("send", id, "approval", "--json")
    assert (error.code, json.loads(error.err)["error"]) == (3, {"type": "Ended", "message": ended})


def suspend_run(shell: Shell, client: Client, topics: dict[str, int]) -> str:
    """Return the id of a run that waits for an hour for a signal of these topics, or sleeps if there are none."""
    handle = client.enqueue("greet")
    wire = Wire(address(shell.urls["worker"]))
    space = drive(wire, namespace_plans.create(shell.namespace, birth=""))
    keys = space.keys_of(handle.id)
    member = worker_plans.WorkerRecord("w-1", 60_000, "host", 1, "", "default", "", 1, ("default:greet@0",))
    drive(wire, worker_plans.join(keys, space.birth, member))
    _, (run,) = drive(wire, worker_plans.claim(keys, "w-1", number=1, want=1, routes=member.routes, alone=False))
    condition = attempt_plans.Condition(round(time.time() * 1000) + 3_600_000, topics)
    assert drive(wire, attempt_plans.suspend(keys, run.id, run.token, condition=condition)) == "waiting"
    wire.close()
    return run.id


@pytest.fixture
def waiting(shell: Shell, client: Client) -> str:
    """Return the id of a run that waits for the signal 'approval'."""
    return suspend_run(shell, client, {"approval": 0})


def test_send_to_a_sleeping_run_says_that_the_run_sleeps(shell: Shell, client: Client) -> None:
    said = shell("send", suspend_run(shell, client, {}), "approval")
    assert (said.code, said.err) == (
        0,
        "the run still waits: it sleeps, and does not wait for signal 'approval'\n",
    )


@pytest.mark.matrix("commands, case by case")
def test_waiting_run_is_shown_woken_and_cancelled(shell: Shell, waiting: str) -> None:
    assert re.search(
        rf"^{waiting}  greet .* waiting .* signal 'approval', waited .*, 60 min left", shell("runs").out, re.M
    )
    assert [run["id"] for run in shell("runs", "--status", "waiting", "--json").json()["runs"]] == [waiting]
    assert shell("status", "--json").json()["counts"]["waiting"] == 1
    said = shell("send", waiting, "aproval")
    assert (said.code, said.err) == (0, "the run still waits: it waits for signal 'approval', not for 'aproval'\n")
    shown = shell("show", waiting)
    assert "waits for signal 'approval'" in shown.out
    assert "waits since" in shown.out
    assert "not received yet: 1 aproval" in shown.out
    assert shell("show", waiting, "--json").json()["waiting"]["topics"] == ["approval"]
    assert shell("send", waiting, "approval").err == ""
    assert "by signal 'approval'" in shell("show", waiting).out


@pytest.mark.matrix("commands, case by case")
def test_waiting_runs_are_cancelled_by_filter(shell: Shell, waiting: str) -> None:
    assert shell("cancel", "--status", "waiting", "--yes").out == f"{waiting}  cancelled\n"
    assert shell("status", "--json").json()["counts"]["waiting"] == 0


@pytest.mark.matrix("commands, case by case")
@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["a b"], 2, "topic 'a b' is not a valid name"),
        (["t", "tides"], 2, "'tides' is not an entry of the payload: write name=text"),
        (["t", "--payload", "tides"], 2, "--payload is not valid JSON"),
        (["t", "a=1", "--payload", "[1]"], 2, "the payload is not a JSON object"),
        (["t", "--payload", "@absent.json"], 2, "can't read the payload from absent.json: No such file"),
        (["t", "--key", ""], 2, "key '' is not text of 1 to 512 characters"),
        (["t", "--payload", "-"], 3, "the payload of signal 't' has"),
    ],
)
def test_bad_signals_are_refused(shell: Shell, words: list[str], code: int, sentence: str) -> None:
    id = shell("enqueue", "greet").out.strip()
    assert sentence in shell("send", id, *words, stdin=json.dumps("x" * 2**20)).failed_with(code)


@pytest.mark.matrix("commands, case by case")
def test_signal_to_an_unknown_run_is_refused(shell: Shell) -> None:
    assert "there is no run" in shell("send", "0123456789abcdefghjk-00", "t").failed_with(3)
    assert "is not a run id" in shell("send", "tides", "t").failed_with(2)


# ---- start -----------------------------------------------------------------------------------------------------------


@pytest.mark.matrix("commands, case by case")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_coordinator_runs_until_it_receives_a_stop_signal(shell: Shell, client: Client, number: signal.Signals) -> None:
    process = shell.start("start")
    wait_until(lambda: client.status().coordinators, "the coordinator")
    id = shell("enqueue", "greet", "--delay", "0.1").out.strip()
    wait_until(lambda: client.handle(id).view().status == "queued", "the delayed run to move")
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    first, *_, last = err.splitlines()
    assert process.returncode == 0
    assert f"namespace {shell.namespace}, 1 partition" in first
    assert last.endswith("has stopped")


def test_log_lines_can_be_json(shell: Shell, client: Client) -> None:
    process = shell.start("--log-json", "start")
    wait_until(lambda: client.status().coordinators, "the coordinator")
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert [json.loads(line)["level"] for line in err.splitlines()] == ["INFO"] * 3


@pytest.mark.matrix("commands, case by case")
def test_coordinator_waits_for_its_server_and_stops_immediately_on_a_signal(shell: Shell, unused_port: int) -> None:
    process = shell.start("start", "--url", f"redis://127.0.0.1:{unused_port}/0", "--timeout", "50")
    assert process.stderr
    assert "can't be reached" in process.stderr.readline()
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "has stopped" in err


def test_evicting_server_is_rejected_with_the_command_that_fixes_it(shell: Shell, start_server: StartServer) -> None:
    server = start_server(settings={"maxmemory-policy": "allkeys-lru"})
    assert "CONFIG SET maxmemory-policy noeviction" in shell("start", "--url", server.url).failed_with(3)


# ---- every command ---------------------------------------------------------------------------------------------------

COMMANDS = [
    ("coordinator", ["init"]),
    ("coordinator", ["enqueue", "greet"]),
    ("coordinator", ["status"]),
    ("coordinator", ["runs"]),
    ("coordinator", ["show", "0123456789abcdefghjk-00"]),
    ("coordinator", ["send", "0123456789abcdefghjk-00", "t"]),
    ("coordinator", ["cancel", "0123456789abcdefghjk-00"]),
    ("coordinator", ["revive", "0123456789abcdefghjk-00"]),
    ("workers", ["list"]),
]
every_command = pytest.mark.parametrize(("program", "words"), COMMANDS, ids=lambda value: str(value[0]))


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Reserve a port on which no server listens for the duration of the test."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        yield found.getsockname()[1]


@pytest.mark.matrix("commands, case by case")
@every_command
def test_unreachable_server_exits_with_4(shell: Shell, unused_port: int, program: str, words: list[str]) -> None:
    said = shell(*words, "--url", f"redis://127.0.0.1:{unused_port}/0", "--timeout", "0.2", program=program)
    assert "can't be reached" in said.failed_with(4)
    assert "--url or RUNS_URL" in said.err


@pytest.mark.matrix("commands, case by case")
@every_command
def test_memory_url_is_rejected_in_one_sentence(shell: Shell, program: str, words: list[str]) -> None:
    assert "can't use memory://" in shell(*words, "--url", "memory://x", program=program).failed_with(2)


@pytest.mark.matrix("commands, case by case")
def test_wrong_url_is_a_usage_error(shell: Shell) -> None:
    assert "is not the URL of a server" in shell("status", "--url", "http://user:s3cret@host").failed_with(2)
    assert "s3cret" not in shell("status", "--url", "http://user:s3cret@host").err
    assert "port" in shell("status", "--url", "redis://:s3cret@host:nan/0").failed_with(2)


@pytest.mark.matrix("commands, case by case")
def test_wrong_password_is_rejected_and_never_printed(shell: Shell, start_server: StartServer) -> None:
    server = start_server()
    server.admin.config_set("requirepass", "right")
    said = shell("status", "--url", f"redis://:s3cret@127.0.0.1:{server.port}/0")
    told = "refused the user or password: put the right ones into the URL, as user:password@ before the host"
    assert told in said.failed_with(3)
    assert "s3cret" not in said.err
    assert shell("status", "--url", f"redis://:right@127.0.0.1:{server.port}/0").code == 0


@pytest.mark.matrix("commands, case by case")
def test_options_work_before_and_after_the_subcommand_and_the_last_one_wins(shell: Shell) -> None:
    assert shell("--json", "--namespace", "a", "status").json()["namespace"] == "a"
    assert shell("--namespace", "a", "status", "--namespace", "b", "--json").json()["namespace"] == "b"
    assert shell("status", "--json").json()["namespace"] == shell.namespace


@pytest.mark.matrix("commands, case by case")
def test_options_come_from_the_environment_too(shell: Shell) -> None:
    wishful = replace(shell, environment={**shell.environment, "RUNS_JSON": "1"})
    assert wishful("status").json()["namespace"] == shell.namespace
    assert wishful("--namespace", "given", "status").json()["namespace"] == "given"


@pytest.mark.matrix("commands, case by case")
@pytest.mark.parametrize("program", ["coordinator", "workers"])
def test_usage_errors_are_one_sentence_and_help_prints_help(shell: Shell, program: str) -> None:
    assert f"see '{program} --help'" in shell("frobnicate", program=program).failed_with(2)
    assert f"see '{program} start --help'" in shell("start", "--frobnicate", program=program).failed_with(2)
    assert "Usage" in shell("--help", program=program).out
    bare = shell(program=program)
    assert (bare.code, "Usage" in bare.out) == (2, True)
    assert shell("--version", program=program).out.startswith(f"{program} 0.")


@pytest.mark.matrix("commands, case by case")
def test_closed_output_pipe_is_not_an_error(shell: Shell) -> None:
    shell("enqueue", "greet", "--count", "2000", "--delay", "60")
    process = subprocess.Popen(
        Shell.command("coordinator", "runs", "--limit", "2000"), env=shell.environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    assert process.stderr
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.wait(timeout=30)
    process.stderr.close()
    assert "Traceback" not in err


# ---- workers ---------------------------------------------------------------------------------------------------------


@pytest.mark.matrix("commands, case by case")
def test_workers_command_lists_live_workers(shell: Shell, worker: object) -> None:
    listed = shell("list", program="workers")
    assert re.search(r"\d+ +default +v1 +0/5 +[\d.]+ s +\d+ MiB +working", listed.out), listed
    one = shell("list", "--json", program="workers").json()["workers"][0]
    assert (one["slots"], one["code"], one["draining"]) == (5, "v1", False)


@pytest.mark.matrix("commands, case by case")
def test_workers_command_says_that_there_are_none(shell: Shell) -> None:
    assert shell("list", program="workers").out == "no workers\n"
    assert shell("list", "--json", program="workers").json()["workers"] == []


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("app", "does not name a registry"),
        ("absent:runs", "no module 'absent'"),
        ("app:absent", "module 'app' has no 'absent': did you mean app:runs?"),
        ("app:APP", "module 'app' has no 'APP': did you mean app:runs?"),
        ("broken:runs", "ZeroDivisionError: division by zero"),
        ("wrong:runs", "SyntaxError"),
    ],
)
def test_registry_that_can_not_be_loaded_is_reported_in_one_sentence(shell: Shell, place: str, sentence: str) -> None:
    (shell.cwd / "broken.py").write_text("\nx = 1 / 0\n")
    (shell.cwd / "wrong.py").write_text("x = (\n")
    said = shell("start", place, program="workers").failed_with(2)
    assert sentence in said
    if place == "broken:runs":
        assert "broken.py, line 2" in said


@pytest.mark.matrix("commands, case by case")
@pytest.mark.parametrize("name", ["workers.py", "coordinator.py"])
def test_module_that_shadows_the_application_is_reported(shell: Shell, name: str) -> None:
    (shell.cwd / name).write_text("")
    script = Path(sys.executable).with_name("workers")
    said = subprocess.run(
        [script, "start", "app:runs"], cwd=shell.cwd, env=shell.environment, capture_output=True, text=True
    )
    assert said.returncode == 2
    assert f"{name} hides the installed package {name.removesuffix('.py')!r}: rename it" in said.stderr


def test_internal_error_prints_no_local_variables(shell: Shell) -> None:
    """Check that typer's tracebacks do not print local variables. The server's password is one of them."""
    broken = (
        "import coordinator, coordinator.cli.app as cli; coordinator.Client.status = lambda self: 1 / 0; cli.main()"
    )
    command = [sys.executable, "-c", broken, "status", "--url", "redis://:s3cret@127.0.0.1:1/0"]
    done = subprocess.run(command, env=shell.environment, capture_output=True, text=True)
    assert "ZeroDivisionError" in done.stderr
    assert "s3cret" not in done.stderr
    assert done.returncode == 1
