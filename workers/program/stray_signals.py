"""Handle signals to a worker process that do not come from the supervisor, and signals to processes that a handler forks.

A worker process takes its commands from the lifeline, the pipe from its supervisor. A signal alone does not drain the process: a
handler that ends a tool with `os.killpg` signals the worker process too, unless the tool has a process group of its own. systemd
sends SIGTERM to the supervisor and to all its processes, and the supervisor then orders the drain.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading

from workers.process.worker import Worker

logger = logging.getLogger(__name__)
ORDER_SECONDS = 1.0  # the supervisor's order to drain may arrive this long after the signal
STRAY = (signal.SIGTERM, signal.SIGHUP)
HANDLED = (*STRAY, signal.SIGINT)


class StraySignals:
    """Ignore SIGTERM and SIGHUP. Log a warning, unless the supervisor orders a drain at about the same time.

    Args:
        worker: The worker of this process.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._waiting: asyncio.Task[None] | None = None

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Receive the signals on an event loop. The loop has to run in the main thread."""
        for number in STRAY:
            loop.add_signal_handler(number, self._receive, number)

    def _receive(self, number: signal.Signals) -> None:
        if self._waiting is None or self._waiting.done():
            self._waiting = asyncio.get_running_loop().create_task(self._warn_without_order(number))

    async def _warn_without_order(self, number: signal.Signals) -> None:
        await self._worker.clock.asleep(ORDER_SECONDS)
        if not self._worker.stopping:
            logger.warning(
                "ignored %s: the supervisor ordered no drain. Probably a handler signalled its own process group, as os.killpg "
                "does for a tool that was started without start_new_session=True. To drain this process: workers drain %d",
                number.name, os.getpid(),
            )  # fmt: skip


class _Mask(threading.local):
    """The signal mask of a thread before it forked."""

    before: set[signal.Signals | int] = set()  # noqa: RUF012  # a default for each thread, replaced and never changed


def restore_signals_in_forked_processes() -> None:
    """Restore the default signal handling in every process that a handler forks.

    Otherwise the forked process would inherit the signal handlers of the worker's event loop and its wake-up pipe. SIGTERM would
    then not end the forked process, and would reach the worker instead. The signals are blocked during the fork, so that a signal
    that arrives early ends the forked process as well.
    """
    mask = _Mask()

    def block() -> None:
        mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask.before)

    def restore() -> None:
        signal.set_wakeup_fd(-1)
        for number in STRAY:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=restore)
