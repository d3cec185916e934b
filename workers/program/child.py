"""The program of a worker process under a supervisor: `python -m workers.program.child`.

The process reads its options from standard input. The supervisor's side of the two pipes is `workers/supervisor/child_process.py`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import sys
import traceback
from dataclasses import replace
from typing import Any

from coordinator import logs
from coordinator.config import Settings, set_process_settings
from coordinator.errors import CoordinatorError
from coordinator.metrics import otel
from coordinator.store.transport.connections.open_files import identify_file
from workers.handlers.registry import Registry
from workers.metrics.worker_metrics import WorkerMetrics
from workers.process.options import WorkerOptions
from workers.process.worker import Worker
from workers.program.code_version import code_version
from workers.program.process_exit import EXIT_SECONDS, HURRIED_EXIT_SECONDS, exit_process
from workers.program.registries import fast_runner, load_all, tune_garbage_collector
from workers.program.safe_stdout import install_safe_output
from workers.program.stray_signals import StraySignals, restore_signals_in_forked_processes

logger = logging.getLogger(__name__)
HEARTBEAT_REPORT_SECONDS = 1.0
PIPE_CHECK_SECONDS = 1.0


def main() -> None:
    """Run a worker with the options on standard input, call the exit functions of the program, and end the process."""
    lifeline = take_lifeline()
    first, rest = _read_order(lifeline)
    order = json.loads(first)
    os.set_inheritable(order["reports"], False)
    supervisor = SupervisorPipes(lifeline, order["reports"], rest)
    install_safe_output()
    logs.configure(**order["logs"])
    options = order["options"]
    settings = Settings(**options.pop("settings"))
    options["queues"] = tuple(options["queues"])
    code = 1
    try:
        worker_options = WorkerOptions(settings=settings, **options)
        set_process_settings(settings)  # before the import of the handlers: their modules may create clients
        registry = load_all(order["registries"])
        grace = max((handler.grace or 0.0 for handler in registry.handlers.values()), default=0.0)
        supervisor.report(f"grace {grace}")
        if not worker_options.code:
            worker_options = replace(worker_options, code=code_version(order["registries"], registry))
        tune_garbage_collector()
        restore_signals_in_forked_processes()
        metrics = make_metrics(registry, order.get("metrics"))
        run = fast_runner()
        work = _work(registry, worker_options, supervisor, metrics, takes_orders=order.get("sends_drain", False))
        code = run(work)
    except CoordinatorError as error:
        supervisor.report(f"fails {error}")
        sys.stderr.write(f"workers: {error}\n")
        code = 3
    except BaseException as error:  # noqa: BLE001  # an ordinary exit would wait for the threads of plain handlers
        supervisor.report(f"fails {type(error).__name__}: {error}")
        traceback.print_exc()
    finally:  # even if the error cannot be written, because a handler has closed the files of this process
        exit_process(code, HURRIED_EXIT_SECONDS if supervisor.hurried else EXIT_SECONDS)


class SupervisorPipes:
    """The two pipes to the supervisor of this process.

    A handler, or a library that it uses, may close a pipe by its number, for example because it closes a file of its own twice.
    The number may then belong to another file, such as a connection to the server. So nothing is read or written before a check.

    Args:
        lifeline: The reading end of the pipe on which the supervisor sends commands. The pipe is closed when the supervisor ends.
        reports: The writing end of the pipe on which this process reports.
        unread: Bytes of the lifeline that were read together with the options.

    Attributes:
        hurried: True if the supervisor has asked this process to end without grace.
    """

    def __init__(self, lifeline: int, reports: int, unread: bytes) -> None:
        self._lifeline, self._reports, self._unread = lifeline, reports, unread
        self._files = {number: identify_file(number) for number in (lifeline, reports)}
        self.hurried = False

    def is_open(self, number: int) -> bool:
        """Return False if a part of this process has closed this pipe."""
        return identify_file(number) == self._files[number]

    def report(self, line: str) -> None:
        """Write one line to the supervisor. Do nothing if the pipe is closed at one of its ends."""
        if not self.is_open(self._reports):
            return  # `drain_when_closed` notices this
        try:
            os.write(self._reports, " ".join(line.split())[:2000].encode() + b"\n")
        except BrokenPipeError:
            return  # the supervisor is gone; `follow_commands` notices this by the closed lifeline

    def report_if_read(self, line: str) -> None:
        """Write one line to the supervisor. Drop the line if the pipe is full, because the write would block the whole process."""
        room = select.poll()
        room.register(self._reports, select.POLLOUT)
        if any(event & select.POLLOUT for _, event in room.poll(0)):
            self.report(line)

    def follow_commands(self, worker: Worker) -> None:
        """Start to read the supervisor's commands and to carry them out. Drain the worker when the supervisor is gone."""
        self._process_commands(worker)
        loop = asyncio.get_running_loop()

        def read_commands() -> None:
            part = os.read(self._lifeline, 1024) if self.is_open(self._lifeline) else b""
            if not part:  # the supervisor has ended, or the lifeline was closed in this process
                loop.remove_reader(self._lifeline)
                worker.drain()
            self._unread += part
            self._process_commands(worker)

        loop.add_reader(self._lifeline, read_commands)

    async def drain_when_closed(self, worker: Worker) -> None:
        """Drain the worker when a part of this process has closed one of the pipes.

        The supervisor could not drain such a process, and the process would not notice the end of the supervisor.
        """
        while all(map(self.is_open, self._files)):
            await worker.clock.asleep(PIPE_CHECK_SECONDS)
        logger.error(
            "process %d drains and is replaced: its pipe to the supervisor was closed in this process. Probably a handler, or a "
            "library that it uses, has closed a file descriptor twice or has closed one that it did not open",
            os.getpid(),
        )
        worker.drain()

    def _process_commands(self, worker: Worker) -> None:
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            if line == b"drain":
                worker.drain()
            elif line == b"hurry":
                self.hurried = True
                worker.hurry()
            elif line in (b"outdated", b"current"):
                worker.outdated = line == b"outdated"


