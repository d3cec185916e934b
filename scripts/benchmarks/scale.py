"""Compute the estimates of docs/scale.md from the measured figures, and write them between two marks of that page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- sums: made by scripts/bench report -->", "<!-- end of the sums -->"
OURS = "run-coordinator"
SLOTS = 100
TURN_SECONDS = 10.0  # This is one turn of an agent: one answer of a model, and one save.
Data = dict[str, Any]


def sums(peers: Data | None, growth: Data | None, checkpoints: Data | None) -> str:
    """Return the estimates for three sizes. Figures that were not measured are left out."""
    lines = []
    if peers:
        lines += _rate(peers["contenders"][OURS], 1000)
    lines += _live(growth or {}, checkpoints or {}, 100_000)
    if peers:
        lines += _waiting(peers["contenders"][OURS], growth or {}, 10_000_000)
    return "\n".join(lines)


def _rate(ours: Data, rate: int) -> list[str]:
    redis_us, drain = ours["run_redis_us"][0], ours["drain1_rate"][0]
    processes = math.ceil(rate / drain)
    return [
        f"**{rate:,} runs per second.**",
        f"- The server spends {redis_us:,.0f} µs on a run from enqueue to completion: {redis_us * rate / 1e6:.0%} of one core. "
        f"So one server can handle about {1e6 / redis_us:,.0f} runs per second; beyond that, use partitions on a Cluster.",
        f"- A worker process executes {drain:,.0f} empty runs per second: {processes} process{'es' * (processes > 1)} for the "
        "bookkeeping. How many more you need depends on the work of the handlers.",
        f"- Completed runs are kept for their retention. One day (the default) takes "
        f"{rate * 86_400 * ours['finished_bytes'][0] / 1e9:,.0f} GB at "
        f"{ours['finished_bytes'][0]:,.0f} bytes per run. **Memory is the first limit here, not speed**: "
        "at this rate, set `retention=` to minutes.",
        "",
    ]


def _live(growth: Data, checkpoints: Data, live: int) -> list[str]:
    processes = live // SLOTS
    lines = [f"**{live:,} live agent runs**, {SLOTS} per process, with a turn and a save every {TURN_SECONDS:.0f} s."]
    idle = growth.get("idle", {}).get(str(processes))
    if idle:
        lines.append(
            f"- The heartbeats and bells of {processes:,} processes: {idle['cpu_ms_per_s'][0] / 10:.1f} % of one server core."
        )
    else:
        lines.append(f"- The heartbeats and bells of {processes:,} processes: not measured yet.")
    saves = [row for row in checkpoints.get("growth", []) if row["messages"] == 200 and not row["state"]]
    if saves and "redis_us_per_save" in saves[0]:
        spent = saves[0]["redis_us_per_save"] * live / TURN_SECONDS / 1e6
        lines.append(
            f"- {live / TURN_SECONDS:,.0f} saves per second, at {saves[0]['redis_us_per_save']:,.0f} µs if each is sent alone: "
            f"{spent:.1f} cores, so {max(1, math.ceil(spent / 0.7))} partitions. "
            "A process with many runs merges its saves."
        )
    recovery = growth.get("recovery", {})
    if recovery:
        rate = recovery[max(recovery, key=int)]["rate"][0]
        lines.append(
            f"- If all of them are interrupted at once, requeueing takes {live / rate:,.0f} s "
            f"({rate:,.0f} per second) after one lease."
        )
    return [*lines, ""]


def _waiting(ours: Data, growth: Data, waiting: int) -> list[str]:
    drains = growth.get("drain", {})
    largest = max(drains, key=int) if drains else None
    size = drains[largest]["waiting_bytes"][0] if largest else ours["waiting_bytes"][0]
    lines = [
        f"**{waiting:,} waiting runs.**",
        f"- {size:,.0f} bytes each with 100 bytes of input: {waiting * size / 1e9:.1f} GB, and up to twice as much while the "
        "server rewrites its append-only file.",
    ]
    if largest and len(drains) > 1:
        least = min(drains, key=int)
        ratio = drains[largest]["rate"][0] / drains[least]["rate"][0]
        lines.append(
            f"- The drain rate with {int(largest):,} waiting runs is {ratio:.2f} of that with {int(least):,} "
            "(the reason is in [benchmarks](benchmarks/README.md))."
        )
    return lines


def write(page: Path, peers: Data | None, growth: Data | None, checkpoints: Data | None) -> None:
    """Write the estimates into the page, if it exists."""
    if not page.exists():
        return
    text = page.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{sums(peers, growth, checkpoints)}\n{END}{after}")
