"""The cells that a worker process shares with its supervisor, and the text that is made of them."""

from __future__ import annotations

import asyncio
import json
import os
import struct

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from coordinator import Status
from coordinator.clock import SystemClock
from coordinator.errors import BadOption
from coordinator.metrics import catalog, otel, samples
from coordinator.metrics.catalog import CATALOG, MOST_KINDS, OTHER
from coordinator.metrics.ending_counts import EndingCounts
from coordinator.metrics.samples import Distribution, Samples, render, require_prometheus
from coordinator.model.slots import SlotUse
from workers.metrics.cells import HEADER_BYTES, open_shared_file, read_cells, read_shared_file
from workers.metrics.worker_metrics import WorkerMetrics

NOW = 1_000_000.0


class Claimed:
    def __init__(self, kind: str, queued: float, *, cause: str = "", priority: int = 0) -> None:
        created = 1_800_000_000_000
        score = created - priority * 2**43
        self.kind, self.cause = kind, cause
        self.counters = f"1 1 0 0 0 0 0 0 0 0 {score} {created}"
        self.token = f"{created + round(queued * 1000)}-7-w1"


class Saver:
    def __init__(self, skipped: int) -> None:
        self.offered = self.skipped = skipped


class Ended:
    """An attempt that ended after some seconds, at the time 1000."""

    def __init__(self, kind: str, seconds: float, *, skipped: int = 0) -> None:
        self.handler, self.began, self.saver = Claimed(kind, 0.0), NOW - seconds, Saver(skipped)


class FixedClock(SystemClock):
    def monotonic(self) -> float:
        return NOW


CLOCK = FixedClock()


def claims(*runs: Claimed) -> list[tuple[Claimed, Claimed]]:
    return [(run, run) for run in runs]


async def complete(metrics: WorkerMetrics, *attempts: Ended) -> None:
    """Complete attempts in one turn of the event loop."""
    for one in attempts:
        metrics.attempt_completed(one)
    await asyncio.sleep(0)  # the attempts are counted in the next turn


def parse(found: Samples) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the samples that Prometheus's own parser finds, by name and label values."""
    parsed: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(render(found).decode()):
        for sample in family.samples:
            parsed.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return parsed


async def test_supervisor_reads_what_the_process_wrote() -> None:
    file = open_shared_file()
    try:
        assert read_shared_file(file).values == {}  # the process has not started yet
        metrics = WorkerMetrics(["work", "other_work"], file, CLOCK)
        metrics.claimed(
            claims(Claimed("work", 0.3), Claimed("work", 2.0, priority=7), Claimed("work", 9, cause="wake"))
        )
        await complete(metrics, Ended("work", 0.004), Ended("work", 100_000.0))
        metrics.attempt_ended(Ended("other_work", 1.0, skipped=3), "retried", NOW)
        metrics.resumed("work", 0.02, 1.5, struck=True)
        metrics.saved("work", 0.001, 500)
        metrics.fenced("work")
        metrics.started("work", 0.0001)
        metrics.heartbeat_answered(0.002)
        metrics.set_gauges(use=SlotUse.of(12, 10), memory=4096, at_risk=1.25)
        found = parse(read_shared_file(file))
    finally:
        os.close(file)
    assert found["runs_attempts_total"] == {("work", "completed"): 2, ("other_work", "retried"): 1}
    assert found["runs_ended_total"] == {("work", "completed"): 2}  # a retried attempt did not end its run
    assert found["runs_attempt_seconds_count"] == {("work",): 2, ("other_work",): 1}
    assert found["runs_attempt_seconds_bucket"]["work", "0.005"] == 1
    assert found["runs_attempt_seconds_bucket"]["work", "86400.0"] == 1
    assert found["runs_attempt_seconds_bucket"]["work", "+Inf"] == 2
    assert found["runs_attempt_seconds_sum"]["work",] == pytest.approx(100_000.004)
    assert found["runs_queued_seconds_sum"] == {("work",): pytest.approx(2.3)}
    assert found["runs_queued_seconds_count"] == {("work",): 2}
    assert found["runs_claims_total"] == {("runs",): 1}
    assert found["runs_resume_seconds_count"] == {("work",): 1}
    assert found["runs_redone_seconds_total"] == {("work",): 1.5}
    assert found["runs_strikes_total"] == found["runs_fenced_writes_total"] == {("work",): 1}
    assert found["runs_saved_bytes_total"] == {("work",): 500}
    assert found["runs_saves_throttled_total"] == {("other_work",): 3}
    assert found["runs_server_round_trip_seconds_count"] == {(): 1}
    names = ("runs_slots", "runs_slots_busy", "runs_finishing", "runs_work_at_risk_seconds")
    assert [found[name] for name in names] == [{(): 10}, {(): 10}, {(): 2}, {(): 1.25}]


