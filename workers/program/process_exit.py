"""End a process of a fleet: call its exit functions, wait at most a few seconds for them, and do not wait for its threads."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from types import FrameType

from coordinator.store.transport.wire import detach

logger = logging.getLogger(__name__)
EXIT_SECONDS = 5.0  # seconds that all exit functions together may take
HURRIED_EXIT_SECONDS = 1.0  # the same in a process that was asked to end without grace
WARNING_SECONDS = 0.5  # seconds that the warning about exit functions that take longer may take


def exit_process(code: int, seconds: float = EXIT_SECONDS) -> None:
    """Call the functions that are registered with `atexit`, and end the process without waiting for its threads.

    A plain handler that ignores its stop would otherwise keep the process alive forever. Its run has been released already. The
    exit functions send what the process still holds: SDKs such as those of OpenTelemetry and Sentry register one. They are called
    in the main thread, as at an ordinary exit.

    Args:
        code: The exit code.
        seconds: Seconds after which the process ends even if an exit function has not returned.
    """
    try:
        detach()
        threading.Thread(target=_exit_late, args=(code, seconds), name="exit watchdog", daemon=True).start()
        if (processes := sys.modules.get("multiprocessing.util")) is not None:
            atexit.unregister(processes._exit_function)  # it would wait for child processes, such as those of a pool
        atexit._run_exitfuncs()  # calls all of them, even if some raise errors
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # the reader of the output may be gone
        os._exit(code)


def _exit_late(code: int, seconds: float) -> None:
    """End the process after a number of seconds. Log which exit function has not returned by then."""
    threading.Event().wait(seconds)
    try:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        text = "process %d ends without waiting any longer for its exit functions, which had time for %g s: %s"
        arguments = (text, os.getpid(), seconds, _describe_exit_function(frame))
        # The thread that hangs may hold the lock of the log.
        warning = threading.Thread(target=logger.warning, args=arguments, daemon=True)
        warning.start()
        warning.join(WARNING_SECONDS)
    finally:  # no thread may be started if the process has reached a limit of the system
        os._exit(code)


def _describe_exit_function(frame: FrameType | None) -> str:
    """Return the name and the place of the function that `exit_process` calls in this frame or in a frame that leads to it."""
    while frame is not None and frame.f_back is not None:
        if frame.f_back.f_code is exit_process.__code__:
            return f"{frame.f_code.co_qualname} has not returned ({frame.f_code.co_filename}, line {frame.f_lineno})"
        frame = frame.f_back
    return "an exit function in native code has not returned, or the output of the process cannot be written"
