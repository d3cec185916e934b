"""The observer of a lab's processes: writes their histories, and ends a process where an order says so.

It is put in place by tests/faults/site/sitecustomize.py, in every Python process that the lab starts and in what those start.
An order is a file `crash` in the lab's directory, as in "claim sent": the first process that comes there takes it, and is gone.
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
    """Which kind of process this is: worker, supervisor, coordinator, producer, operator, record_keeper."""
    words = " ".join([*sys.orig_argv, sys.argv[0]])
    marks = {name: f"tests.faults.programs.{name}" for name in ("producer", "operator", "record_keeper")}
    for name, mark in {"worker": "workers.program.child", **marks, "supervisor": "/workers"}.items():
        if mark in words:
            return name
    return "coordinator" if "/coordinator" in words else "other"


class Recorder:
    """Watches every exchange of its process."""

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
        """Ends this process, if there is an order for this point. A rename is done by one process only."""
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
        self._asked = [history.asked(packet) for packet in packets]
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
        """What no replica has confirmed, where that was waited for, is not acknowledged: nobody may count on it."""
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
                self._recorder.write(what="ok", call=call, each=each, answer=history.told(script, reply))
        there = [
            script for script, reply in zip(self._scripts, replies, strict=True) if not isinstance(reply, Exception)
        ]
        self._recorder.maybe_crash(there, "answered")  # not where it was only told that the script is unknown

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._done:
            for call in self._calls:
                self._recorder.write(what="unknown", call=call, answer=repr(error)[:200])


def install() -> None:
    """Watches this process, where it is one of a lab."""
    if DIRECTORY in os.environ:
        observer.install_observer(Recorder(Path(os.environ[DIRECTORY])))
