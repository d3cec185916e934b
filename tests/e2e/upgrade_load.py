"""The load of the upgrade tests: runs of every kind for client processes of both versions, and what must hold at the end.

The client of a version enqueues runs. The client of the other version sends their signals, grants their requests, cancels them and
reads their output, and both wait for their results. The handlers are in upgrade_app.py, the client processes in upgrade_client.py.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator import Client, RunView, Status
from tests.e2e.processes import Event, Stage, find_most_at_once
from tests.e2e.test_schedule_kills import fire_time
from tests.e2e.versions import Fleet
from tests.waiting import wait_until

VERSIONS = ("old", "new")
STEPS, PHASES, CHARGES, SIGNALS, NAPS, CHILDREN, TURNS, QUESTIONS, CALLS = 12, 6, 6, 6, 4, 4, 8, 6, 6
PLACES = 3  # calls under the limit at the same time
GROUP_PLACES = 2  # runs of a group at the same time, see upgrade_app.py
SOON, AT_LAST = 60, 240  # seconds, for calls that do not wait, and for the end of all runs
INPUTS: Mapping[str, dict[str, Any]] = {
    "steps": {"total": STEPS},
    "phases": {"count": PHASES},
    "charger": {"count": CHARGES},
    "listener": {"count": SIGNALS},
    "plain_listener": {"count": SIGNALS},
    "sleeper": {"count": NAPS},
    "parent": {"count": CHILDREN},
    "spawner": {},
    "teller": {"count": TURNS},
    "asker": {"count": QUESTIONS},
    "caller": {"count": CALLS},
    "flaky": {},
    "failing": {},
    "late": {},
    "endless": {},
    "held": {},
}
CUSTOMERS = ("acme", "bolt")
ENDINGS = {  # of the kinds that do not complete: the status, and the error that a client gets
    "failing": (Status.FAILED, "RunFailed"),
    "late": (Status.FAILED, "RunFailed"),
    "endless": (Status.CANCELLED, "RunCancelled"),
    "held": (Status.CANCELLED, "RunCancelled"),
}


class CallFailed(Exception):
    """A call of a client process failed. `name` is the name of the error."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name, self.message = name, message


