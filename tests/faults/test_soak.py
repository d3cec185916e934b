"""The soak notices memory that grows, and its plot is an SVG."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.faults.campaigns.soak import SERVER, Sample, growing, largest, plot


def line(name: str, pid: int, sizes: list[float], first: float = 0.0) -> list[Sample]:
    return [Sample(first + 10 * number, name, pid, size) for number, size in enumerate(sizes)]


def test_memory_that_grows_all_the_time_is_reported() -> None:
    leaking = line("coordinator", 7, [50.0 + number for number in range(40)])
    assert growing(leaking) == ["coordinator 7 grew from 64.5 to 84.5 MiB"]


def test_memory_that_grows_only_at_the_beginning_is_not_reported() -> None:
    warm = line("worker", 8, [30.0 + min(number, 8) * 3 for number in range(40)])
    assert growing(warm) == []


def test_a_process_that_did_not_live_long_is_not_judged() -> None:
    steady = line("supervisor", 9, [50.0] * 40)
    young = line("worker", 10, [30.0 + 4 * number for number in range(10)], first=300.0)
    assert growing(steady + young) == []


def test_memory_of_the_server_for_each_run_must_not_grow() -> None:
    assert growing(line(SERVER, 1, [2.0] * 40)) == []
    assert len(growing(line(SERVER, 1, [2.0 + number / 20 for number in range(40)]))) == 1


def test_the_plot_has_a_line_for_each_process() -> None:
    samples = line("worker", 1, [30.0, 31.0]) + line("worker", 2, [30.0, 29.0]) + line(SERVER, 3, [1.0, 1.5])
    root = ElementTree.fromstring(plot(samples, "a soak"))
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 3
    assert largest(samples) == {"most MiB of worker": 31.0, "most KiB of server": 1.5}
