"""A worker process as its supervisor sees it: how to start it, read its reports, and ask it to end.

Two pipes connect the supervisor with each worker process. On the report pipe, the process writes reports of one line each, for
example `ready`; the program on the other side is `workers/program/child.py`. On the lifeline, the supervisor writes the options
first and one-word commands later. When the supervisor dies, the lifeline closes and the process drains.

Before a process joins, it writes its new worker id to the report pipe. So the supervisor knows every id whose runs it must abandon.
A process has ended when it exits, and not when its pipes close: a process that a handler started may keep the pipes open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from coordinator.clock import Clock
from coordinator.logs import JsonLines, Lines
from workers.process.options import WorkerOptions
from workers.supervisor.child_state import ChildLifecycle, ChildState
from workers.supervisor.merged_log import open_output_pipe

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class ChildProcess:
    """A worker process, and the worker ids under which it may have joined."""

    process: asyncio.subprocess.Process
    lifeline: int  # the writing end of the command pipe; the process drains when this end is closed
    reports: int  # the reading end of the report pipe
    started: float  # monotonic time
    worker_ids: set[tuple[int, str]] = field(default_factory=set)  # (partition, worker)
    grace: float = 0.0  # the longest grace of its handlers, in seconds
    lifecycle: ChildLifecycle = field(default_factory=ChildLifecycle)
    failure: str = ""  # why the process could not start, as it reported
    rejected_kinds: set[str] = field(default_factory=set)  # kinds of which the process could not start any run
    rejects_a_kind: asyncio.Event = field(default_factory=asyncio.Event)
    # runs whose outcome the process has decided, but whose handlers do not stop
    stuck_runs: set[str] = field(default_factory=set)
    extra: bool = False  # the process was started for one suspect run and has no child slot
    held_runs: int = 0  # the number of runs that were taken from the process after its end
    summary: str = ""  # the new statuses of those runs, in words, for the log
    heartbeat_at: float | None = None  # monotonic time of its last heartbeat, as its event loop reported it
    metrics_file: int | None = None  # the file to which the process writes its metrics
    supervision: asyncio.Task[None] | None = (
        None  # ends when the process has ended and the server has taken its runs from it
    )
    _unread: bytes = b""

    @property
    def pid(self) -> int:
        """The id of the worker process."""
        return self.process.pid

    @property
    def ready(self) -> bool:
        """Return True if the server has answered the first claim of the process."""
        return self.lifecycle.became_ready.is_set()

    @property
    def left(self) -> bool:
        """Return True if the process drained and held no run any more."""
        return self.lifecycle.state is ChildState.LEFT

    @property
    def stopped(self) -> bool:
        """Return True if the supervisor stopped the process before it had started. It held no run."""
        return self.lifecycle.state is ChildState.STOPPED

    # -- reports of the process

    def read_reports(self) -> bool:
        """Handle the reports that the process has written. Return False at the end of the pipe."""
        more = True
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.reports, 4096):
                self._unread += part
            more = False
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            self._process_report(line.decode(errors="replace"))
        return more

    def _process_report(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        match word, rest.split():
            case "joins", [partition, worker]:
                self.worker_ids.add((int(partition), worker))
            case "grace", [seconds]:
                self.grace = float(seconds)
            case "ready", []:
                self.lifecycle.record_ready()
            case "moves", [at]:
                self.heartbeat_at = float(at)
            case "refuses", [kind]:
                self.rejected_kinds.add(kind)
                self.rejects_a_kind.set()
            case "stuck", [run]:
                self.stuck_runs.add(run)
            case "fails", [*_]:
                self.failure = rest
            case "left", []:
                self.lifecycle.record_left()
            case "unfinished", []:
                self.lifecycle.record_unfinished()
            case "replace", [run]:
                logger.error("killing worker process %d: run %s blocked its event loop", self.pid, run)
                self.lifecycle.record_blocked_kill(run)
                self.send_signal(signal.SIGKILL)
            case _:
                logger.warning("worker process %d sent an unknown report: %r", self.pid, line[:100])

    # -- requests of the supervisor

    def drain(self) -> None:
        """Ask the process to end. A second call does nothing.

        The supervisor writes a line to the lifeline, and also sends SIGTERM. The signal ends a process that is still starting and
        does not read the lifeline yet. A process that has started ignores SIGTERM, because other programs may send it too.
        """
        if self.lifecycle.request_drain():
            self._send_command("drain")
            self.send_signal(signal.SIGTERM)

    def hurry(self) -> None:
        """Ask the process to end without grace, even if it drains already.

        The request is a line on the lifeline and not a second signal. A signal that arrives before the first one was handled is
        lost, and a handler with a long grace would then keep the process until the supervisor kills it.
        """
        self.drain()
        if self.lifecycle.request_hurry():
            self._send_command("hurry")

    def set_outdated(self, outdated: bool) -> None:
        """Tell the process whether the fleet has newer code than the process.

        An outdated process does not claim runs that were released within the last second.
        """
        self._send_command("outdated" if outdated else "current")

    def _send_command(self, word: str) -> None:
        with contextlib.suppress(OSError):  # the process has ended, or reads no commands; then it claims no runs either
            os.write(self.lifeline, f"{word}\n".encode())

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.process.returncode is None:
            self.process.send_signal(number)

    async def wait_until_overdue(self, grace: float, exit_timeout: float, clock: Clock) -> None:
        """Wait until the process was asked to end and its grace and `exit_timeout` seconds have passed."""
        await self.lifecycle.drain_requested.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(grace, self.grace)):
                await self.lifecycle.hurry_requested.wait()
        await clock.asleep(exit_timeout)

    # -- the end of the process

    def record_exit(self) -> None:
        """Record that the process has ended and that the supervisor has read its last reports."""
        if self._was_terminated_before_joining:
            self.lifecycle.record_early_stop()
        self.lifecycle.record_exit()

    @property
    def _was_terminated_before_joining(self) -> bool:
        return self.process.returncode == -signal.SIGTERM and not self.worker_ids

    async def wait_until_gone(self) -> None:
        """Wait until the process has ended, and the server has taken its runs from it.

        Raises:
            Exception: The error with which the supervision of the process failed.
        """
        assert self.supervision is not None
        await asyncio.wait({self.supervision})
        self.supervision.result()

    @property
    def alive(self) -> bool:
        """Return True if the process runs, or the server has not taken its runs from it yet."""
        return self.supervision is None or not self.supervision.done()

    @property
    def ending(self) -> str:
        """A description of how the process ended, as in 'drained', 'died (SIGKILL)' or 'died (exit code 3)'."""
        if self.stopped:
            return "was stopped before it had started"
        code = self.process.returncode or 0
        names = {int(number): number.name for number in signal.Signals}
        cause = names.get(-code, f"signal {-code}") if code < 0 else f"exit code {code}"
        if self.left and code == 0:
            return "drained"
        return f"{'drained' if self.left else 'was killed' if self._killed else 'died'} ({cause})"

    @property
    def _killed(self) -> bool:
        return self.lifecycle.state is ChildState.KILLED

    @property
    def exit_code(self) -> int:
        """The exit code of the process as the supervisor counts it: 0 if the process drained, or was stopped before it started."""
        code = self.process.returncode or 0
        if (self.left and code == 0) or self._was_terminated_before_joining:
            return 0
        return max(code, 1)

    def close(self) -> None:
        """Close the supervisor's ends of the pipes."""
        os.close(self.lifeline)
        os.close(self.reports)