class ClientProcess:
    """A process of a version with a client, which makes the calls of the test."""

    def __init__(self, fleet: Fleet, version: str) -> None:
        self.version = version
        self._process = fleet.start(version, "tests.e2e.upgrade_client", role="producer", pipes=True)
        self._calls: dict[int, Future[Any]] = {}
        self._ended = False
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, operation: str, **arguments: Any) -> Future[Any]:
        """Let the process make a call, and return the future of its value."""
        call: Future[Any] = Future()
        with self._lock:
            assert not self._ended, f"the {self.version} client has ended"
            number = len(self._calls)
            self._calls[number] = call
        line = {"number": number, "operation": operation, "arguments": arguments}
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
        return call

    def call(self, operation: str, **arguments: Any) -> Any:
        return self.ask(operation, **arguments).result(SOON)

    def close(self) -> None:
        """End the process. It must have answered all calls."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            assert process.wait(SOON) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            self._reader.join(SOON)
            process.stdout.close()

    def kill(self) -> None:
        """Kill the process. Its calls fail. Do nothing if it has ended."""
        self._process.kill()
        self._process.wait()
        self._reader.join(SOON)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            call = self._calls[answer["number"]]
            if "error" in answer:
                call.set_exception(CallFailed(answer["error"], answer["message"]))
            else:
                call.set_result(answer["value"])
        with self._lock:
            self._ended = True
        for call in self._calls.values():
            if not call.done():
                call.set_exception(CallFailed("Ended", f"the {self.version} client has ended"))


@dataclass
class MadeRun:
    """A run of the load, and the calls that wait for it."""

    id: str
    kind: str
    by: str  # the version of the client that enqueued it
    inputs: dict[str, Any]
    results: list[Future[Any]]
    readers: list[tuple[bool, Future[Any]]]  # whether the reader gets settled events only, and what it read
    signals: int = 0  # that were sent to it
    cancelled: bool = False

    def __repr__(self) -> str:
        return f"<{self.kind} {self.id} of the {self.by} client>"


class Load:
    """Runs of every kind. Use it as a context manager, so that the client processes end."""

    def __init__(self, stage: Stage, fleet: Fleet) -> None:
        self.stage, self.fleet = stage, fleet
        self.clients = {version: ClientProcess(fleet, version) for version in VERSIONS}
        self.runs: list[MadeRun] = []
        self.killed: dict[int, float] = {}  # when each killed worker process was killed
        self._rounds = 0

    def __enter__(self) -> Load:
        self.clients["old"].call("set_rate", name="api", rate="300/s", burst=30, at_once=PLACES)
        for version, client in self.clients.items():
            client.call("schedule", name=f"by-{version}", when="every 1s", kind="tick")
        return self

    def __exit__(self, *error: object) -> None:
        for client in self.clients.values():
            client.kill()

    # -- what the clients do

    def enqueue(self) -> list[MadeRun]:
        """Let the client of each version enqueue runs of all kinds, and let both wait for all of them. Return the runs."""
        self._rounds += 1
        self.cancel()
        fresh = [self._make(version, kind, dict(inputs)) for version in VERSIONS for kind, inputs in INPUTS.items()]
        fresh += [
            self._make(version, "grouped", {"customer": name}, group=name)
            for version in VERSIONS
            for name in CUSTOMERS
            for _ in range(2)
        ]
        fresh.append(self._make_once())
        for run in fresh:
            if run.kind == "asker":
                self._other(run).call("grant", run=run.id, requests=1000)
        self.runs += fresh
        return fresh

    def _make(self, version: str, kind: str, inputs: dict[str, Any], **options: Any) -> MadeRun:
        id, created = self.clients[version].call("enqueue", kind=kind, inputs=inputs, **options)
        assert created
        run = MadeRun(id, kind, version, inputs, [], [])
        run.results = [
            self.clients[version].ask("result_in_loop", run=id),
            self._other(run).ask("result", run=id),
        ]
        if kind == "teller":
            run.readers = [(True, self._other(run).ask("stream", run=id, settled=True))]
            run.readers += [(False, client.ask("stream", run=id, settled=False)) for client in self.clients.values()]
        return run

    def _make_once(self) -> MadeRun:
        """Let both clients enqueue a run with the same key: there is one run."""
        key, inputs = f"once-{self._rounds}", dict(INPUTS["steps"])
        first = VERSIONS[self._rounds % 2]
        run = self._make(first, "steps", inputs, key=key)
        again = self._other(run).call("enqueue", kind="steps", inputs=inputs, key=key)
        assert again == [run.id, False], "both versions know the key"
        return run

    def _other(self, run: MadeRun) -> ClientProcess:
        return self.clients["new" if run.by == "old" else "old"]

    def send_signals(self, count: int) -> None:
        """Send the next signals to each run that expects some. Both clients send each signal, with one key: it is stored once."""
        for run in self.runs:
            if run.kind not in ("listener", "plain_listener"):
                continue
            for number in range(run.signals, min(run.signals + count, SIGNALS)):
                topic = "word" if number % 2 else "other"
                stored = [
                    client.call("send", run=run.id, topic=topic, payload=number, key=f"signal-{number}")
                    for client in (self.clients[run.by], self._other(run))
                ]
                assert stored == [True, False], f"signal {number} of {run} is stored once"
                run.signals = number + 1

    def cancel(self) -> None:
        """Cancel the runs that do not end by themselves."""
        for run in self.runs:
            if run.kind in ("endless", "held") and not run.cancelled:
                assert self._other(run).call("cancel", run=run.id) in ("running", "cancelled"), f"{run} had ended"
                run.cancelled = True

    def look(self) -> None:
        """Let both clients read the namespace. They see the same settings, and no foreign run.

        A list is read in parts, so runs that change their status meanwhile may be missed. `_check_lists` sees all of them.
        """
        for client in self.clients.values():
            seen = client.call("look")
            assert seen["schedules"] == ["by-new", "by-old"]
            assert seen["rates"] == ["api"]
            assert seen["limits"] == ["grouped"]
            for kind in ("steps", "teller"):
                assert set(client.call("list_ids", kind=kind)) <= self._ids(kind)

    def _ids(self, kind: str) -> set[str]:
        return {run.id for run in self.runs if run.kind == kind}

    def has_begun(self, fresh: Sequence[MadeRun]) -> bool:
        """Return True when most handlers of these runs have begun."""
        mine = {run.id for run in fresh}
        return len({event.run for event in self.stage.events()} & mine) >= 0.7 * len(mine)

    def finish(self) -> None:
        """Let all runs end: send the last signals, and cancel the runs that do not end by themselves."""
        self.send_signals(SIGNALS)
        self.cancel()
        for version, client in self.clients.items():
            client.call("unschedule", name=f"by-{version}")
        for run in self.runs:
            for result in run.results:
                result.exception(AT_LAST)

    # -- what must hold

    def check(self, *, interrupted: bool) -> None:
        """Check the results and the journal, and end the client processes.

        Args:
            interrupted: True if processes were killed. Otherwise no step may be repeated.
        """
        with Client(self.stage.url, self.stage.namespace) as client:
            views = {run.id: client.handle(run.id).view() for run in self.runs}
            self._check_endings(views)
            self._check_steps(views, interrupted=interrupted)
            self._check_effects_and_budgets(views)
            self._check_output()
            self._check_limits(client)
            self._check_children(client, views)
            self._check_schedules(client)
        self._check_lists()
        for each in self.clients.values():
            each.close()
        for version in VERSIONS:
            self.fleet.command(version, "doctor")

    def _check_endings(self, views: Mapping[str, RunView]) -> None:
        for run in self.runs:
            status, error = ENDINGS.get(run.kind, (Status.COMPLETED, ""))
            assert views[run.id].status is status, f"{run} is {views[run.id].status}: {views[run.id].why}"
            answers = [self._answer(result) for result in run.results]
            for answer in answers:
                if error:
                    assert isinstance(answer, CallFailed), f"{run} answered {answer!r}"
                    assert answer.name == error, f"{run}: {answer}"
                else:
                    assert answer == self._expected(run), f"{run} answered {answer!r}"
            if run.kind == "failing":
                assert {"ValueError: as it should" in str(answer) for answer in answers} == {True}
            if run.kind == "late":
                assert {"DeadlineExceeded" in str(answer) for answer in answers} == {True}
            if status is Status.COMPLETED:
                # A kill may come between the save in a flaky run and its failure.
                failures = views[run.id].counters.failures
                assert failures <= (run.kind == "flaky"), f"{run} failed {failures} times"

    @staticmethod
    def _answer(result: Future[Any]) -> Any:
        return result.exception(SOON) or result.result(SOON)

    def _expected(self, run: MadeRun) -> Any:
        match run.kind:
            case "steps":
                return STEPS
            case "phases":
                return [number * number for number in range(PHASES)]
            case "charger":
                return [f"receipt of {run.id}/{number}" for number in range(CHARGES)]
            case "listener" | "plain_listener":
                return list(range(SIGNALS))
            case "parent":
                return 2 * sum(range(CHILDREN))
            case "teller":
                return self._told(run)
            case "spawner":
                return self._answer(run.results[0])  # _check_children examines the id
            case "grouped":
                return run.inputs["customer"]
            case "flaky":
                return "well"
            case _:
                return run.inputs["count"]

    def _told(self, run: MadeRun) -> Any:
        """Return the text of a teller: its words have the right numbers, and were really said."""
        text = self._answer(run.results[0])
        assert [word.partition("/")[2] for word in text] == [f"{turn}.{n}" for turn in range(TURNS) for n in range(3)]
        return text

    def _check_steps(self, views: Mapping[str, RunView], *, interrupted: bool) -> None:
        done: dict[tuple[str, str], list[int]] = defaultdict(list)
        for event in self.stage.events():
            done[event.run, event.what].append(event.number)
        for run in self.runs:
            counters = views[run.id].counters
            losses = counters.recoveries
            assert interrupted or (losses, counters.strikes) == (0, 0), f"{run} was lost: {counters}"
            for kind, what, count in (
                ("steps", "step", STEPS),
                ("phases", "phase", PHASES),
                ("sleeper", "slept", NAPS),
            ):
                if run.kind != kind:
                    continue
                numbers = done[run.id, what]
                assert sorted(set(numbers)) == list(range(count)), f"{run} did each {what}"
                # Each of these handlers begins its next step when the server has acknowledged the last one.
                assert len(numbers) - count <= losses, f"{run} repeated work: {numbers} after {losses} losses"

    def _check_effects_and_budgets(self, views: Mapping[str, RunView]) -> None:
        lines = Counter(Path(f"{self.stage.journal}.ledger").read_text().splitlines())
        charges = {f"{run.id}/{n}": 1 for run in self.runs if run.kind == "charger" for n in range(CHARGES)}
        assert lines == charges, "each effect took place once"
        asked = Counter(event.run for event in self.stage.events("asked"))
        for run in self.runs:
            if run.kind == "asker":
                spent = views[run.id].spent
                assert spent is not None
                assert spent.requests is not None
                # What a killed process had not saved is not counted. Nothing is counted twice.
                assert QUESTIONS <= spent.requests <= asked[run.id], (
                    f"{run} spent {spent}, and asked {asked[run.id]} times"
                )

    def _check_output(self) -> None:
        for run in self.runs:
            text = self._answer(run.results[0])
            for settled, reader in run.readers:
                read = self._answer(reader)
                assert not isinstance(read, Exception), f"a reader of {run}: {read}"
                assert read["text"] == text, f"a reader of {run} has another text"
                assert read["gaps"] == 0
                if settled:
                    assert read["rewinds"] == 0
                    assert read["numbers"] == list(range(1, len(text) + 1)), (
                        f"{run}: each settled event once and in order"
                    )
            if run.kind == "steps":
                for client in self.clients.values():
                    assert client.call("messages", run=run.id) == [{"turn": turn} for turn in range(STEPS)]

    def _check_limits(self, client: Client) -> None:
        wait_until(lambda: (client.rates()[0].held, client.rates()[0].waiting) == (0, 0), "no call is under way")
        events = self.stage.events()
        customers = {run.id: run.inputs["customer"] for run in self.runs if run.kind == "grouped"}
        for customer in CUSTOMERS:
            its = [event for event in events if customers.get(event.run) == customer]
            assert find_most_at_once(its, self.killed) <= GROUP_PLACES, f"runs of {customer} at the same time"
        calls = Counter(event.run for event in events if event.what == "hangs_up")
        assert all(calls[run.id] >= CALLS for run in self.runs if run.kind == "caller")
        assert 0 < self._most_calls(events) <= PLACES

    def _most_calls(self, events: Sequence[Event]) -> int:
        """Return the largest number of calls that were under way at the same time. A call ends with its process."""
        most, under_way = 0, dict[tuple[str, str], float]()  # until when, by run and attempt
        for event in sorted(events, key=lambda one: one.at):
            under_way = {call: until for call, until in under_way.items() if until > event.at}
            if event.what == "dials":
                under_way[event.run, event.token] = self.killed.get(event.pid, float("inf"))
            elif event.what == "hangs_up":
                under_way.pop((event.run, event.token), None)
            most = max(most, len(under_way))
        return most

    def _check_children(self, client: Client, views: Mapping[str, RunView]) -> None:
        ran = {event.run for event in self.stage.events("child")}
        parents = [run for run in self.runs if run.kind == "parent"]
        assert len(ran) == 2 * CHILDREN * len(parents), "each child was enqueued once"
        leaves = {event.run for event in self.stage.events("leaf")}
        spawned = {self._answer(run.results[0]): run.id for run in self.runs if run.kind == "spawner"}
        for id, spawner in spawned.items():
            wait_until(lambda: client.handle(id).view().status is Status.COMPLETED, f"run {id} completes")  # noqa: B023
            assert client.handle(id).view().parent == spawner
        assert leaves == set(spawned), "each run that a handler enqueued ran, and no other"

    def _check_schedules(self, client: Client) -> None:
        times: dict[str, list[int]] = defaultdict(list)
        for run in client.list(kind="tick", limit=10_000):
            wait_until(lambda: client.handle(run.id).view().ended, f"run {run.id} ends")  # noqa: B023
            times[str(run.meta["schedule"])].append(fire_time(run))
        assert sorted(times) == [f"by-{version}" for version in sorted(VERSIONS)]
        for name, found in times.items():
            found.sort()
            assert found == list(range(found[0], found[0] + len(found))), f"{name}: no second is left out or repeated"

    def _check_lists(self) -> None:
        for client in self.clients.values():
            for kind in (*INPUTS, "grouped"):
                listed = client.call("list_ids", kind=kind)
                assert sorted(listed) == sorted(self._ids(kind)), f"the {client.version} client lists each run once"

    def versions_at_work(self) -> dict[str, set[str]]:
        """Return the names of the folders of the versions that executed each run."""
        found = defaultdict(set)
        for event in self.stage.events():
            if event.what.startswith("begins_in_"):
                found[event.run].add(event.what.removeprefix("begins_in_"))
        return found