def take_lifeline() -> int:
    """Move standard input to another file descriptor, and return that descriptor. Standard input is empty from then on.

    So processes that a handler starts do not inherit the lifeline, and handlers cannot read from it.
    """
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return lifeline


def _read_order(lifeline: int) -> tuple[bytes, bytes]:
    """Return the first line of the lifeline, which holds the options as JSON, and the bytes that came after it."""
    read = b""
    while b"\n" not in read:
        part = os.read(lifeline, 65536)
        if not part:
            exit_process(1)  # the supervisor died before it had sent the options
        read += part
    first, _, rest = read.partition(b"\n")
    return first, rest


def make_metrics(registry: Registry[Any], file: int | None) -> WorkerMetrics | None:
    """Return the metrics of this process; None if neither its supervisor nor an OpenTelemetry SDK asks for them.

    Args:
        registry: The handlers.
        file: The file that this process shares with its supervisor for metrics, or None.
    """
    provider = otel.meter_provider()
    if file is None and provider is None:
        return None
    if file is not None:
        os.set_inheritable(file, False)
    metrics = WorkerMetrics(list(registry.handlers), file)
    if provider is not None:
        otel.report(provider, metrics.cells.read, "workers")
    return metrics


async def _work(
    registry: Registry[Any],
    options: WorkerOptions,
    supervisor: SupervisorPipes,
    metrics: WorkerMetrics | None,
    *,
    takes_orders: bool,
) -> int:
    """Run a worker until it has drained, and return the exit code.

    Args:
        registry: The handlers.
        options: The settings of the worker.
        supervisor: The pipes to the supervisor.
        metrics: The metrics of this process, if there are any.
        takes_orders: True if the supervisor orders drains on the lifeline. A supervisor of an older release, which started
            this process during an upgrade, sends SIGTERM alone.
    """
    report = supervisor.report
    worker = Worker(
        registry,
        options,
        announce=lambda partition, id: report(f"joins {partition} {id}"),
        ask_to_be_replaced=lambda run: report(f"replace {run}"),
        metrics=metrics,
    )
    worker.on_refused = lambda kind: report(f"refuses {kind}")
    worker.on_stuck = lambda run: report(f"stuck {run}")
    loop = asyncio.get_running_loop()
    # A second SIGTERM does not skip the grace: the first may have come from another request to drain, and of two signals that
    # arrive together one is lost. The supervisor sends `hurry` on the lifeline instead.
    if takes_orders:
        StraySignals(worker).install(loop)
    else:
        loop.add_signal_handler(signal.SIGTERM, worker.drain)
    # Ctrl-C in a terminal reaches this process too, but the supervisor decides what to do.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    supervisor.follow_commands(worker)

    async def report_ready() -> None:
        await worker.ready.wait()
        report("ready")

    async def report_heartbeats() -> None:
        # The event loop writes these lines, so that they stop while the loop is blocked. All processes of a host have the same
        # monotonic clock.
        while True:
            supervisor.report_if_read(f"moves {worker.moved_at():.3f}")
            worker.refresh_gauges()
            await worker.clock.asleep(HEARTBEAT_REPORT_SECONDS)

    reporting: list[asyncio.Task[Any]] = [asyncio.create_task(each()) for each in (report_ready, report_heartbeats)]
    reporting.append(asyncio.create_task(supervisor.drain_when_closed(worker)))
    try:
        return await worker.run()
    finally:
        for task in reporting:
            task.cancel()
        # The report is sent even if the process fails after the drain, because then no run is to blame.
        if worker.drained:
            report("left" if worker.has_left else "unfinished")


if __name__ == "__main__":
    main()
