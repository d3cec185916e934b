"""Measure how fast the workers of a queue execute waiting jobs, by the times that the handlers write to a file (the marks)."""

from __future__ import annotations

import struct
import subprocess
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path

from contenders import MARK_BYTES, Contender
from server import BenchServer, cpu_of_tree

PATIENCE = 600.0


def drained(server: BenchServer, contender: Contender, marks: Path, count: int, processes: int) -> dict[str, float]:
    """Measure a drain, from the first line of the first handler to the first line of the last one.

    Returns:
        The jobs per second; and for each job the microseconds of the server and of the workers, the commands and the reads.
    """
    marks.write_bytes(b"")
    with contender.working(server.url, marks, processes) as workers:
        _until(lambda: marks.stat().st_size > 0, workers, contender, marks)
        before, own = server.usage(), sum(cpu_of_tree(worker.pid) for worker in workers)
        seen = marks.stat().st_size // MARK_BYTES
        _until(lambda: marks.stat().st_size >= count * MARK_BYTES, workers, contender, marks)
        spent, own = server.usage() - before, sum(cpu_of_tree(worker.pid) for worker in workers) - own
    times = read_marks(marks)
    rest = max(1, count - seen)
    return {
        "rate": (count - 1) / ((times[count - 1] - times[0]) / 1e9),
        "redis_us": spent.cpu / rest * 1e6,
        "client_us": own / rest * 1e6,
        "commands": spent.commands / rest,
        "reads": spent.reads / rest,
    }


def read_marks(marks: Path) -> list[int]:
    """Return the times in ns at which handlers started, in order."""
    return sorted(began for began, _ in struct.iter_unpack("<qq", marks.read_bytes()))


def excess(starts: list[float], rate: int) -> list[float]:
    """Return for each start the excess of the worst window that ends with it: its number of starts minus rate times window."""
    # A running maximum over all windows that end at a start, as in the bucket itself.
    found, level = list[float](), 0.0
    for before, at in zip(chain(starts[:1], starts), starts, strict=False):
        level = max(0.0, level - rate * (at - before)) + 1
        found.append(level)
    return found


def _until(done: Callable[[], bool], workers: list[subprocess.Popen[bytes]], contender: Contender, marks: Path) -> None:
    until = time.monotonic() + PATIENCE
    while not done():
        if any(worker.poll() is not None for worker in workers) or time.monotonic() > until:
            log = marks.with_suffix(".log").read_text(errors="replace")[-1500:]
            raise RuntimeError(f"{contender.name}: the worker ended too early or stood still: {log}")
        time.sleep(0.005)
