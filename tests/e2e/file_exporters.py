"""Exporters of OpenTelemetry that append to files, for tests with real processes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult


class FileSpans(SpanExporter):
    """Append each span to a file, in one write."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        descriptor = os.open(f"{os.environ['JOURNAL']}.spans", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            for span in spans:
                os.write(descriptor, json.dumps(json.loads(span.to_json())).encode() + b"\n")
        finally:
            os.close(descriptor)
        return SpanExportResult.SUCCESS


class FileMetrics(MetricExporter):
    """Append the sums of an export to a file, one line for each point."""

    def export(self, metrics_data: Any, timeout_millis: float = 0, **kwargs: Any) -> MetricExportResult:
        with Path(f"{os.environ['JOURNAL']}.metrics").open("a") as file:
            for resource in metrics_data.resource_metrics:
                for one in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                    for point in one.data.data_points:
                        file.write(json.dumps([one.name, dict(point.attributes), getattr(point, "value", None)]) + "\n")
        return MetricExportResult.SUCCESS

    def shutdown(self, timeout_millis: float = 0, **kwargs: Any) -> None: ...

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True
