"""Kill workers on both sides of the calls of run.once, and count the effects on a file and a service that dedupe nothing.

The service and the server of the runs are behind fault proxies. Beside each kill, the proxy of the service loses the reply of a
call, or holds it back until the kill, and the proxy of the server loses the reply of a script. No proxy delays a request. Still, a
call can be on its way when its process is killed, and arrive after the `check` of the next attempt. No `check` can find such a
call, so only a system that recognises `run.effect_key` is safe from it. The service sees whether the sender of a call is dead, so
the record can prove for each such call that it was late.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from coordinator import Client, Handle, RunFailed, Status
from tests.e2e.processes import Stage
from tests.faults.campaigns.runner import options
from tests.faults.lab.process_identity import is_alive
from tests.faults.records import archive as records
from tests.http_frames import HttpFrames, is_post
from tests.proxy import Fault, Proxy, naming
from tests.servers import DURABLE, Kind, Server
from tests.waiting import wait_until

KINDS = ("unchecked", "checked", "posted")
SIDES = ("before", "after")
CALLS = 20  # effects of one run
AT_WORK = 12  # runs that are open at a time


class Event(NamedTuple):
    """What a sink has stored about an effect, or answered to a check.

    Attributes:
        what: `done` if the effect was stored, `absent` if a check did not find it.
        process: The process that made the call.
        at: When the sink stored or answered it.
        orphaned: Whether the process was dead when the sink stored its call.
        living: The workers that lived after a check had not found the effect.
    """

    what: str
    process: str
    at: float
    orphaned: bool = False
    living: frozenset[str] = frozenset()


Story = list[Event]  # the events of one effect, in the order of the sink


@dataclass
class Service:
    """A service that stores each call, and whether the process that sent it was dead.

    Args:
        processes: The folder in which each worker process creates a file with its name before it makes its first call.
    """

    processes: Path
    stories: dict[str, Story] = field(default_factory=dict)  # by the name of the effect
    storing: threading.Lock = field(default_factory=threading.Lock)
    _known: set[str] = field(default_factory=set)
    _living: set[str] = field(default_factory=set)

    def store(self, name: str, process: str) -> None:
        """Store a call."""
        with self.storing:
            orphaned = not is_alive(process)
            self.stories.setdefault(name, []).append(Event("done", process, time.time(), orphaned))

    def find(self, name: str, process: str) -> bool:
        """Return True if a call is stored."""
        with self.storing:
            story = self.stories.setdefault(name, [])
            if any(event.what == "done" for event in story):
                return True
            story.append(Event("absent", process, time.time(), living=self._look()))
            return False

    def _look(self) -> frozenset[str]:
        """Return the worker processes that live."""
        new = {file.name for file in self.processes.iterdir()} - self._known
        self._known |= new
        self._living = {process for process in self._living | new if is_alive(process)}
        return frozenset(self._living)

    @contextmanager
    def serve(self) -> Iterator[int]:
        """Serve in threads, and yield the port."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                service.store(*self.effect())
                self.answer()

            def do_GET(self) -> None:
                if service.find(*self.effect()):
                    self.answer()
                else:
                    self.send_error(404)

            def effect(self) -> tuple[str, str]:
                """Return the name of the effect and the process that calls."""
                name, _, process = self.path.removeprefix("/").partition("?")
                return name, process

            def answer(self) -> None:
                data = f"receipt {self.path}".encode()
                with suppress(ConnectionError):  # the caller was killed before it got the reply
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            server.server_close()


@dataclass
class Tally:
    """What became of all effects."""

    kills: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    effects: int = 0
    unknown: int = 0
    late: int = 0
    evidence: list[str] = field(default_factory=list)  # one for each late call that a check could not find
    breaches: list[str] = field(default_factory=list)


@dataclass
class Lines:
    """The proxies in front of the service and of the server, with the faults that are armed."""

    to_service: Proxy
    to_server: Proxy
    _armed: dict[str, Fault] = field(default_factory=dict)

    def arm(self, number: int) -> None:
        """Arm the faults beside a kill: alternately a lost and a held reply of the service, and a lost reply of the server."""
        if number % 2:
            self._armed["service's reply held"] = self.to_service.hold_next_reply(is_post)
        else:
            self._armed["service's reply lost"] = self.to_service.cut_next_reply(is_post)
        self._armed["server's reply lost"] = self.to_server.cut_next_reply(naming(b"EVALSHA"))

    def disarm(self, faults: Counter[str]) -> None:
        """Release held replies, call off faults that did not start, and count the others."""
        for name, fault in self._armed.items():
            fault.over.set()
            if not (self.to_service.call_off(fault) or self.to_server.call_off(fault)):
                faults[name] += 1
        self._armed.clear()


