"""The text of the benchmark reports follows from their figures."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "scripts" / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def found(ours: float, other: float, **about: bool) -> dict[str, Any]:
    """Return a comparison in which all figures are equal."""
    report_figures = ("drain1_rate", "many_rate", "one_rate", "run_redis_us", "pick_up_p50_ms", "waiting_bytes")
    facts = {"survives": True, "facts": True, "python": True} | about
    return {
        "about": {"run-coordinator": facts, "peer": facts},
        "contenders": {
            "run-coordinator": {name: [ours, ours, ours] for name in report_figures},
            "peer": {name: [other, other, other] for name in report_figures},
        },
        "limits": {"bare_drain_rate": [100.0, 100.0, 100.0]},
    }


def row(table: str, beginning: str) -> str:
    return next(line for line in table.splitlines() if line.startswith(f"| {beginning}"))


@pytest.mark.parametrize(
    ("ours", "drain", "memory"),
    [(100.0, "not reached", "minimum reached"), (399.0, "not reached", "not reached"),
     (400.0, "minimum reached", "not reached"), (800.0, "goal reached", "not reached"), (70.0, "not reached", "goal reached")],
)  # fmt: skip
def test_table_states_plainly_what_was_measured(bench: Any, ours: float, drain: str, memory: str) -> None:
    table = bench("report").reach_table(found(ours, 100.0))
    assert row(table, "drain, one process, against the fastest Python").split("|")[-2].strip(" *") == drain
    assert row(table, "Redis memory").split("|")[-2].strip(" *") == memory


def test_peer_that_loses_runs_is_not_compared_with_peers_that_do_not(bench: Any) -> None:
    table = bench("report").reach_table(found(100.0, 100.0, survives=False))
    assert "not measured" in row(table, "single enqueue")
    assert "(peer)" in row(table, "batch enqueue")


def test_ratio_below_half_of_the_recorded_one_is_reported(bench: Any) -> None:
    fallen = bench("ratio").fallen
    assert fallen({"drain": 1.0, "enqueue": 2.0}, {"drain": 0.5, "enqueue": 1.0}) == []
    assert fallen({"drain": 1.0, "enqueue": 2.0}, {"drain": 0.49, "enqueue": 3.0}) == [
        "drain: 0.49 of the bare limit; the recorded ratio is 1.00"
    ]


def test_estimates_name_their_sizes_and_omit_what_was_not_measured(bench: Any) -> None:
    scale: ModuleType = bench("scale")
    assert "not measured yet" in scale.sums(None, None, None)
    growth = {"idle": {"1000": {"cpu_ms_per_s": [50.0] * 3}}, "recovery": {"100000": {"rate": [10_000.0] * 3}}}
    sums = scale.sums(None, growth, None)
    assert "5.0 % of one server core" in sums
    assert "requeueing takes 10 s (10,000 per second)" in sums


def test_every_peer_has_pinned_versions(bench: Any) -> None:
    venvs = bench("venvs")
    for peer in venvs.peers():
        lines = (BENCHMARKS / "peers" / f"{peer}.txt").read_text().splitlines()
        assert all("==" in line for line in lines if not line.startswith("#")), peer
    wanted = {contender.program for contender in bench("contenders").CONTENDERS}
    assert all((BENCHMARKS / "peers" / program).exists() for program in wanted)


def test_board_that_shows_a_change_late_fails_the_benchmark(bench: Any) -> None:
    def figures(**p50: int) -> dict[str, Any]:
        return {name: {"count": 9, "p50": value, "p90": 10 * value} for name, value in p50.items()}

    too_slow = bench("board").too_slow
    quick = {"kill": figures(ended=900, left=300, landed=71, card=88), "roll": figures(left=66, landed=62)}
    assert too_slow(quick) == []
    assert too_slow({**quick, "roll": {"left": {"count": 0}}}) == []
    slow = {**quick, "kill": figures(left=71, landed=301, card=900)}
    assert [sentence.partition(":")[0] for sentence in too_slow(slow)] == ["kill landed", "kill card"]