async def spawn(
    registries: Sequence[str], options: WorkerOptions, now: float, metrics_file: int | None = None
) -> ChildProcess:
    """Start a worker process with the code that is on disk now, and return it.

    Args:
        registries: The names of the registries, each as MODULE:REGISTRY.
        options: The options of the worker.
        now: The monotonic time.
        metrics_file: The descriptor of the file to which the process writes its metrics; None for no metrics.

    Raises:
        OSError: If the machine has no memory, files or processes left.
    """
    reports, its_reports = os.pipe()
    its_lifeline, lifeline = os.pipe()
    its_output = open_output_pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "workers.program.child", stdin=its_lifeline, stdout=its_output, stderr=its_output,
            pass_fds=(its_reports, *(() if metrics_file is None else (metrics_file,))), start_new_session=True,
        )  # fmt: skip
    except BaseException:
        os.close(reports)
        os.close(lifeline)
        raise
    finally:
        os.close(its_reports)
        os.close(its_lifeline)
        if its_output is not None:
            os.close(its_output)
    os.set_blocking(reports, False)
    # The options go through the pipe because the URL may contain a password, and every user can see the arguments of a process.
    order = {
        "registries": list(registries),
        "reports": its_reports,
        "options": asdict(options),
        "logs": _logging_options(),
        "metrics": metrics_file,
        "sends_drain": True,  # so that the process ignores a SIGTERM that this supervisor did not send
    }
    with contextlib.suppress(BrokenPipeError):  # the process has ended already, which `_supervise` notices
        os.write(lifeline, json.dumps(order).encode() + b"\n")
    os.set_blocking(lifeline, False)
    return ChildProcess(process, lifeline, reports, now, metrics_file=metrics_file)


def _logging_options() -> dict[str, object]:
    """Return the logging options of the worker processes, which are the options of the supervisor."""
    root = logging.getLogger()
    formatters = [handler.formatter for handler in root.handlers]
    return {
        "level": root.level,
        "as_json": any(isinstance(one, JsonLines) for one in formatters),
        "colour": any(isinstance(one, Lines) and one.colour for one in formatters),
    }
