"""The sums of docs/scale.md: what three sizes need, on paper, from the measured figures. Written between two marks of that page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- sums: made by scripts/bench report -->", "<!-- end of the sums -->"
OURS = "run-coordinator"
SLOTS = 100
TURN_SECONDS = 10.0  # an agent's turn: a model's answer, and one save
Data = dict[str, Any]


def sums(peers: Data | None, growth: Data | None, checkpoints: Data | None) -> str:
    """The three sizes, each with what is not measured left out."""
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
        f"**{rate:,} runs a second.**",
        f"- The server spends {redis_us:,.0f} µs on a run from enqueue to ending: {redis_us * rate / 1e6:.0%} of one core. "
        f"The same sum puts one server's end at about {1e6 / redis_us:,.0f} runs a second; past it, partitions on a Cluster.",
        f"- A worker process drains {drain:,.0f} empty runs a second: {processes} process{'es' * (processes > 1)} for the "
        "bookkeeping; how many more is said by what the handlers do.",
        f"- What a day leaves for its retention: {rate * 86_400 * ours['finished_bytes'][0] / 1e9:,.0f} GB at "
        f"{ours['finished_bytes'][0]:,.0f} bytes a completed run (default: 1 day). **Here memory is the first limit, not speed**: "
        "such producers set `retention=` to minutes.",
        "",
    ]


def _live(growth: Data, checkpoints: Data, live: int) -> list[str]:
    processes = live // SLOTS
    lines = [f"**{live:,} live agent runs**, {SLOTS} in a process, a turn and a save each {TURN_SECONDS:.0f} s."]
    idle = growth.get("idle", {}).get(str(processes))
    if idle:
        lines.append(
            f"- {processes:,} processes beat and listen: {idle['cpu_ms_per_s'][0] / 10:.1f} % of one server core."
        )
    else:
        lines.append(f"- {processes:,} processes beat and listen (a fleet of that size is not measured yet).")
    saves = [row for row in checkpoints.get("growth", []) if row["messages"] == 200 and not row["state"]]
    if saves and "redis_us_per_save" in saves[0]:
        spent = saves[0]["redis_us_per_save"] * live / TURN_SECONDS / 1e6
        lines.append(
            f"- {live / TURN_SECONDS:,.0f} saves a second at {saves[0]['redis_us_per_save']:,.0f} µs when each travels alone: "
            f"{spent:.1f} cores, so {max(1, math.ceil(spent / 0.7))} partitions; a process with many runs merges its saves."
        )
    recovery = growth.get("recovery", {})
    if recovery:
        rate = recovery[max(recovery, key=int)]["rate"][0]
        lines.append(
            f"- All of them interrupted at once: {live / rate:,.0f} s to put back at {rate:,.0f} a second, after one lease."
        )
    return [*lines, ""]


def _waiting(ours: Data, growth: Data, waiting: int) -> list[str]:
    drains = growth.get("drain", {})
    largest = max(drains, key=int) if drains else None
    size = drains[largest]["waiting_bytes"][0] if largest else ours["waiting_bytes"][0]
    lines = [
        f"**{waiting:,} waiting runs.**",
        f"- {size:,.0f} bytes each with 100 bytes of input: {waiting * size / 1e9:.1f} GB, and as much again while the "
        "append-only file is rewritten under writes.",
    ]
    if largest and len(drains) > 1:
        least = min(drains, key=int)
        ratio = drains[largest]["rate"][0] / drains[least]["rate"][0]
        lines.append(
            f"- The drain at {int(largest):,} waiting is {ratio:.2f} of that at {int(least):,} "
            "(why: [benchmarks](benchmarks/README.md))."
        )
    return lines


def write(page: Path, peers: Data | None, growth: Data | None, checkpoints: Data | None) -> None:
    """Only where the page is."""
    if not page.exists():
        return
    text = page.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{sums(peers, growth, checkpoints)}\n{END}{after}")
