"""Report the metrics of a process through OpenTelemetry, if the program has configured an SDK.

The SDK reads the instruments only when it exports, so the attempts themselves do not become slower.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal

from coordinator.metrics.catalog import CATALOG, Metric
from coordinator.metrics.samples import Samples


def meter_provider() -> Any:
    """Return the MeterProvider that the program has set, or None if it has set none."""
    if "opentelemetry.metrics" not in sys.modules:  # the program does not use it, so it is not imported here either
        return None
    from opentelemetry import metrics
    from opentelemetry.metrics import NoOpMeterProvider

    provider = metrics.get_meter_provider()
    unset = isinstance(provider, NoOpMeterProvider) or type(provider).__name__ == "_ProxyMeterProvider"
    return None if unset else provider


def report(provider: Any, read: Callable[[], Samples], source: Literal["workers", "coordinator"]) -> None:
    """Create an instrument for each metric of worker processes or of coordinators.

    Args:
        provider: The MeterProvider.
        read: Returns the present values of the process. A thread of the SDK calls it.
        source: The kind of process.
    """
    from opentelemetry.metrics import CallbackOptions, Observation

    meter = provider.get_meter("run-coordinator")

    def observe(metric: Metric, part: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def callback(options: CallbackOptions) -> Iterable[Observation]:
            samples = read()
            for labels, value in samples.values.get(metric.name, {}).items():
                yield Observation(value, dict(zip(metric.labels, labels, strict=True)))
            for labels, found in samples.distributions.get(metric.name, {}).items():
                value = sum(found.counts) if part == "_count" else found.total
                yield Observation(value, dict(zip(metric.labels, labels, strict=True)))

        return callback

    for metric in CATALOG.values():
        if metric.source not in (source, "both"):
            continue
        if metric.type == "gauge":
            meter.create_observable_gauge(metric.name, [observe(metric, "")], description=metric.help)
        for part in {"counter": ("",), "histogram": ("_count", "_sum"), "gauge": ()}[metric.type]:
            meter.create_observable_counter(metric.name + part, [observe(metric, part)], description=metric.help)