async def test_value_on_a_bound_belongs_to_the_bucket_of_the_bound() -> None:
    metrics = WorkerMetrics(["work"], clock=CLOCK)
    await complete(metrics, Ended("work", 1.0))
    assert parse(metrics.cells.read())["runs_attempt_seconds_bucket"]["work", "1.0"] == 1


@pytest.mark.parametrize("count", [1, 7, 8, 11, 20, 100])
def test_one_run_of_a_large_claim_stands_for_all(count: int) -> None:
    metrics = WorkerMetrics(["work"])
    metrics.claimed(claims(*(Claimed("work", 2.0) for _ in range(count))))
    found = parse(metrics.cells.read())
    assert found["runs_queued_seconds_count"] == {("work",): count}
    assert found["runs_queued_seconds_sum"] == {("work",): 2 * count}


@pytest.mark.parametrize("count", [1, 7, 8, 9, 20, 100])
async def test_one_in_eight_short_attempts_that_complete_together_stands_for_all(count: int) -> None:
    metrics = WorkerMetrics(["work", "other_work"], clock=CLOCK)
    short = [Ended("work", (0.01 if i % 8 == 0 or count < 8 else 0.09)) for i in range(count)]
    await complete(metrics, *short, Ended("other_work", 0.02))
    found = parse(metrics.cells.read())
    assert found["runs_attempts_total"] == {("work", "completed"): count, ("other_work", "completed"): 1}
    assert found["runs_attempt_seconds_count"] == {("work",): count, ("other_work",): 1}
    assert found["runs_attempt_seconds_sum"]["work",] == pytest.approx(0.01 * count)
    assert found["runs_attempt_seconds_sum"]["other_work",] == pytest.approx(0.02)


async def test_all_attempts_are_measured_if_a_long_one_is_among_them() -> None:
    metrics = WorkerMetrics(["work"], clock=CLOCK)
    await complete(metrics, *(Ended("work", seconds) for seconds in (0.01,) * 9), Ended("work", 3600.0))
    found = parse(metrics.cells.read())
    assert found["runs_attempt_seconds_sum"]["work",] == pytest.approx(3600.09)
    assert found["runs_attempt_seconds_count"] == {("work",): 10}


async def test_throttled_saves_of_completed_attempts_are_counted() -> None:
    metrics = WorkerMetrics(["work"], clock=CLOCK)
    await complete(metrics, *(Ended("work", 0.01, skipped=number) for number in range(10)))
    assert parse(metrics.cells.read())["runs_saves_throttled_total"] == {("work",): 45}


async def test_completed_attempts_of_each_turn_are_counted_once() -> None:
    metrics = WorkerMetrics(["work"], clock=CLOCK)
    for _ in range(3):
        await complete(metrics, Ended("work", 0.01), Ended("work", 0.01))
    assert parse(metrics.cells.read())["runs_attempts_total"] == {("work", "completed"): 6}


async def test_kinds_beyond_the_limit_are_counted_together() -> None:
    kinds = [f"kind{number:04}" for number in range(5 * MOST_KINDS)]
    metrics = WorkerMetrics(kinds, clock=CLOCK)
    await complete(metrics, *(Ended(kind, 0.1) for kind in kinds))
    found = parse(metrics.cells.read())["runs_attempts_total"]
    assert len(found) == MOST_KINDS + 1
    assert found[OTHER, "completed"] == 4 * MOST_KINDS
    assert sum(found.values()) == len(kinds)


