"""Kill workers on both sides of the calls of run.once, and count the effects on a file and a service that dedupe nothing.

The service and the server of the runs are behind fault proxies. Beside each kill, the proxy of the service loses the reply of a
call, or holds it back until the kill, and the proxy of the server loses the reply of a script. No proxy delays a request: a call
that arrives after its process has died can't be found by any `check`, so only a system that recognises `run.effect_key` is safe
from it.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from coordinator import Client, Handle, RunFailed, Status
from tests.e2e.processes import Stage
from tests.faults.campaigns.runner import options
from tests.faults.records import archive as records
from tests.http_frames import HttpFrames, is_post
from tests.proxy import Fault, Proxy, naming
from tests.servers import DURABLE, Kind, Server
from tests.waiting import wait_until

KINDS = ("unchecked", "checked", "posted")
SIDES = ("before", "after")
CALLS = 20  # effects of one run
AT_WORK = 12  # runs that are open at a time


class Occurrence(NamedTuple):
    """An effect in a sink: the process that caused it, and when it took place."""

    process: int
    at: float


Occurrences = dict[str, list[Occurrence]]  # by the name of the effect


@dataclass
class Service:
    """A service that stores each call."""

    calls: Occurrences = field(default_factory=dict)
    storing: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def serve(self) -> Iterator[int]:
        """Serve in threads, and yield the port."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                name, _, process = self.path.removeprefix("/").partition("?")
                with service.storing:
                    service.calls.setdefault(name, []).append(Occurrence(int(process), time.time()))
                self.answer()

            def do_GET(self) -> None:
                if self.path.removeprefix("/") in service.calls:
                    self.answer()
                else:
                    self.send_error(404)

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
        places["DEATHS"] = str(self.directory / "deaths")
        return super().environment(role) | places


def carry_out(
    stage: EffectsStage, client: Client, service: Service, lines: Lines, kills: int, seconds: float = float("inf")
) -> Tally:
    """Kill workers on alternating sides of calls while runs make effects, let all runs end, and judge the effects."""
    tally, begun = Tally(), time.monotonic()
    coordinator = stage.coordinator()
    stage.fleet(processes=2, concurrency=AT_WORK, lease=5.0)
    handles = list[tuple[str, Handle[Any]]]()
    order, sink = stage.directory / "order", stage.directory / "sink"

    def calls_so_far() -> int:
        return len(service.calls) + (sink.read_text().count("\n") if sink.exists() else 0)

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


def read_sink(file: Path) -> Occurrences:
    """Return the effects in the file, by name."""
    found: Occurrences = {}
    for name, process, at in map(str.split, read_lines(file)):
        found.setdefault(name, []).append(Occurrence(int(process), float(at)))
    return found


def judge(
    stage: EffectsStage, client: Client, service: Service, handles: Sequence[tuple[str, Handle[Any]]], tally: Tally
) -> None:
    """Compare the sinks with the endings of the runs.

    A call that a process had sent when it was killed may arrive after its death, and after a `check` of the next attempt has not
    found it. No client can prevent this, and the guide says so. Calls that the service stored after the death of their process are
    counted apart.
    """
    counted = read_sink(stage.directory / "sink") | service.calls
    deaths = {int(process): float(at) for process, at in map(str.split, read_lines(stage.directory / "deaths"))}
    kinds = {handle.id: kind for kind, handle in handles}
    for name, occurrences in counted.items():
        kind = kinds[name.partition(".")[0]]
        on_time = [one for one in occurrences if kind != "posted" or one.at <= deaths.get(one.process, float("inf"))]
        tally.late += len(occurrences) - len(on_time)
        if len(on_time) > 1:
            tally.breaches.append(f"effect {name} ({kind}) happened {len(on_time)} times: {on_time}, deaths {deaths}")
    tally.effects = len(counted)
    for kind, handle in handles:
        missing = [number for number in range(CALLS) if f"{handle.id}.{number}" not in counted]
        if handle.view().status is Status.COMPLETED:
            tally.breaches += [f"effect {number} of run {handle.id} ({kind}) is missing" for number in missing]
            continue
        try:
            handle.result(timeout=10)
        except RunFailed as error:
            if kind == "unchecked" and error.type == "OutcomeUnknown":
                tally.unknown += 1
            else:
                tally.breaches.append(f"run {handle.id} ({kind}) ended with {error}")


def run_lab(directory: Path, kills: int, seconds: float = float("inf"), kind: Kind = "valkey") -> Tally:
    """Start a server, workers, the service and the proxies in a directory, and carry out the campaign."""
    home = directory / "server"
    home.mkdir()
    with ExitStack() as stack:
        server = Server(kind, home, dict(DURABLE))
        stack.callback(server.close)
        service = Service()
        to_service = stack.enter_context(closing(Proxy(stack.enter_context(service.serve()), HttpFrames)))
        to_server = stack.enter_context(closing(Proxy(server.port)))
        stage = EffectsStage(to_server.url, "effects", directory)
        stage.service = f"http://127.0.0.1:{to_service.port}"
        stack.callback(stage.close)
        client = stack.enter_context(Client(server.url, namespace="effects"))
        return carry_out(stage, client, service, Lines(to_service, to_server), kills, seconds)


def main(arguments: Sequence[str]) -> int:
    """Run the campaign from the command line, print the result, and keep the record."""
    chosen = options("effects", arguments, 100)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="effects-") as place:
        tally = run_lab(Path(place), chosen.count, chosen.seconds, chosen.server)
    seconds = round(time.monotonic() - begun, 1)
    for breach in tally.breaches[:20]:
        print(breach)
    counts = {
        "effects": tally.effects,
        "unknown": tally.unknown,
        "late": tally.late,
        **{f"fault killed {side} the call": count for side, count in sorted(tally.kills.items())},
        **{f"fault {name}": count for name, count in sorted(tally.faults.items())},
        **{f"ended {ending}": count for ending, count in sorted(tally.ended.items())},
    }
    print(f"{seconds} s, load {os.getloadavg()[0]:.0f}: {counts}")
    verdict: records.Verdict = "failed" if tally.breaches else "passed"
    print(f"effects: {'FAILED;' if tally.breaches else 'passed'}")
    if not chosen.no_record:
        record = records.Record("effects", chosen.seed, records.commit(), tally.kills.total(), seconds, verdict, counts)
        records.keep(record)
    return 1 if tally.breaches else 0
