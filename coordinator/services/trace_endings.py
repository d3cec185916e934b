"""Report spans for runs that end while no worker executes them: runs that are cancelled, that expire, or whose worker was lost.

The service runs only in a coordinator whose process has a TracerProvider, for example one that was started with
`opentelemetry-instrument`. The scripts that end such runs add them to a list, and one coordinator takes each entry of the list. So
a span is reported once. If the coordinator dies before it has exported a span, the span is lost.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.encoding.spec import join_spec, read_spec
from coordinator.errors import Unreachable, Unreadable
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
    """The number of runs that were reported, and the seconds until the next tick."""

    reported: int = 0
    rest: float = LONGEST_REST


class TraceEndings:
    """The service that reports a span for each run of one partition that ended while no worker executed it.

    Args:
        partition: The partition.
        tracing: Reports the spans.
    """

    def __init__(self, partition: Partition, tracing: Tracing) -> None:
        self._partition, self._tracing = partition, tracing
        self.name = f"spans of partition {partition.keys.partition}"

    async def tick(self) -> EndingsReport:
        """Report spans for the runs that have ended without a worker since the last tick, and return the report."""
        keys = self._partition.keys
        endings = await self._partition.ask(coordinator_plans.take_endings(keys, most=BATCH))
        chosen = [ending for ending in endings if self._tracing.selects(ending.id)]
        reported = 0
        for ending in chosen:
            reported += await self._report(ending)
        # The first entry of a new list stands for no ending, so a full batch may have one ending less.
        return EndingsReport(reported, 0.0 if len(endings) >= BATCH - 1 else LONGEST_REST)

    async def _report(self, ending: UnreportedEnding) -> bool:
        """Report the end of a run. Return False if the run can't be read any more."""
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
        self._tracing.report_ending(run, ending.status, ending.ended, view.why if current else "")
        return True
