"""The program of a worker process under a supervisor: `python -m workers.child`, its orders come on standard input."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import traceback
from dataclasses import replace
from typing import Any

from coordinator import logs
from coordinator.config import Settings
from coordinator.errors import CoordinatorError
from workers.handlers.registry import Registry
from workers.process.options import WorkerOptions
from workers.process.worker import Worker
from workers.program.code_version import code_version
from workers.program.registries import fast_runner, leave, load_all, settle
from workers.program.safe_stdout import speak_on

MOVES_EVERY = 1.0


def main() -> None:
    lifeline = own_lifeline()
    first, rest = _orders(lifeline)
    order = json.loads(first)
    os.set_inheritable(order["tells"], False)
    supervisor = Supervisor(lifeline, order["tells"], rest)
    speak_on()  # what a handler prints comes at once, also through a pipe, and to whom does not matter
    logs.configure(**order["logs"])
    options = order["options"]
    settings = Settings(**options.pop("settings"))
    options["queues"] = tuple(options["queues"])
    code = 1
    try:
        worker_options = WorkerOptions(settings=settings, **options)
        registry = load_all(order["places"])
        supervisor.tell(f"grace {max((handler.grace or 0.0 for handler in registry.handlers.values()), default=0.0)}")
        if not worker_options.code:
            worker_options = replace(worker_options, code=code_version(order["places"], registry))
        settle()
        code = fast_runner()(_work(registry, worker_options, supervisor))
    except CoordinatorError as error:
        supervisor.tell(f"fails {error}")
        sys.stderr.write(f"workers: {error}\n")
        code = 3
    except BaseException as error:  # noqa: BLE001  # whatever it is: an ordinary end would wait for the threads of plain handlers
        supervisor.tell(f"fails {type(error).__name__}: {error}")
        traceback.print_exc()
    leave(code)


class Supervisor:
    """The pipes to and from who started this process."""

    def __init__(self, lifeline: int, tells: int, heard: bytes) -> None:
        self._lifeline, self._tells, self._heard = lifeline, tells, heard

    def tell(self, sentence: str) -> None:
        """One line."""
        try:
            os.write(self._tells, " ".join(sentence.split())[:2000].encode() + b"\n")
        except BrokenPipeError:
            return  # it is gone: the lifeline says so too

    def tell_in_passing(self, sentence: str) -> None:
        """One line that nobody misses: left out where nobody reads, since a full pipe would hold up the whole process."""
        room = select.poll()
        room.register(self._tells, select.POLLOUT)
        if any(event & select.POLLOUT for _, event in room.poll(0)):
            self.tell(sentence)

    def listen(self, worker: Worker) -> None:
        """Does what it says from now on."""
        self._obey(worker)
        loop = asyncio.get_running_loop()

        def hear() -> None:
            part = os.read(self._lifeline, 1024)
            if not part:  # its end of the pipe is closed when it dies, however it dies
                loop.remove_reader(self._lifeline)
                worker.drain()
            self._heard += part
            self._obey(worker)

        loop.add_reader(self._lifeline, hear)

    def _obey(self, worker: Worker) -> None:
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            if line == b"hurry":
                worker.hurry()
            elif line in (b"outdated", b"current"):
                worker.outdated = line == b"outdated"


def own_lifeline() -> int:
    """Standard input, moved to where no process that a handler starts gets hold of it, and none reads from it."""
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return lifeline


def _orders(lifeline: int) -> tuple[bytes, bytes]:
    """The first line, and what came after it."""
    read = b""
    while b"\n" not in read:
        part = os.read(lifeline, 65536)
        if not part:
            leave(1)  # the supervisor died before it had said what to do
        read += part
    first, _, rest = read.partition(b"\n")
    return first, rest


async def _work(registry: Registry[Any], options: WorkerOptions, supervisor: Supervisor) -> int:
    tell = supervisor.tell
    worker = Worker(
        registry,
        options,
        announce=lambda partition, id: tell(f"joins {partition} {id}"),
        ask_to_be_replaced=lambda run: tell(f"replace {run}"),
    )
    worker.on_refused = lambda kind: tell(f"refuses {kind}")
    loop = asyncio.get_running_loop()
    # a second one is no haste: it may drain already, for another who asked, and two signals at once are one
    loop.add_signal_handler(signal.SIGTERM, worker.drain)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # a terminal's Ctrl-C: the supervisor says what to do
    supervisor.listen(worker)

    async def say_ready() -> None:
        await worker.ready.wait()
        tell("ready")

    async def say_that_it_moves() -> None:
        """From the event loop, so that a blocked one falls silent; the clock is one for the whole host."""
        while True:
            supervisor.tell_in_passing(f"moves {worker.moved_at():.3f}")
            await worker.clock.asleep(MOVES_EVERY)

    telling: list[asyncio.Task[Any]] = [asyncio.create_task(way()) for way in (say_ready, say_that_it_moves)]
    try:
        return await worker.run()
    finally:
        for task in telling:
            task.cancel()
        if worker.drained:  # also where it breaks afterwards: then no run is to blame
            tell("left" if worker.has_left else "unfinished")


if __name__ == "__main__":
    main()
