"""Write the report of the benchmarks and its plots from their JSON files. Every number comes from there.

scripts/bench report [FOLDER]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plots
import scale
from figures import shown

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
OURS = "run-coordinator"
Data = dict[str, Any]


@dataclass(frozen=True)
class Aim:
    """A goal for the ratio of one of our figures to that of the best other queue.

    Attributes:
        measure: The name of the figure in the report.
        figure: The name of the figure in the JSON.
        least: The ratio that must be reached.
        aim: The ratio that should be reached.
        more: True if a higher figure is better.
        among: Returns True for a queue with which we compare.
        against: A description of these queues.
    """

    measure: str
    figure: str
    least: float
    aim: float
    more: bool
    among: Callable[[Data, str], bool]
    against: str

    def ratio(self, found: Data) -> tuple[float, str] | None:
        """Return our figure divided by that of the best other queue, and the name of that queue; None if one is not measured."""
        ours = found["contenders"].get(OURS, {}).get(self.figure)
        others = {
            name: figures[self.figure][0]
            for name, figures in found["contenders"].items()
            if name != OURS and self.figure in figures and self.among(found["about"][name], name)
        }
        if ours is None or not others:
            return None
        best = (max if self.more else min)(others, key=lambda name: others[name])
        return ours[0] / others[best], best

    def verdict(self, ratio: float) -> str:
        reached = (lambda mark: ratio >= mark) if self.more else (lambda mark: ratio <= mark)
        return (
            "**goal reached**" if reached(self.aim) else "minimum reached" if reached(self.least) else "**not reached**"
        )


def _python(about: Data, name: str) -> bool:
    return bool(about["python"])


def _safe(about: Data, name: str) -> bool:
    return bool(about["survives"])


AIMS = (
    Aim("drain, one process", "drain1_rate", 4, 8, True, _python, "the fastest Python peer"),
    Aim("drain, one process", "drain1_rate", 2, 3, True, lambda about, name: name == "BullMQ", "BullMQ"),
    Aim("batch enqueue", "many_rate", 4, 8, True, _python, "the fastest Python peer"),
    Aim("single enqueue, sync", "one_rate", 1, 1.2, True, _safe, "the fastest peer that survives a killed worker"),
    Aim("Redis CPU per run", "run_redis_us", 1, 0.5, False, _safe, "the cheapest peer that survives a killed worker"),
    Aim("time until a run starts, p50", "pick_up_p50_ms", 1, 0.5, False,
        lambda about, name: _python(about, name) and _safe(about, name),
        "the fastest Python peer that survives a killed worker"),
    Aim("Redis memory per waiting run", "waiting_bytes", 1, 0.7, False, lambda about, name: bool(about["facts"]),
        "the smallest peer that keeps the same facts"),
)  # fmt: skip


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def reach_table(found: Data, checkpoints: Data | None = None) -> str:
    """Return the table of goals, as ratios within one execution of the benchmark, and whether each was reached."""
    rows = []
    for aim in AIMS:
        compared = aim.ratio(found)
        if compared is None:
            rows.append([f"{aim.measure}, against {aim.against}", _x(aim.least), _x(aim.aim), "-", "not measured"])
            continue
        ratio, best = compared
        rows.append(
            [
                f"{aim.measure}, against {aim.against} ({best})",
                _x(aim.least),
                _x(aim.aim),
                _x(ratio),
                aim.verdict(ratio),
            ]
        )
        if aim.measure == "Redis CPU per run":
            rows.append(_bare_row(found))
    rows.append(_written_row(checkpoints))
    return table(["measure", "minimum", "goal", "measured", ""], rows)


def _bare_row(found: Data) -> list[str]:
    ratio = found["contenders"][OURS]["drain1_rate"][0] / found["limits"]["bare_drain_rate"][0]
    verdict = "**goal reached**" if ratio >= 1 else "minimum reached" if ratio >= 0.5 else "**not reached**"
    return [
        "drain of one process, against bare redis-py pipelines with one call per run",
        "0.50 x",
        "1.00 x",
        _x(ratio),
        verdict,
    ]


def _written_row(checkpoints: Data | None) -> list[str]:
    name = "bytes written for a 200-message agent run, against whole-state saving each step"
    rows = [row for row in (checkpoints or {}).get("growth", []) if row["messages"] == 200 and not row["state"]]
    if not rows:
        return [name, "1/50", "1/80", "-", "not measured"]
    parts = rows[0]["whole_state_bytes"] / rows[0]["sent_bytes"]
    verdict = "**goal reached**" if parts >= 80 else "minimum reached" if parts >= 50 else "**not reached**"
    return [name, "1/50", "1/80", f"1/{parts:.0f}", verdict]


def _x(ratio: float) -> str:
    return f"{ratio:.2f} x"


def _spread(values: list[float]) -> str:
    middle, least, most = values
    return shown(middle) if least == most else f"{shown(middle)} ({shown(least)} to {shown(most)})"


COLUMNS = {
    "one_rate": "enqueue one by one /s", "many_rate": "enqueue in batch /s", "drain1_rate": "drain, 1 process /s",
    "drain2_rate": "drain, 2 processes /s",
}  # fmt: skip
COSTS = {
    "run_redis_us": "Redis µs per run", "run_commands": "commands per run", "drain1_reads": "trips per drained run",
    "drain1_client_us": "worker µs per run", "one_client_us": "producer µs, one by one", "many_client_us": "producer µs, batch",
    "waiting_bytes": "bytes, waiting", "finished_bytes": "bytes, finished",
}  # fmt: skip
WAITS = {
    "pick_up_p50_ms": "time to start p50 ms", "pick_up_p99_ms": "p99 ms", "trip_p50_ms": "round trip with result p50 ms",
    "trip_p99_ms": "p99 ms",
}  # fmt: skip


def peers_part(found: Data, checkpoints: Data | None) -> str:
    contenders = sorted(found["contenders"].items(), key=lambda item: -item[1]["drain1_rate"][0])

    def part(columns: dict[str, str]) -> str:
        rows = [
            [name, *(_spread(figures[key]) if key in figures else "-" for key in columns)]
            for name, figures in contenders
        ]
        return table(["", *columns.values()], rows)

    unfair = table(
        ["", "runs of a killed worker", "differences to keep in mind"],
        (
            [name, "run again" if about["survives"] else "do not run again", about["unfair"]]
            for name, about in found["about"].items()
        ),
    )  # fmt: skip
    bare = table(
        ["limit", "figure"], ([name.replace("_", " "), _spread(value)] for name, value in found["limits"].items())
    )
    failed = "".join(
        f"\nNot measured: {name} ({why.splitlines()[-1][:120]}).\n" for name, why in found["failed"].items()
    )
    return "\n\n".join([
        "## Comparison with other queues: `scripts/bench peers`",
        _place(found) + " Medians, with the lowest and highest of all rounds in brackets. Empty jobs with 100 bytes of input.",
        "### Goals, as ratios within this benchmark", reach_table(found, checkpoints),
        "### Rates", part(COLUMNS), "![rates](peers.png)", "### Costs", part(COSTS), "### Latency on an idle system", part(WAITS),
        "### Settings and differences", unfair + failed,
        "### The limits: our Lua scripts without our Python code",
        "`bare`: redis-py pipelines of 100, one call per run; `merged`: one call for 100 runs; `tool`: redis-benchmark.", bare,
    ])  # fmt: skip


def growth_part(found: Data) -> str:
    parts = ["## Growth: `scripts/bench growth`", _place(found)]
    titles = {
        "drain": "Drain rate of one worker process, by number of waiting runs",
        "idle": "What an idle fleet costs the server",
        "recovery": "Recovery of interrupted runs at start, 100 per lost worker",
        "partitions": "Partitions on a Cluster of three masters on this one machine, one worker process",
    }
    for part, title in titles.items():
        if sizes := found.get(part):
            columns = list(next(iter(sizes.values())))
            rows = [[f"{int(size):,}", *(_spread(figures[key]) for key in columns)] for size, figures in sizes.items()]
            parts += [
                f"### {title}",
                table(["", *(key.replace("_", " ") for key in columns)], rows),
                *_judged(part, sizes),
            ]
    parts.append("![growth](growth.png)")
    return "\n\n".join(parts)


def _judged(part: str, sizes: Data) -> list[str]:
    ordered = sorted(sizes, key=int)
    if part == "drain" and len(ordered) > 1:
        ratio = sizes[ordered[-1]]["rate"][0] / sizes[ordered[0]]["rate"][0]
        word = "reached" if ratio >= 0.8 else "**not reached**"
        return [
            f"The rate at {int(ordered[-1]):,} is {ratio:.2f} of that at {int(ordered[0]):,} (goal: at least 0.80): {word}."
        ]
    if part == "recovery":
        slowest = min(sizes[size]["rate"][0] for size in ordered)
        long = sum(sizes[size]["commands_above_50_ms"][0] for size in ordered)
        word = "reached" if slowest >= 10_000 and not long else "**not reached**"
        return [
            f"Goal: at least 10,000 runs per second and no command above 50 ms: {word} "
            f"(slowest {shown(slowest)}/s, {long:.0f} above 50 ms)."
        ]
    return []


def checkpoints_part(found: Data) -> str:
    rows = [
        [f"{row['messages']:,}", "100 kB, unchanged" if row["state"] else "-", shown(row["over_per_save"]),
         f"{row['late_to_early']:.2f}", shown(row["redis_us_per_save"]), _mb(row["sent_bytes"]), _mb(row["whole_state_bytes"])]
        for row in found["growth"]
    ]  # fmt: skip
    head = [
        "messages",
        "state",
        "overhead per save, bytes",
        "late save / early save",
        "Redis µs per save",
        "sent in total",
        "with whole-state saving",
    ]
    savers = []
    for name, figures in found["langgraph"].items():
        said = (
            f"{_mb(figures['bytes'])} written"
            if isinstance(figures, dict)
            else f"does not work here ({figures.strip()})"
        )
        savers.append(f"- langgraph's {name} saver, 200 messages of 1 kB: {said}.")
    many, resume = found["many"], found["resume"]
    return "\n\n".join([
        "## A checkpoint over a growing transcript: `scripts/bench checkpoints`",
        "One save after each message of 1 kB, without a throttle. For comparison, the same transcript saved as one msgpack value.",
        table(head, rows), "\n".join(savers),
        f"{many['runs']:,} runs in one process that request saves for 10 s: {many['saves_offered']:,} requests in "
        f"{many['round_trips']:,} round trips; a lease was in doubt {many['leases_in_doubt']} times. "
        f"Resume of {resume['messages']:,} messages ({resume['megabytes']} MB): {resume['seconds_until_it_goes_on']} s, "
        "commands above 50 ms: "
        f"{resume['commands_above_50_ms']}.",
    ])  # fmt: skip


def _mb(size: float) -> str:
    return f"{size / 1e6:,.2f} MB" if size < 1e7 else f"{size / 1e6:,.0f} MB"


def _place(found: Data) -> str:
    place = found["where"]
    count = f", {place['count']:,} jobs" if "count" in place else ""
    machine = f"{place['cores']} cores, load {place['load']} at the start"
    busy = " **The machine was busy: these figures show the order of magnitude only.**"
    said = f"{place['server']}, {place['settings']}; {machine}; rounds: {place['rounds']}{count}; {place['at']} UTC."
    return said + busy * (place["load"] > place["cores"])


def read(folder: Path, name: str) -> Data | None:
    """Return the JSON of a benchmark; None if there is none."""
    file = folder / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def write(folder: Path) -> None:
    """Write figures.md, the plots and the computed part of docs/scale.md from the JSON files in a folder."""
    peers, growth, checkpoints = (read(folder, name) for name in ("peers", "growth", "checkpoints"))
    parts = [
        "# Figures",
        "`scripts/bench report` writes this page from the JSON files beside it. Compare figures within one table only: "
        "the speed of the machine changes from one benchmark to the next.",
    ]
    if peers:
        parts.append(peers_part(peers, checkpoints))
        plots.peers(peers, folder / "peers.png")
    if checkpoints:
        parts.append(checkpoints_part(checkpoints))
    if growth:
        parts.append(growth_part(growth))
        plots.growth(growth, folder / "growth.png")
    (folder / "figures.md").write_text("\n\n".join(parts) + "\n")
    scale.write(folder.parent / "scale.md", peers, growth, checkpoints)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if sys.argv[1:] else FOLDER)
