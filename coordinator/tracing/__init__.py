"""Traces of runs through OpenTelemetry. Needs the extra `otel`.

Give `Tracing()` to the clients that enqueue and to the registry:

    client = Client(middleware=[Tracing()])
    runs = Registry(middleware=[Tracing()])

A run is one trace. The ids of the trace, of its root span and of the span of each attempt are computed from the run's id. So all
workers agree on them, and a worker can report the attempts of a worker that was killed before it could report anything.

The spans of an attempt are made after its end, in batches. The code that makes a span takes several times longer if it runs once in
a few milliseconds than if it runs many times in a row, because other code has replaced it in the caches of the processor.
"""

from __future__ import annotations

from coordinator.tracing.middleware import Tracing

__all__ = ["Tracing"]
