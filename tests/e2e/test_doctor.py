"""`coordinator doctor` on a busy namespace, as a command, and on a large namespace."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator import Client, Handle
from coordinator.config import address
from coordinator.doctor.examiner import examine
from coordinator.doctor.report import DoctorReport
from coordinator.store.keys import Namespace
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.transport.wire import Wire, drive
from tests.conftest import StartServer
from tests.e2e.places import role_of
from tests.e2e.processes import Stage, children
from tests.servers import FORGETFUL
from tests.waiting import wait_until

RUNS = int(os.environ.get("RUNS_TEST_DOCTOR_RUNS", "5000"))
SLOWEST_MS = 50  # The limit of the requirement. A check takes about one.


class DoctorConnection:
    """A doctor with a connection of its own."""

    def __init__(self, url: str, namespace: str) -> None:
        self.wire = Wire(address(url), timeout=30)
        self.space: Namespace = drive(self.wire, namespace_plans.create(namespace, birth="b1", durability=None))

    def examine(self, repair: bool = False) -> DoctorReport:
        return drive(self.wire, examine(self.space, repair=repair))


@pytest.fixture
def clinic(stage: Stage) -> Iterator[DoctorConnection]:
    made = DoctorConnection(stage.urls["coordinator"], stage.namespace)
    yield made
    made.wire.close()


class BusyNamespace:
    """Runs that come and go while their processes are killed.

    A doctor checks the namespace whenever the test polls for the end.
    """

    def __init__(self, stage: Stage, client: Client, clinic: DoctorConnection) -> None:
        self.stage, self.client, self.clinic = stage, client, clinic
        self.choose = random.Random(5)
        self.checks = self.kills = 0
        self.left: dict[str, Handle[Any]] = {}
        self.fleet = stage.fleet(3, concurrency=10)

    def check_for_findings(self) -> None:
        report = self.clinic.examine(repair=self.checks % 2 == 1)  # A repair must find nothing to do either.
        assert [finding.sentence for finding in report.findings] == [], f"at check {self.checks}"
        self.checks += 1

    def enqueue(self) -> None:
        runs: list[tuple[str, dict[str, Any]]] = [("steps", {"total": 5, "seconds": 0.02})] * 20
        handles = self.client.enqueue_many(runs)
        handles += self.client.enqueue_many(runs[:5], delay=0.5, expires=60)
        handles += self.client.enqueue_many([("saved", {"total": 3})] * 5, retention=0)
        sleeper = self.client.enqueue("sleeper", key=f"sleeper-{self.checks}")
        self.left |= {handle.id: handle for handle in [*handles, sleeper]}
        for handle in [*self.choose.sample(handles, 3), sleeper]:
            if handle is not sleeper or self.checks % 2:
                handle.cancel()

    def kill(self) -> None:
        """Kill a process that has begun to work. The supervisor replaces other processes more and more slowly."""
        begun = {event.pid for event in self.stage.events("start")}
        working = [pid for pid in children(self.fleet.pid) if pid in begun]
        if working:
            os.kill(self.choose.choice(working), signal.SIGKILL)
            self.kills += 1

    def lose_host(self) -> None:
        for pid in [self.fleet.pid, *children(self.fleet.pid)]:
            os.kill(pid, signal.SIGKILL)
        self.fleet.wait(30)
        self.fleet = self.stage.fleet(3, concurrency=10)

    def killed(self, often: int) -> bool:
        self.check_for_findings()
        if len(self.left) < 200:
            self.enqueue()
        if self.checks % 4 == 0:
            self.kill()
        self._forget_ended()
        return self.kills >= often

    def all_ended(self) -> bool:
        self.check_for_findings()
        for handle in self.left.values():
            if self.checks % 10 == 0 and handle.view().kind == "sleeper":
                handle.cancel()
        self._forget_ended()
        return not self.left

    def _forget_ended(self) -> None:
        for id in [id for id, handle in self.left.items() if handle.view().status.ended]:
            del self.left[id]


@pytest.mark.matrix("more cases with real processes")
def test_doctor_finds_nothing_in_a_busy_namespace_with_killed_processes(
    stage: Stage, client: Client, clinic: DoctorConnection
) -> None:
    """Check again and again while enqueues, claims, saves, cancels, endings and recoveries are happening."""
    stage.coordinator()
    busy = BusyNamespace(stage, client, clinic)
    wait_until(lambda: busy.killed(4), "four processes to be killed while a doctor looks", timeout=60)
    busy.lose_host()
    wait_until(busy.all_ended, "all runs to end while a doctor looks", timeout=60)
    assert busy.checks >= 20
    assert clinic.examine().runs >= 200


# ---- the command -----------------------------------------------------------------------------------------------------------


def coordinator(stage: Stage, *words: str) -> tuple[int, str]:
    environment = stage.environment(role_of("coordinator", words))
    command = [str(Path(sys.executable).parent / "coordinator"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr == "", done.stderr
    return done.returncode, done.stdout


def test_doctor_command_reports_repairs_and_sets_the_exit_code(
    stage: Stage, client: Client, clinic: DoctorConnection
) -> None:
    handle = client.enqueue("k")
    keys, many = clinic.space.keys_of(handle.id), clinic.space.partitions
    partitions = f"{many} partition{'s' if many > 1 else ''}"
    code, said = coordinator(stage, "doctor")
    assert (code, said) == (0, f"namespace {stage.namespace}: examined 1 run in {partitions}, no problems\n")

    stage.place.admin.delete(keys.ready("default:k@0"))
    stage.place.admin.sadd(keys.live(), b"\xff")
    code, said = coordinator(stage, "doctor")
    assert code == 1
    assert f"run {handle.id} is queued, but not in its ready queue: it would wait forever\n" in said
    assert "2 problems: 'coordinator doctor --repair' repairs them" in said
    code, said = coordinator(stage, "doctor", "--json")
    report: dict[str, Any] = json.loads(said)
    assert (code, report["healthy"], report["found"], report["repaired"]) == (1, False, 2, 0)
    assert {finding["fault"] for finding in report["findings"]} == {"lineless", "runless"}

    code, said = coordinator(stage, "doctor", "--repair")
    assert code == 0, said
    assert "it would wait forever  (repaired)" in said
    assert said.endswith(f"examined 1 run in {partitions}, 2 problems, all repaired\n")
    assert coordinator(stage, "doctor")[0] == 0


@pytest.mark.matrix("commands, case by case")
def test_queue_is_paused_listed_and_resumed(stage: Stage, client: Client) -> None:
    handle = client.enqueue("add", {"left": 1, "right": 2}, queue="nightly")
    assert coordinator(stage, "pause", "--queue", "nightly") == (0, "queue nightly is paused\n")
    assert coordinator(stage, "pause", "--queue", "nightly") == (0, "queue nightly was already paused\n")
    assert "paused: queue nightly" in coordinator(stage, "status")[1]
    assert "queue 'nightly' is paused" in coordinator(stage, "show", handle.id)[1]
    code, said = coordinator(stage, "unpause", "--queue", "nightly", "--json")
    assert (code, json.loads(said)) == (0, {"queue": "nightly", "paused": False, "changed": True})
    assert coordinator(stage, "unpause", "--kind", "add") == (0, "kind add was not paused\n")


@pytest.mark.matrix("more cases with real processes")
def test_stuck_runs_are_listed_with_the_reason(stage: Stage, client: Client) -> None:
    unknown = client.enqueue("unheard-of", queue="nightly")
    overdue = client.enqueue("add", {"left": 1, "right": 1}, delay=60)
    client.enqueue("add", {"left": 1, "right": 1}, delay=60)
    keys = Namespace(stage.namespace, stage.place.partitions).keys_of(overdue.id)
    stage.place.admin.zadd(keys.delayed(), {overdue.id: 1})
    code, said = coordinator(stage, "runs", "--stuck", "--json")
    found = {row["id"]: row["why"] for row in json.loads(said)["runs"]}
    assert (code, set(found)) == (0, {unknown.id, overdue.id})
    assert found[unknown.id] == "no live worker handles kind 'unheard-of' in queue 'nightly'"
    assert found[overdue.id].endswith("and has not been enqueued: no coordinator is running")
    assert overdue.id not in coordinator(stage, "runs", "--stuck", "--kind", "unheard-of")[1]


@pytest.mark.matrix("more cases with real processes")
def test_ended_runs_are_discarded_by_filter(stage: Stage, client: Client) -> None:
    first, second = client.enqueue("k"), client.enqueue("other")
    first.cancel()
    second.cancel()
    assert first.id in coordinator(stage, "discard", "--kind", "k", "--dry-run")[1]
    assert coordinator(stage, "discard", "--kind", "k", "--yes") == (
        0,
        f"{first.id}  discarded; it had ended as cancelled\n",
    )
    assert [view.id for view in client.list(status="cancelled")] == [second.id]


@pytest.mark.matrix("more cases with real processes")
def test_worker_skips_a_paused_kind_and_claims_immediately_when_it_is_resumed(stage: Stage, client: Client) -> None:
    """Check that the worker claims immediately. There is no coordinator that would ring the bell."""
    client.pause(kind="add")
    stage.fleet()
    paused = client.enqueue("add", {"left": 1, "right": 2})
    other = client.enqueue("steps", {"total": 1})
    assert other.result(timeout=60) == 1
    assert paused.view().attempt == 0
    client.unpause(kind="add")
    assert paused.result(timeout=30) == 3


# ---- many runs ---------------------------------------------------------------------------------------------------------------


@pytest.mark.matrix("more cases with real processes")
def test_large_namespace_is_checked_and_repaired_without_blocking_the_server(
    start_server: StartServer, namespace: str
) -> None:
    server = start_server(settings={**FORGETFUL, "slowlog-log-slower-than": "0", "slowlog-max-len": "100000"})
    wire = Wire(address(server.url), timeout=30)
    try:
        space = drive(wire, namespace_plans.create(namespace, birth="b1", durability="none"))
        with Client(server.url, namespace) as client:
            client.enqueue_many(("k", {}) for _ in range(RUNS))
        keys, admin = space.keys(0), server.admin
        admin.execute_command("SLOWLOG", "RESET")
        assert drive(wire, examine(space)).found == 0
        admin.unlink(keys.ready("default:k@0"))
        report = drive(wire, examine(space, repair=True))
        assert (report.runs, report.found, report.repaired, report.healthy) == (RUNS, RUNS, RUNS, True)
        assert admin.zcard(keys.ready("default:k@0")) == RUNS
        durations = sorted(entry["duration"] for entry in admin.slowlog_get(100_000))
        # A busy machine sometimes pauses a server for longer than this, whatever the server does.
        assert durations[int(len(durations) * 0.99)] < SLOWEST_MS * 1000
    finally:
        wire.close()


@pytest.mark.matrix("more cases with real processes")
def test_check_for_existing_inputs_does_not_read_them(start_server: StartServer, namespace: str) -> None:
    """Check that the inputs are not copied in Lua.

    One script checks dozens of runs: copies of inputs of a megabyte each would block the server for 100 ms. A copy
    stays in the memory of the server's Lua until it is collected.
    """
    server = start_server(settings=FORGETFUL)
    wire = Wire(address(server.url), timeout=30)
    try:
        space = drive(wire, namespace_plans.create(namespace, birth="b1", durability="none"))
        with Client(server.url, namespace) as client:
            for _ in range(50):
                client.enqueue("k", {"large": "x" * 1_000_000})
        # A flush gives the server a fresh Lua state, without the copies that enqueue made.
        server.admin.execute_command("SCRIPT", "FLUSH", "SYNC")
        before = server.admin.info("memory")["used_memory_vm_eval"]
        assert drive(wire, examine(space)).found == 0
        assert server.admin.info("memory")["used_memory_vm_eval"] - before < 1_000_000
    finally:
        wire.close()
