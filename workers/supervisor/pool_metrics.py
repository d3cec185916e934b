"""Gather the metrics of all worker processes of a supervisor.

Each process writes its numbers to memory that it shares with the supervisor. So the supervisor also has the last numbers of a
process that was killed. When a process has ended, its counts are added to the counts of all processes before it, and its gauges
disappear.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from typing import Protocol

from coordinator.clock import Clock
from coordinator.metrics import catalog
from coordinator.metrics.catalog import CATALOG
from coordinator.metrics.samples import Samples
from coordinator.store.plans.coordinators import Recovered
from workers.metrics.cells import open_shared_file, read_shared_file
from workers.supervisor.child_process import ChildProcess

logger = logging.getLogger(__name__)


class Pool(Protocol):
    """The attributes of a pool that the metrics read."""

    @property
    def children(self) -> dict[int, ChildProcess]:
        """All worker processes that have not ended."""
        ...

    @property
    def clock(self) -> Clock:
        """The time source."""
        ...


class PoolMetrics:
    """The metrics of a supervisor's pool. Until `enable` is called, only the supervisor's own counts are kept."""

    def __init__(self) -> None:
        self._enabled = False
        self._ended = Samples()
        self._recovered: Counter[str] = Counter()
        self._ends: Counter[str] = Counter()

    def enable(self) -> None:
        """Make each new worker process write its metrics to a file that it shares with the supervisor."""
        self._enabled = True

    def open_file(self) -> int | None:
        """Return the descriptor of the shared file for a new process; None if metrics are not enabled."""
        return open_shared_file() if self._enabled else None

    def count_recovered(self, runs: Recovered) -> None:
        """Count the runs that the supervisor took from a dead process, by their new status."""
        self._recovered.update(runs.by_status)

    def add_ended(self, child: ChildProcess) -> None:
        """Keep the counts of a process that has ended, and close its shared file."""
        self._ends["drained" if child.left else "stopped" if child.stopped else "died"] += 1
        if child.metrics_file is None:
            return
        samples = self._read(child)
        for name in [name for name in samples.values if CATALOG[name].type == "gauge"]:
            del samples.values[name]
        self._ended.merge(samples)
        os.close(child.metrics_file)
        child.metrics_file = None

    def gather(self, pool: Pool) -> Samples:
        """Return the present values of all processes together, and the supervisor's own counts."""
        samples, now = Samples(), pool.clock.monotonic()
        samples.merge(self._ended)
        states: Counter[str] = Counter()
        for child in pool.children.values():
            draining = child.lifecycle.drain_requested.is_set()
            states["draining" if draining else "ready" if child.ready else "starting"] += 1
            if child.heartbeat_at is not None:
                samples.highest(catalog.HEARTBEAT_AGE, max(0.0, now - child.heartbeat_at))
            if child.metrics_file is not None:
                samples.merge(self._read(child))
        for state in ("starting", "ready", "draining"):
            samples.add(catalog.PROCESSES, states[state], state)
        for how in ("drained", "stopped", "died"):
            samples.add(catalog.PROCESS_ENDS, self._ends[how], how)
        for status in Recovered("ok").by_status:
            samples.add(catalog.RECOVERED, self._recovered[status], status, "supervisor")
        return samples

    def _read(self, child: ChildProcess) -> Samples:
        assert child.metrics_file is not None
        try:
            return read_shared_file(child.metrics_file)
        except (OSError, ValueError, LookupError) as error:  # a handler of the process may have damaged the file
            logger.warning("the metrics of worker process %d can't be read: %s", child.pid, error)
            return Samples()
