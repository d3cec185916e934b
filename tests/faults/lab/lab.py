"""A lab: a server, and fleets, coordinators and producers as real processes that write their histories.

A lab may also have users and operators (programs that use every feature; operators also pause, cancel and damage) and a
record keeper (a program with checkpoints of its own). A campaign that breaks something calls `tend`, which restarts missing
processes as an administrator would. `settle` ends the faults, waits until all runs have ended, and stops all processes in order.
`evidence` then returns what the judge needs.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import redis

from coordinator import Client, Ended, Handle, NotFound, Status
from coordinator.config import Settings
from coordinator.doctor.examiner import examine
from coordinator.encoding.codec import decode
from coordinator.encoding.spec import join_spec, read_spec
from coordinator.model.names import parse_route
from coordinator.model.output import Event as Output
from coordinator.model.output import Folder
from coordinator.model.policies.budget import sum_spend
from coordinator.model.run import Counters
from coordinator.store.keys import Keys
from coordinator.store.server_checks import enter
from coordinator.store.transport.wire import Wire, drive
from tests.e2e.processes import ROOT, Stage, children
from tests.faults.judge import history
from tests.faults.judge.evidence import ENDED, Evidence, Final, FinalRun
from tests.faults.lab.observer import DIRECTORY
from tests.faults.programs import app
from tests.faults.programs.operator import unexpected
from tests.proxy import Proxy, SlowLine
from tests.servers import Server
from tests.waiting import wait_until

LOST_SECONDS = 15.0  # seconds after which a stopped host is killed: longer than its leases and a pause of recovery
PATIENCE = 120.0  # seconds after the last fault within which all runs must end
_FOR_GOOD = (
    "namespace",
    "watch",
    "coordinators",
    "limits",
    "rates",
    "routes",
    "ended",
    "paused",
    "schedules",
    "parents",
)


@dataclass(frozen=True)
class Plan:
    """The size of a lab."""

    fleets: int = 2
    processes: int = 1
    coordinators: int = 1
    users: int = 0
    operators: int = 0
    record_keepers: int = 0
    concurrency: int = 8
    under_way: int = 14
    lease: float = 2.0
    grace: float = 3.0
    most: int = 1_000_000

    @property
    def uses_features(self) -> bool:
        """Return True if the lab has programs that use signals, children, limits and schedules."""
        return bool(self.users or self.operators)


class Store(Protocol):
    """The server, or the group of servers, that stores a lab's runs. `admin` connects to the current master."""

    @property
    def url(self) -> str: ...

    @property
    def admin(self) -> redis.Redis: ...

    def close(self) -> None: ...