class EffectsStage(Stage):
    """A stage whose workers know where the order, the file and the service are."""

    app = "tests.faults.programs.effects_app:runs"
    service = ""

    def environment(self, role: str = "producer") -> dict[str, str]:
        places = {"ORDER": str(self.directory / "order"), "SINK": str(self.directory / "sink"), "SERVICE": self.service}
        places |= {"DEATHS": str(self.directory / "deaths"), "PROCESSES": str(self.directory / "processes")}
        return super().environment(role) | places


def carry_out(stage: EffectsStage, client: Client, service: Service, lines: Lines, kills: int, seconds: float) -> Tally:
    """Kill workers on alternating sides of calls while runs make effects, let all runs end, and judge the effects."""
    tally, begun = Tally(), time.monotonic()
    coordinator = stage.coordinator()
    stage.fleet(processes=2, concurrency=AT_WORK, lease=5.0)
    handles = list[tuple[str, Handle[Any]]]()
    order, sink = stage.directory / "order", stage.directory / "sink"

    def calls_so_far() -> int:
        return len(service.stories) + (sink.read_text().count("\n") if sink.exists() else 0)

    while tally.kills.total() < kills and time.monotonic() - begun < seconds:
        open_runs = [handle for _, handle in handles[-3 * AT_WORK :] if not handle.view().status.ended]
        while len(open_runs) < AT_WORK:
            kind = KINDS[len(handles) % len(KINDS)]
            handles.append((kind, client.enqueue(kind, {"count": CALLS})))
            open_runs.append(handles[-1][1])
        lines.arm(tally.kills.total())
        # A run that is killed three times without progress is set aside, so some effects take place between two kills.
        enough = calls_so_far() + 2 * AT_WORK
        wait_until(
            lambda: calls_so_far() >= enough or all(handle.view().status.ended for handle in open_runs),  # noqa: B023
            "effects between two kills",
            timeout=120,
        )
        side = SIDES[tally.kills.total() % 2]
        new = stage.directory / "order.new"
        new.write_text(side)
        new.rename(order)

        def taken_or_idle() -> bool:
            return not order.exists() or all(handle.view().status.ended for handle in open_runs)  # noqa: B023

        wait_until(taken_or_idle, "a process to carry out the order", timeout=120)
        lines.disarm(tally.faults)
        if not order.exists():
            tally.kills[side] += 1
    order.unlink(missing_ok=True)
    for kind, handle in handles:
        tally.ended[f"{kind} {handle.wait(120)}"] += 1
    judge(stage, client, service, handles, tally)
    coordinator.terminate()
    return tally


def read_lines(file: Path) -> list[str]:
    """Return the lines of a file; none if it does not exist."""
    return file.read_text().splitlines() if file.exists() else []


def read_sink(file: Path) -> dict[str, Story]:
    """Return the events of the effects in the file, by name."""
    found: dict[str, Story] = {}
    for what, name, process, at in map(str.split, read_lines(file)):
        found.setdefault(name, []).append(Event(what, process, float(at)))
    return found


def late_calls(story: Story) -> list[tuple[Event, Event]]:
    """Return the calls that no check could find, each with the answer that proves it.

    Such a call was sent by a process that was killed, and was stored after its death and after the check of another process: when
    this check was answered, the sender was dead already, and its call was not stored yet. So its bytes had left the sender before
    the check, and were on their way. No client can prevent this, and the guide says so.
    """
    found = list[tuple[Event, Event]]()
    for place, call in enumerate(story):
        if call.what == "done" and call.orphaned:
            proofs = (
                check
                for check in story[:place]
                if check.what == "absent" and check.process != call.process and call.process not in check.living
            )
            if proof := next(proofs, None):
                found.append((call, proof))
    return found


def judge(
    stage: EffectsStage, client: Client, service: Service, handles: Sequence[tuple[str, Handle[Any]]], tally: Tally
) -> None:
    """Compare the sinks with the endings of the runs. An effect that is stored twice needs a late call (see `late_calls`)."""
    stories = read_sink(stage.directory / "sink") | service.stories
    deaths = dict(map(str.split, read_lines(stage.directory / "deaths")))
    kinds = {handle.id: kind for kind, handle in handles}
    for name, story in stories.items():
        kind, calls = kinds[name.partition(".")[0]], [event for event in story if event.what == "done"]
        tally.late += sum(call.orphaned for call in calls)
        if len(calls) > 1:
            late = late_calls(story) if kind == "posted" else []
            tally.evidence += [_evidence(name, call, check, deaths) for call, check in late]
            if len(calls) - len(late) > 1:
                died = {call.process: deaths.get(call.process) for call in calls}
                tally.breaches.append(f"effect {name} ({kind}) happened {len(calls)} times: {story}, deaths {died}")
    counted = {name for name, story in stories.items() if any(event.what == "done" for event in story)}
    tally.effects = len(counted)
    for kind, handle in handles:
        _judge_ending(kind, handle, [number for number in range(CALLS) if f"{handle.id}.{number}" in counted], tally)


