"""The plots of the report. Without matplotlib (the extra `bench`) there are none, and a message says so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

Data = dict[str, Any]
OURS = "run-coordinator"


def _pyplot() -> Any:
    try:
        import matplotlib  # Only a plot needs this import.
    except ImportError:
        print(
            "no plots, because matplotlib is not installed: .venv/bin/pip install -c constraints.txt -e '.[bench]'",
            file=sys.stderr,
        )
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def peers(found: Data, file: Path) -> None:
    if (pyplot := _pyplot()) is None:
        return
    panels = {
        "drain1_rate": "drain, one process, runs/s", "many_rate": "batch enqueue, runs/s",
        "one_rate": "enqueue one by one, runs/s", "run_redis_us": "Redis CPU per run, µs (less is better)",
    }  # fmt: skip
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8))
    for (key, title), axis in zip(panels.items(), axes.flat, strict=True):
        rows = sorted(
            (values[key][0], name, values[key]) for name, values in found["contenders"].items() if key in values
        )
        names = [name for _, name, _ in rows]
        middles = [middle for middle, _, _ in rows]
        spread = [[value[0] - value[1] for _, _, value in rows], [value[2] - value[0] for _, _, value in rows]]
        colours = ["tab:orange" if name == OURS else "tab:blue" for name in names]
        axis.barh(names, middles, xerr=spread, color=colours, capsize=2)
        axis.set_title(title)
        axis.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    figure.savefig(file, dpi=100)
    pyplot.close(figure)


def growth(found: Data, file: Path) -> None:
    if (pyplot := _pyplot()) is None:
        return
    panels = {
        "drain": ("rate", "drain of one process, runs/s", "waiting runs"),
        "idle": ("cpu_ms_per_s", "idle fleet: ms of server CPU per s", "worker processes"),
        "recovery": ("rate", "start-up recovery, runs/s", "interrupted runs"),
    }
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 4))
    for (part, (key, title, label)), axis in zip(panels.items(), axes, strict=True):
        sizes = {int(size): values[key] for size, values in found.get(part, {}).items()}
        if sizes:
            middles = [value[0] for value in sizes.values()]
            spread = [
                [value[0] - value[1] for value in sizes.values()],
                [value[2] - value[0] for value in sizes.values()],
            ]
            axis.errorbar(list(sizes), middles, yerr=spread, marker="o", capsize=3)
            axis.set(xscale="log", ylim=(0, None))
        axis.set(title=title, xlabel=label)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(file, dpi=100)
    pyplot.close(figure)