def test_kinds_of_a_coordinator_beyond_the_limit_are_counted_together() -> None:
    counts, found = EndingCounts(), Samples()
    for number in range(5 * MOST_KINDS):
        for _ in range(2):
            counts.count(f"kind{number}", "cancelled")
    counts.count("kind0", "dead")
    counts.count("", "dead")  # the kind of a damaged run is not known
    counts.add_to(found)
    ended = parse(found)["runs_ended_total"]
    assert len(ended) == MOST_KINDS + 3
    assert ended["kind0", "cancelled"] == 2
    assert ended["kind0", "dead"] == ended[OTHER, "dead"] == 1
    assert ended[OTHER, "cancelled"] == 2 * 4 * MOST_KINDS


def test_every_ended_status_is_an_ending() -> None:
    assert set(catalog.ENDINGS) == {status.value for status in Status if status.ended}


def test_longest_names_of_kinds_fit_into_the_header() -> None:
    kinds = [f"{number:0100}" for number in range(MOST_KINDS)]
    file = open_shared_file()
    try:
        WorkerMetrics(kinds, file).attempt_ended(Ended(kinds[-1], 0.1), "failed", NOW)
        assert parse(read_shared_file(file))["runs_attempts_total"] == {(kinds[-1], "failed"): 1}
    finally:
        os.close(file)


def test_metrics_of_another_version_are_skipped() -> None:
    header = {
        "kinds": ["work"], "start": 2, "stride": 1, "per_kind": [["runs_fenced_writes", [], 0, []]],
        "single": [["runs_unheard_of", [], 0, []], ["runs_slots", [], 1, []], ["runs_server_round_trip_seconds", [], 0, [0.5]]],
    }  # fmt: skip
    packed = json.dumps(header).encode()
    data = (struct.pack("<Q", len(packed)) + packed).ljust(HEADER_BYTES, b"\0") + struct.pack("<3d", 7, 8, 9)
    found = read_cells(data)
    assert found.values == {"runs_slots": {(): 8.0}, "runs_fenced_writes": {("work",): 9.0}}
    assert found.distributions == {}


def test_header_that_was_not_written_yet_gives_no_values() -> None:
    assert read_cells(bytes(HEADER_BYTES + 80)) == Samples()


def test_samples_of_several_processes_are_added() -> None:
    one, two = Samples(), Samples()
    for each, value in ((one, 1.0), (two, 5.0)):
        each.add(catalog.FENCED, value, "work")
        each.observe(catalog.RESUME, Distribution([value] * (len(catalog.LONG) + 1), value), "work")
    one.merge(two)
    found = parse(one)
    assert found["runs_fenced_writes_total"] == {("work",): 6}
    assert found["runs_resume_seconds_count"] == {("work",): 6 * (len(catalog.LONG) + 1)}
    assert two.values["runs_fenced_writes"] == {("work",): 5.0}


def test_no_metric_has_an_identity_as_a_label() -> None:
    allowed = {"kind", "queue", "outcome", "status", "state", "answer", "how", "by", "limit"}
    assert {label for metric in CATALOG.values() for label in metric.labels} <= allowed
    assert {metric.name for metric in CATALOG.values() if not metric.name.startswith("runs_")} == set()


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    with pytest.raises(BadOption, match=r"pip install 'run-coordinator\[metrics\]'"):
        require_prometheus()


async def test_opentelemetry_sdk_gets_the_same_values() -> None:
    reader = InMemoryMetricReader()
    metrics = WorkerMetrics(["work"], clock=CLOCK)
    await complete(metrics, Ended("work", 2.0))
    metrics.set_gauges(use=SlotUse(10, 3, 0), memory=4096, at_risk=1.25)
    otel.report(MeterProvider([reader]), metrics.cells.read, "workers")
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        one.name: {tuple((point.attributes or {}).values()): point.value for point in one.data.data_points}  # type: ignore[union-attr]
        for scope in data.resource_metrics[0].scope_metrics
        for one in scope.metrics
    }
    assert found["runs_attempts"] == found["runs_ended"] == {("work", "completed"): 1}
    assert found["runs_attempt_seconds_count"] == {("work",): 1}
    assert found["runs_attempt_seconds_sum"] == {("work",): 2.0}
    assert found["runs_slots_busy"] == {(): 3}


def test_program_without_an_opentelemetry_sdk_has_no_provider() -> None:
    assert otel.meter_provider() is None
