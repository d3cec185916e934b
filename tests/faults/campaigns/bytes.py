"""Cut the connection at every byte of a request and of its reply, for each script in a run's life.

The repeated call must take effect once.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coordinator.config import address
from coordinator.encoding.codec import decode, encode
from coordinator.model.run_id import id_from
from coordinator.store.keys import Keys, Namespace
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.transport.wire import Wire, drive
from tests.faults.lab.cutter import Cutter, Direction
from tests.faults.records import archive as records
from tests.servers import Kind, Server
from workers.handlers.checkpoint.messages import chunk

ROUTE = "default:agent@0"
STEPS = ("enqueue", "claim", "checkpoint", "release", "claim again", "complete")


class Life:
    """One run from its enqueue to its ending. Any step may be cut."""

    def __init__(self, wire: Wire, keys: Keys, number: int, worker: str) -> None:
        self.wire, self.keys, self.worker, self.number = wire, keys, worker, number
        self.id = id_from(round(time.time() * 1000), number, 0)
        self.token = ""
        self.message = encode({"turn": number}, "message")

    def step(self, name: str) -> str:
        """Execute a step, and return what was wrong with its answer, or an empty string."""
        match name:
            case "enqueue":
                spec = encode([{"topic": "t"}, {}, {}], "spec")
                new = client_plans.NewRun(self.id, ROUTE, spec)
                answer = drive(self.wire, client_plans.enqueue(Namespace(self.keys.at[1:].partition(":")[0]), [new]))
                return "" if answer == [("created", self.id)] else f"enqueue answered {answer}"
            case "claim" | "claim again":
                return self._claim(again=name == "claim again")
            case "checkpoint":
                delta = attempt_plans.Delta(1, 0, 1, 0, 1, chunk([self.message]), 1, 1, b"")
                word, progress = drive(self.wire, attempt_plans.checkpoint(self.keys, self.id, self.token, delta))
                return "" if (word, progress) == ("ok", 1) else f"checkpoint answered {word} {progress}"
            case "release":
                word = drive(self.wire, attempt_plans.release(self.keys, self.id, self.token, mode="stopping"))
                return "" if word == "ok" else f"release answered {word}"
            case _:
                word = drive(
                    self.wire, attempt_plans.complete(self.keys, self.id, self.token, encode("done", "result"))
                )
                return "" if word == "ok" else f"complete answered {word}"

    def _claim(self, *, again: bool) -> str:
        routes = [ROUTE, "default:agent@1"]
        number = 2 * self.number + again
        word, taken = drive(
            self.wire, worker_plans.claim(self.keys, self.worker, number=number, want=5, routes=routes, alone=False)
        )
        if word != "ok" or [one.id for one in taken] != [self.id]:
            return f"claim answered {word} {[one.id for one in taken]}"
        self.token = taken[0].token
        if not again:
            return ""
        _, chunks = taken[0].checkpoint
        return "" if chunks == [b"0", chunk([self.message])] else f"the checkpoint came back as {chunks}"

    def ended_well(self, admin: Any) -> str:
        fields = admin.hgetall(self.keys.run(self.id))
        counters = [int(number) for number in fields[b"counters"].split()]
        seen = (fields[b"status"], decode(fields[b"result"], "result"), counters[1], counters[3:7])
        return "" if seen == (b"completed", "done", 2, [1, 0, 0, 0]) else f"run {self.id} ended as {seen}"


def cuts(server: Server, every: int = 1) -> Iterator[tuple[str, str]]:
    """Yield each cut with its name and a sentence about what was wrong, or an empty string."""
    cutter = Cutter(server.port)
    wire = Wire(address(cutter.url), timeout=20)
    try:
        space = drive(wire, namespace_plans.create("bytes", birth="b"))
        keys, numbers = space.keys(0), iter(range(1, 10**6))
        worker = "wbytes"
        member = worker_plans.WorkerRecord(worker, 3_600_000, "h", 1, "1", "f", "c", 5, (ROUTE,))
        drive(wire, worker_plans.join(keys, "", member))
        _lengths(Life(wire, keys, next(numbers), worker), cutter, "")  # This loads the scripts on the server.
        for name in STEPS:
            for direction, length in _lengths(Life(wire, keys, next(numbers), worker), cutter, name).items():
                for after in range(0, length, every):
                    life = Life(wire, keys, next(numbers), worker)
                    yield f"{name} {direction} {after}", _cut_life(life, cutter, server, name, direction, after)
    finally:
        wire.close()
        cutter.close()


def _lengths(life: Life, cutter: Cutter, name: str) -> dict[Direction, int]:
    """Return the number of bytes that a step sends and receives."""
    found: dict[Direction, int] = {}
    for step in STEPS:
        before = dict(cutter.carried)
        wrong = life.step(step)
        assert not wrong, wrong
        if step == name:
            found = {
                "request": cutter.carried["request"] - before["request"],
                "reply": cutter.carried["reply"] - before["reply"],
            }
    return found


def _cut_life(life: Life, cutter: Cutter, server: Server, name: str, direction: Direction, after: int) -> str:
    for step in STEPS:
        if step == name:
            cutter.arm(direction, after)
        if wrong := life.step(step):
            return wrong
        if step == name and cutter.armed:
            return "nothing was cut"
    return life.ended_well(server.admin)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults bytes")
    parser.add_argument("--every", type=int, default=1, help="cut only at every n-th byte")
    parser.add_argument("--server", choices=["valkey", "redis"], default="valkey")
    parser.add_argument("--no-record", action="store_true")
    chosen = parser.parse_args(arguments)
    kind: Kind = chosen.server
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lab-") as place:
        server = Server(kind, Path(place))
        try:
            results = list(cuts(server, chosen.every))
        finally:
            server.close()
    wrong = [(what, why) for what, why in results if why]
    for what, why in wrong[:20]:
        print(f"{what}: {why}")
    print(f"bytes: {len(results)} cuts, {len(wrong)} wrong")
    if not chosen.no_record:
        seconds = round(time.monotonic() - begun, 1)
        verdict: records.Verdict = "failed" if wrong else "passed"
        counts = {"faults": len(results), "wrong": len(wrong)}
        records.keep(records.Record("bytes", 0, records.commit(), len(results), seconds, verdict, counts))
    return 1 if wrong else 0