class Lab(Stage):
    """The stage of a campaign. Its processes get the address of the server, or of a proxy in front of it."""

    app = "tests.faults.programs.app:runs"

    def __init__(
        self, store: Store, directory: Path, plan: Plan, seed: int, proxy: Proxy | SlowLine | None = None
    ) -> None:
        super().__init__((proxy or store).url, f"lab{uuid.uuid4().hex[:8]}", directory)
        self.line = proxy
        self.store, self.plan, self.choose = store, plan, random.Random(seed)
        self.fleets: list[subprocess.Popen[bytes]] = []
        self.coordinators: list[subprocess.Popen[bytes]] = []
        self.producers: list[subprocess.Popen[bytes]] = []
        self.lost: list[tuple[float, subprocess.Popen[bytes], list[int]]] = []
        self.users: list[subprocess.Popen[bytes]] = []
        self.operators: list[subprocess.Popen[bytes]] = []
        self.record_keepers: list[subprocess.Popen[bytes]] = []
        self.keys = Keys(self.namespace, 0)
        self.excused: set[str] = set()
        self.given_up: set[str] = set()  # runs that the lab cancelled after the last fault
        self.unexpected: list[str] = []  # findings of doctors while the lab was busy
        self.deck: deque[Any] = deque()  # the faults that a campaign still has to inject
        self._read = 0
        self.at_work: dict[int, int] = {}

    @property
    def server(self) -> Server:
        """The one server of this lab."""
        assert isinstance(self.store, Server)
        return self.store

    def environment(self, role: str = "producer") -> dict[str, str]:
        site = ROOT / "tests" / "faults" / "lab" / "site"
        return super().environment(role) | {DIRECTORY: str(self.directory), "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}

    @property
    def proxy(self) -> Proxy | None:
        """The proxy that can lose and delay single calls, if the lab has one."""
        return self.line if isinstance(self.line, Proxy) else None

    # -- its processes

    def tend(self, *, producing: bool = True) -> None:
        """Start the processes that are missing."""
        self._kill_lost(LOST_SECONDS)
        for kept, wanted, start in (
            (self.coordinators, self.plan.coordinators, self.coordinator),
            (self.fleets, self.plan.fleets, self._fleet),
            (self.producers, int(producing), self._producer),
            (self.users, self.plan.users * producing, lambda: self._seeded("user")),
            (self.operators, self.plan.operators * producing, lambda: self._seeded("operator")),
            (self.record_keepers, self.plan.record_keepers * producing, lambda: self._seeded("record_keeper")),
        ):
            kept[:] = [process for process in kept if process.poll() is None]
            while len(kept) < wanted:
                kept.append(start())

    def lose(self, fleet: subprocess.Popen[bytes]) -> None:
        """Simulate a lost host: stop a supervisor and its processes with SIGSTOP.

        If they were killed instead, another supervisor on this machine would notice it, and no coordinator would wait
        for their leases.
        """
        pids = [fleet.pid, *children(fleet.pid)]
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        self.fleets.remove(fleet)
        self.lost.append((time.monotonic(), fleet, pids))

    def _kill_lost(self, seconds: float) -> None:
        """Kill the hosts that were lost at least this many seconds ago."""
        while self.lost and time.monotonic() - self.lost[0][0] >= seconds:
            _, fleet, pids = self.lost.pop(0)
            for pid in pids:
                _signal(pid, signal.SIGKILL)
            fleet.wait()

    def _fleet(self) -> subprocess.Popen[bytes]:
        plan = self.plan
        return self.fleet(plan.processes, lease=plan.lease, concurrency=plan.concurrency, grace=plan.grace)

    def _producer(self) -> subprocess.Popen[bytes]:
        return self._seeded("producer", self.plan.under_way, self.plan.most)

    def _seeded(self, module: str, *words: int) -> subprocess.Popen[bytes]:
        seed = self.choose.randrange(10**9)
        return self._start("python", "-m", f"tests.faults.programs.{module}", *map(str, (seed, *words)))

    def ask(self, action: str) -> None:
        """Request an action of the operator, unless another one is already requested."""
        if not (wanted := self.directory / "wanted").exists():
            new = self.directory / "wanted.new"
            new.write_text(action)
            new.rename(wanted)

    def workers(self, *, at_work: bool) -> list[int]:
        """Return the pids of the worker processes; with `at_work`, only of those that have done a step."""
        self._look()
        there = [child for fleet in self.fleets for child in children(fleet.pid)]
        return [pid for pid in there if not at_work or self.at_work.get(pid)]

    def steps_so_far(self) -> int:
        self._look()
        return sum(self.at_work.values())

    def _look(self) -> None:
        """Read the new lines of the journal."""
        with self.journal.open("rb") as lines:
            lines.seek(self._read)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                _, pid, _, _, what, _ = line.split()
                if what == b"step":
                    self.at_work[int(pid)] = self.at_work.get(int(pid), 0) + 1

    def work_on(self, steps: int) -> None:
        """Wait until this many further steps are done, so that the next fault comes at a moment of work and not of a clock."""
        begun = self.steps_so_far()
        wait_until(lambda: self._moved_on(begun + steps), f"{steps} steps more are done", timeout=PATIENCE)

    def _moved_on(self, wanted: int) -> bool:
        self.tend()
        return self.steps_so_far() >= wanted

    def owned_by(self, pid: int) -> int:
        """Return the number of runs that a worker process owns, according to the server."""
        admin, held = self.store.admin, 0
        for key in admin.scan_iter(f"{self.keys.at}:owned:*", count=1000):
            worker = key.decode().rpartition(":")[2]
            if admin.hget(self.keys.worker(worker), "pid") == str(pid).encode():
                held += admin.scard(key)
        return held

    # -- the end

    def settle(self) -> None:
        """End the faults: restart all processes, wait until all runs have ended, and stop everything."""
        self.tend()
        self._kill_lost(0)
        programs = (*self.producers, *self.users, *self.operators, *self.record_keepers)
        for process in programs:
            process.terminate()
        for process in programs:
            process.wait(60)
        if self.plan.operators:
            self._repair_damage()
        with contextlib.suppress(AssertionError):  # The judge then names the runs.
            wait_until(self._idle, "all runs have ended", timeout=PATIENCE)
        for fleet in self.fleets:
            fleet.terminate()
        for fleet in self.fleets:
            fleet.wait(90)
        with contextlib.suppress(AssertionError):  # The judge then reports a leak.
            gone = self.keys.workers()
            wait_until(lambda: not self.store.admin.exists(gone), "no worker has a lease", timeout=30)
        for coordinator in self.coordinators:
            coordinator.terminate()
            coordinator.wait(30)

    def _repair_damage(self) -> None:
        """Repair what the operator has damaged, as the operator would."""
        settings = Settings(self.store.url, self.namespace)
        wire = Wire(settings.address)
        try:
            space = drive(wire, enter(settings))
            self.unexpected += unexpected(self.directory, drive(wire, examine(space, repair=True)).findings)
        finally:
            wire.close()

    def _resume(self) -> None:
        """Unpause everything, remove all schedules, answer the runs that wait, and cancel the runs that cannot start.

        This is repeated while the lab waits, because a late request may pause or schedule something again.
        """
        admin: Any = self.store.admin
        paused = [name.decode() for name in admin.smembers(self.keys.paused())]
        known = [name.decode() for name in admin.zrange(self.keys.schedules(), 0, -1)]
        there = [name for name in known if admin.hget(self.keys.schedule(name), "state") != b"removed"]
        unfit = [id for id in admin.zrange(self.keys.delayed(), 0, -1) if b":fitting@" in self._route(id)]
        waiting = [id.decode() for id in admin.zrange(self.keys.waiting(), 0, -1) if b":asking@" in self._route(id)]
        if not paused and not there and not unfit and not waiting:
            return
        with Client(self.store.url, self.namespace) as client:
            for view in client.list(status=Status.DELAYED, kind="fitting", limit=1000):
                if "unknown" in view.inputs:
                    self.given_up.add(view.id)
                    client.handle(view.id).cancel(grace=5)
            for id in waiting:
                with contextlib.suppress(Ended, NotFound):
                    self._answer(client.handle(id))
            for kind in paused:
                client.unpause(kind=kind.removeprefix("kind:"))
            for name in there:
                with contextlib.suppress(NotFound):
                    client.unschedule(name)

    def _answer(self, handle: Handle[Any]) -> None:
        """Send a waiting run all its signals, as the operator would have done."""
        turns = handle.view().inputs["turns"]
        app.answer_all(lambda topic, payload, key: handle.send(topic, payload, key=key), turns)

    def _route(self, id: bytes) -> bytes:
        return cast("Any", self.store.admin).hget(self.keys.run(id.decode()), "route") or b""

    def _idle(self) -> bool:
        self.tend(producing=False)
        if self.plan.uses_features:
            self._resume()
        # Look before and after: a run that is claimed between two looks would otherwise be seen in neither place.
        return not self._under_way() and not self._waiting() and not self._under_way()

    def _under_way(self) -> bool:
        return bool(self.store.admin.exists(self.keys.live(), self.keys.delayed()))

    def _waiting(self) -> bool:
        lines = (self.store.admin.scan_iter(f"{self.keys.at}:{family}:*") for family in ("ready", "suspect"))
        return any(True for line in lines for _ in line)

    def evidence(self) -> Evidence:
        events = [event for event in self.events() if event.run not in self.excused]
        return Evidence(history.read(self.directory), events, self.final(), frozenset(self.excused))

    def final(self) -> Final:
        settings = Settings(self.store.url, self.namespace)
        wire = Wire(settings.address)
        try:
            report = drive(wire, examine(drive(wire, enter(settings))))
        finally:
            wire.close()
        runs = dict(self._runs())
        told = self.directory / "findings"
        found = [*self.unexpected, *(told.read_text().splitlines() if told.exists() else ())]
        found += [finding.sentence for finding in report.findings]
        return Final(runs, found, [*self._leaks(runs), *self._record_leaks()], dict(self._records()))

    def _records(self) -> Iterator[tuple[str, int]]:
        """Return the stored records with the number of their save."""
        prefix = f"{self.keys.at}:record:".encode()
        for key in self.store.admin.scan_iter(prefix + b"*", count=1000):
            if head := self.store.admin.hget(key, "head"):
                yield key[len(prefix) :].decode(errors="replace"), int(head.split()[0])

    def _record_leaks(self) -> Iterator[str]:
        """Return the records that are listed but not stored."""
        there, admin = dict(self._records()), cast("Any", self.store.admin)
        for member in admin.zrange(self.keys.records(), 0, -1):
            if member.decode() not in there:
                yield f"records, with {member.decode()}"

    def _runs(self) -> Iterator[tuple[str, FinalRun]]:
        admin = self.store.admin
        prefix = f"{self.keys.at}:run:".encode()
        for key in admin.scan_iter(prefix + b"*", count=1000):
            id = key[len(prefix) :].decode(errors="replace")
            # The run is gone if its retention ended between the two commands.
            if id not in self.excused and (fields := admin.hgetall(key)):
                run = replace(final_run(fields), events=self._settled_events(id))
                given_up = self.given_up if run.status == "cancelled" else ()
                yield id, replace(run, expected_status=run.status) if id in given_up else run

    def _settled_events(self, id: str) -> list[Any] | None:
        """Return what a reader of settled events gets; None if the run has no output any more."""
        entries: Any = self.store.admin.xrange(self.keys.output(id))
        folder = Folder(settled=True)
        items = folder.fold([(entry, [part for pair in fields.items() for part in pair]) for entry, fields in entries])
        return [item.value if isinstance(item, Output) else repr(item) for item in items] if entries else None

    def _leaks(self, runs: dict[str, FinalRun]) -> Iterator[str]:
        """Return keys that should be gone.

        These are keys without a TTL that do not belong to the namespace itself, and checkpoints of completed runs.
        """
        admin = self.store.admin
        for key in admin.scan_iter(f"{self.keys.at}:*", count=1000):
            name = key.decode(errors="replace").removeprefix(f"{self.keys.at}:")
            family, _, rest = name.partition(":")
            if (id := rest.partition(":")[0]) in self.excused or (self.excused and family == "aside"):
                continue
            if family == "schedule" and admin.hget(key, "state") == b"removed":
                continue  # A removed schedule leaves a mark for ten minutes.
            run = runs.get(id)
            completed = run is not None and run.status == "completed"
            over = run is None or run.status in ENDED
            if (completed and family in ("ckpt", "messages")) or (
                over and family not in _FOR_GOOD and admin.ttl(key) == -1
            ):
                yield name

    def note(self, fault: str) -> None:
        """Write down a fault and its time."""
        with (self.directory / "faults").open("a") as lines:
            lines.write(f"{fault}\n")

    def keep(self, target: Path, servers: Path) -> None:
        """Copy everything that helps to analyse a breach, with the logs of the servers."""
        target.mkdir(parents=True, exist_ok=True)
        for path in self.directory.iterdir():
            if path.is_file():
                (target / path.name).write_bytes(path.read_bytes())
        for log in servers.rglob("log"):
            name = "-".join(log.relative_to(servers.parent).parts[:-1])
            (target / f"{name}.log").write_bytes(log.read_bytes())

    def close(self) -> None:
        self._kill_lost(0)
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
        super().close()


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def final_run(fields: Any) -> FinalRun:
    """Return a run as it is stored, with its expected result."""
    _, kind, _ = parse_route(fields[b"route"].decode())
    status, counters = fields[b"status"].decode(), Counters.parse(fields[b"counters"].decode())
    last = fields.get(b"last", b"").decode()
    spec = join_spec({name.decode(): value for name, value in fields.items()})
    if spec is None:
        return FinalRun(status, counters, last, bare=True)
    inputs, result = read_spec(spec)[0], fields.get(b"result")
    ending = {"failing": "failed", "overdue": "failed"}.get(kind, "completed")
    return FinalRun(
        status,
        counters,
        last,
        result=decode(result, "result") if result else None,
        expected=app.expected_result(kind, inputs["topic"], inputs["turns"]),
        expected_status="dead" if "unknown" in inputs else ending,
        may_fail=kind in ("charging", "spending"),
        expected_events=range(inputs["turns"]) if kind == "agent" else (),
        effects=inputs["turns"] if kind == "charging" else 0,
        budget=app.BUDGET if kind == "spending" else 0,
        spent=sum_spend(fields.get(b"spend", b"").decode()).requests,
    )
