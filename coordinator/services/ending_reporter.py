"""Count and trace runs that end while no worker executes them: runs that are cancelled, that expire, or whose worker was lost.

The service runs only in a coordinator that exports metrics, or whose process has a TracerProvider, for example one that was started
with `opentelemetry-instrument`. The scripts that end such runs add them to a list. Each ending is counted by one coordinator that
exports metrics, and reported as a span by one that has a TracerProvider. If the coordinator dies after it has taken an ending from
the list, the span that it has not exported is lost, and so is the count that was not scraped. If the server loses its last writes
in a failover or a power cut, the last endings may be counted and reported again.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.encoding.spec import join_spec, read_spec
from coordinator.errors import Unreachable, Unreadable
from coordinator.metrics.ending_counts import EndingCounts
from coordinator.middleware import AttemptInfo, read_headers
from coordinator.services.service_loop import LONGEST_REST, Partition
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans.coordinators import UnreportedEnding
from coordinator.store.replies import pairs
from coordinator.views.run_view import run_view

if TYPE_CHECKING:
    from coordinator.tracing import Tracing

log = logging.getLogger(__name__)

BATCH = 500  # endings that one tick takes


def configured_tracing() -> Tracing | None:
    """Return the middleware that reports spans, or None if the process has no TracerProvider."""
    if "opentelemetry.trace" not in sys.modules:  # nothing has set a provider, so the package need not be installed
        return None
    from opentelemetry import trace

    from coordinator.tracing import Tracing

    provider = trace.get_tracer_provider()
    unset = isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider))
    return None if unset else Tracing()


@dataclass(frozen=True, slots=True)
class EndingsReport:
    """The result of a tick.

    Attributes:
        counted: The number of endings that were counted.
        traced: The number of endings that were reported as spans.
        rest: Seconds until the next tick.
    """

    counted: int = 0
    traced: int = 0
    rest: float = LONGEST_REST


class EndingReporter:
    """The service that counts and traces each run of one partition that ended while no worker executed it.

    Args:
        partition: The partition.
        tracing: Reports the spans; None if the process has no TracerProvider.
        counts: Counts the endings; None if the process exports no metrics.
    """

    def __init__(self, partition: Partition, tracing: Tracing | None, counts: EndingCounts | None) -> None:
        self._partition, self._tracing, self._counts = partition, tracing, counts
        self.name = f"endings of partition {partition.keys.partition}"

    async def tick(self) -> EndingsReport:
        """Count and trace the runs that have ended without a worker since the last tick, and return the report."""
        tracing, counts = self._tracing, self._counts
        plan = coordinator_plans.take_endings(
            self._partition.keys, most=BATCH, spans=tracing is not None, counts=counts is not None
        )
        taken = await self._partition.ask(plan)
        if counts is not None:  # before the spans, which need a request for each run
            for ending in taken.for_counts:
                counts.count(ending.kind, ending.status)
        traced = 0
        if tracing is not None:
            for ending in taken.for_spans:
                traced += tracing.selects(ending.id) and await self._trace(tracing, ending)
        # The first entry of a new list stands for no ending, so a full batch may have one ending less.
        full = max(len(taken.for_counts), len(taken.for_spans)) >= BATCH - 1
        return EndingsReport(len(taken.for_counts), traced, 0.0 if full else LONGEST_REST)

    async def _trace(self, tracing: Tracing, ending: UnreportedEnding) -> bool:
        """Report the span of a run that has ended. Return False if the run can't be read any more."""
        try:
            reply = await self._partition.ask(client_plans.view(self._partition.keys, ending.id))
            if reply is None:
                return False
            view = run_view(ending.id, reply)
            headers = read_headers(read_spec(spec)[2]) if (spec := join_spec(pairs(reply[0]))) else {}
        except (Unreachable, Unreadable) as error:
            log.warning("the end of run %s has no span: %s", ending.id, error)
            return False
        run = AttemptInfo(
            run=ending.id, kind=view.kind, queue=view.queue, attempt=ending.attempts, life=ending.life, worker="",
            created=view.created.timestamp(), claimed=0.0, cause="", previous="", meta=view.meta, headers=headers,
            history=view.story,
        )  # fmt: skip
        current = view.counters.life == ending.life and view.status.ended  # otherwise the run was revived since
        tracing.report_ending(run, ending.status, ending.ended, view.why if current else "")
        return True