def _judge_ending(kind: str, handle: Handle[Any], made: Sequence[int], tally: Tally) -> None:
    """Compare the effects of a run with its ending."""
    if handle.view().status is Status.COMPLETED:
        missing = sorted(set(range(CALLS)) - set(made))
        tally.breaches += [f"effect {number} of run {handle.id} ({kind}) is missing" for number in missing]
        return
    try:
        handle.result(timeout=10)
    except RunFailed as error:
        if kind != "unchecked" or error.type != "OutcomeUnknown":
            tally.breaches.append(f"run {handle.id} ({kind}) ended with {error}")
            return
        tally.unknown += 1
        unknown = next(number for number in range(CALLS) if f"'call {number}'" in str(error))
        if [number for number in made if number != unknown] != list(range(unknown)):
            tally.breaches.append(f"run {handle.id} does not know the outcome of effect {unknown}, and made {made}")


def _evidence(name: str, call: Event, check: Event, deaths: Mapping[str, str]) -> str:
    """Return one line that shows that a call was late: the times of the kill, of the check and of its arrival."""
    killed = float(deaths.get(call.process, "nan"))
    return (
        f"{name}: process {call.process} was killed at {killed:.6f}; the check of process {check.process} was answered "
        f"{check.at - killed:.6f} s later, when the killed process was dead; the call was stored {call.at - killed:.6f} s after "
        "the kill"
    )


@dataclass(frozen=True)
class Lab:
    """A server, the service and the proxies in front of both, for a stage whose processes are not started yet."""

    stage: EffectsStage
    client: Client
    service: Service
    lines: Lines


@contextmanager
def open_lab(directory: Path, kind: Kind = "valkey") -> Iterator[Lab]:
    """Start a server, the service and the proxies in a directory. Stop them, and all processes of the stage, at the end."""
    home = directory / "server"
    home.mkdir()
    with ExitStack() as stack:
        server = Server(kind, home, dict(DURABLE))
        stack.callback(server.close)
        (directory / "processes").mkdir()
        service = Service(directory / "processes")
        to_service = stack.enter_context(closing(Proxy(stack.enter_context(service.serve()), HttpFrames)))
        to_server = stack.enter_context(closing(Proxy(server.port)))
        stage = EffectsStage(to_server.url, "effects", directory)
        stage.service = f"http://127.0.0.1:{to_service.port}"
        stack.callback(stage.close)
        client = stack.enter_context(Client(server.url, namespace="effects"))
        yield Lab(stage, client, service, Lines(to_service, to_server))


def run_lab(directory: Path, kills: int, seconds: float = float("inf"), kind: Kind = "valkey") -> Tally:
    """Carry out the campaign in a directory."""
    with open_lab(directory, kind) as lab:
        return carry_out(lab.stage, lab.client, lab.service, lab.lines, kills, seconds)


def main(arguments: Sequence[str]) -> int:
    """Run the campaign from the command line, print the result, and keep the record."""
    chosen = options("effects", arguments, 100)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="effects-") as place:
        tally = run_lab(Path(place), chosen.count, chosen.seconds, chosen.server)
    seconds = round(time.monotonic() - begun, 1)
    for line in (*tally.breaches[:20], *tally.evidence):
        print(line)
    counts = {
        "effects": tally.effects,
        "unknown": tally.unknown,
        "late": tally.late,
        "late after a check": len(tally.evidence),
        **{f"fault killed {side} the call": count for side, count in sorted(tally.kills.items())},
        **{f"fault {name}": count for name, count in sorted(tally.faults.items())},
        **{f"ended {ending}": count for ending, count in sorted(tally.ended.items())},
    }
    print(f"{seconds} s, load {os.getloadavg()[0]:.0f}: {counts}")
    verdict: records.Verdict = "failed" if tally.breaches else "passed"
    print(f"effects: {'FAILED;' if tally.breaches else 'passed'}")
    if not chosen.no_record:
        kills, commit = tally.kills.total(), records.commit()
        records.keep(records.Record("effects", chosen.seed, commit, kills, seconds, verdict, counts, tally.evidence))
    return 1 if tally.breaches else 0
