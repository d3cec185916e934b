"""Observe a lab's processes: write their histories, and kill a process where an order says so.

tests/faults/lab/site/sitecustomize.py installs the observer in every Python process that the lab starts, and in the
processes that these start. An order is a file `crash` in the lab's directory with a text such as "claim sent". The
first process that reaches this point takes the order and kills itself.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from coordinator.store.transport import observer
from coordinator.store.transport.packets import Packet
from tests.faults.judge import history

DIRECTORY = "LAB_DIRECTORY"
POINTS = ("before", "sent", "answered")


def role() -> str:
    """Return the kind of this process: worker, supervisor, coordinator, producer, operator or record_keeper."""
    words = " ".join([*sys.orig_argv, sys.argv[0]])
    marks = {name: f"tests.faults.programs.{name}" for name in ("producer", "operator", "record_keeper")}
    for name, mark in {"worker": "workers.program.child", **marks, "supervisor": "/workers"}.items():
        if mark in words:
            return name
    return "coordinator" if "/coordinator" in words else "other"


class Recorder:
    """The observer of one process."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.role, self._calls = directory, role(), itertools.count()
        path = directory / f"history-{os.getpid()}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)

    def __call__(self, packets: Sequence[Packet]) -> observer.ObservedExchange:
        return Exchange(self, packets)

    def next_call(self) -> int:
        return next(self._calls)

    def write(self, **fields: Any) -> None:
        line = {"time": time.monotonic_ns(), "pid": os.getpid(), "role": self.role, **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def maybe_crash(self, scripts: Sequence[str], point: str) -> None:
        """Kill this process if there is an order for this point. A rename ensures that only one process takes the order."""
        order = self.directory / "crash"
        with contextlib.suppress(OSError):
            script, where = order.read_text().split()[:2]
            if where == point and script in scripts:
                order.rename(self.directory / f"crashed-{os.getpid()}")
                os.kill(os.getpid(), signal.SIGKILL)


class Exchange:
    """One exchange: some packets and their replies."""

    def __init__(self, recorder: Recorder, packets: Sequence[Packet]) -> None:
        self._recorder, self._packets = recorder, packets
        self._asked = [history.describe_request(packet) for packet in packets]
        self._scripts = [asked["script"] for asked in self._asked]
        self._calls = [recorder.next_call() for _ in packets]
        self._done = False

    def __enter__(self) -> observer.ObservedExchange:
        for call, asked in zip(self._calls, self._asked, strict=True):
            self._recorder.write(what="invoke", call=call, **asked)
        self._recorder.maybe_crash(self._scripts, "before")
        return self

    def sent(self) -> None:
        self._recorder.maybe_crash(self._scripts, "sent")

    def answered(self, replies: Sequence[Any]) -> None:
        """Record the replies. A write that had to be confirmed by a replica, and was not, counts as unknown."""
        self._done = True
        replies, more = replies[: len(self._packets)], replies[len(self._packets) :]
        confirmed = not more or (isinstance(more[-1], int) and more[-1] >= 1)
        for call, script, packet, reply in zip(self._calls, self._scripts, self._packets, replies, strict=True):
            if isinstance(reply, Exception):
                self._recorder.write(what="fail", call=call, answer=f"{type(reply).__name__}: {reply}")
            elif not confirmed:
                self._recorder.write(what="unknown", call=call, answer=f"replicas: {more[-1]!r}")
            else:
                each = bool(packet.items) and isinstance(reply, list) and packet.request.script.merges  # type: ignore[union-attr]
                self._recorder.write(what="ok", call=call, each=each, answer=history.reply_as_json(script, reply))
        there = [
            script for script, reply in zip(self._scripts, replies, strict=True) if not isinstance(reply, Exception)
        ]
        self._recorder.maybe_crash(there, "answered")  # A reply NOSCRIPT does not count.

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._done:
            for call in self._calls:
                self._recorder.write(what="unknown", call=call, answer=repr(error)[:200])


def install() -> None:
    """Observe this process if it belongs to a lab."""
    if DIRECTORY in os.environ:
        observer.install_observer(Recorder(Path(os.environ[DIRECTORY])))
