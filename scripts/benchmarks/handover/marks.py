"""The marks of the handlers of all contenders: a line when a handler starts and when it stops, on the host's monotonic clock.

This module uses the standard library only, because it is imported in the environment of every queue.
"""

from __future__ import annotations

import os
import time

_marks = os.open(os.environ["BENCH_MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def mark(what: str, job: str, step: int = 0, tries: int = 0) -> None:
    """Write a mark. `step` is where the handler continues, `tries` is the number of attempts that it has used."""
    os.write(_marks, f"{time.monotonic_ns()} {os.getpid()} {what} {job} {step} {tries}\n".encode())
