"""Values of metrics, and their text form for Prometheus."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from coordinator.errors import BadOption
from coordinator.metrics.catalog import CATALOG, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class Distribution:
    """The values of a histogram: the number of values in each bucket, and the sum of all values.

    Attributes:
        counts: One count for each bound, and one for the values above the last bound. They are not cumulative.
        total: The sum of the values.
    """

    counts: list[float]
    total: float = 0.0

    def add(self, other: Distribution) -> None:
        """Add the values of another distribution, which has the same bounds."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


@dataclass(slots=True)
class Samples:
    """The values of metrics by name and label values. Values that are added for the same labels are summed."""

    values: dict[str, dict[tuple[str, ...], float]] = field(default_factory=dict)
    distributions: dict[str, dict[tuple[str, ...], Distribution]] = field(default_factory=dict)

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """Add a value to the counter or gauge with these label values."""
        known = self.values.setdefault(metric.name, {})
        known[labels] = known.get(labels, 0.0) + value

    def highest(self, metric: Metric, value: float, *labels: str) -> None:
        """Set the gauge with these label values to a value, unless it already has a higher one."""
        known = self.values.setdefault(metric.name, {})
        known[labels] = max(known.get(labels, value), value)

    def observe(self, metric: Metric, distribution: Distribution, *labels: str) -> None:
        """Add a distribution to the histogram with these label values."""
        known = self.distributions.setdefault(metric.name, {})
        if labels in known:
            known[labels].add(distribution)
        else:
            known[labels] = Distribution(list(distribution.counts), distribution.total)

    def merge(self, other: Samples) -> None:
        """Add all values and distributions of other samples to these."""
        for name, by_labels in other.values.items():
            for labels, value in by_labels.items():
                self.add(CATALOG[name], value, *labels)
        for name, found in other.distributions.items():
            for labels, distribution in found.items():
                self.observe(CATALOG[name], distribution, *labels)

    def without_gauges(self) -> Samples:
        """Return the counters and the histograms, whose values stay true after the process has stopped its work."""
        kept = {name: found for name, found in self.values.items() if CATALOG[name].type != "gauge"}
        return Samples(kept, self.distributions)


def require_prometheus() -> None:
    """Check that prometheus_client is installed.

    Raises:
        BadOption: It is not installed.
    """
    if importlib.util.find_spec("prometheus_client") is None:
        raise BadOption("--metrics needs the package prometheus_client: pip install 'run-coordinator[metrics]'")


def render(samples: Samples) -> bytes:
    """Return the samples in the text format of Prometheus, encoded."""
    from prometheus_client import CollectorRegistry, generate_latest

    class Collector:
        def collect(self) -> Iterator[Any]:
            return _families(samples)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    return generate_latest(registry)


def _families(samples: Samples) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    for metric in CATALOG.values():
        if metric.type == "histogram":
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, distribution in sorted(samples.distributions.get(metric.name, {}).items()):
                histogram.add_metric(labels, _buckets(metric.bounds, distribution.counts), distribution.total)
            if histogram.samples:
                yield histogram
            continue
        make = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
        family = make(metric.name, metric.help, labels=metric.labels)
        for labels, value in sorted(samples.values.get(metric.name, {}).items()):
            family.add_metric(labels, value)
        if family.samples:
            yield family


def _buckets(bounds: Sequence[float], counts: Iterable[float]) -> list[tuple[str, float]]:
    """Return the buckets of a histogram as pairs of the upper bound and the cumulative count."""
    names = [*map(repr, bounds), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))
