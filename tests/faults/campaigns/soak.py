"""Keep a whole lab at work for a long time, with kills and rolls: no promise is broken, and no memory grows.

    scripts/faults soak [--minutes M] [--pace S] [--plot FILE.svg] [--samples FILE.jsonl] [--seed S] [--server redis]

Everything is on: agents with output, effects, budgets, signals, children, groups, rates, schedules, retries, records. Every few
seconds a worker process, a supervisor or a coordinator is killed, or a fleet is replaced. The first fleet and the first coordinator
are left alone, so that the memory of processes that live long can be seen. All memory is sampled and plotted. The server keeps all
runs for the judge, so its memory is shown for each run that it keeps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from tests.e2e.processes import children
from tests.faults.campaigns.kill import kill
from tests.faults.campaigns.runner import Campaign, carry_out, record_of, report
from tests.faults.lab.lab import Lab, Plan
from tests.faults.records import archive as records
from tests.waiting import wait_until

EVERY = 2.0  # seconds between two samples
GROWTH = 0.15  # the largest share by which the memory of a process may grow between two quarters of the time
SPARE_MIB = 4.0  # growth that is not reported, because an allocator returns pages late
LIVED = 0.6  # a process is judged if it lived for this share of the time
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#7f7f7f")
SERVER = "server, KiB for each run"


class Sample(NamedTuple):
    """The memory of one process at a time: MiB, or KiB for each run for the server."""

    at: float
    name: str
    pid: int
    size: float


@dataclass(eq=False)
class Sampler:
    """Reads the memory of all processes of a lab, in a thread."""

    samples: list[Sample] = field(default_factory=list)
    file: Path | None = None
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def begin(self, lab: Lab) -> None:
        self._thread = threading.Thread(target=self._run, args=[lab], daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread:
            self._thread.join()

    def _run(self, lab: Lab) -> None:
        begun = time.monotonic()
        while not self._stopped.wait(EVERY):
            self._take(lab, time.monotonic() - begun)

    def _take(self, lab: Lab, at: float) -> None:
        found = [Sample(at, name, pid, size) for name, pid in processes_of(lab) if (size := mib_of(pid)) is not None]
        with contextlib.suppress(Exception):  # a server that does not answer now has no sample
            info = lab.store.admin.info("memory")
            runs = sum(1 for _ in lab.store.admin.scan_iter(f"{lab.keys.at}:run:*", count=5000))
            if runs > 100:
                size = (int(info["used_memory"]) - int(info["used_memory_startup"])) / 1024 / runs
                found.append(Sample(at, SERVER, lab.server.pid, size))
        self.samples += found
        if self.file:
            with self.file.open("a") as lines:
                lines.writelines(json.dumps(sample._asdict()) + "\n" for sample in found)


def processes_of(lab: Lab) -> list[tuple[str, int]]:
    """Return the name and the process id of each process of a lab."""
    named = (
        ("supervisor", lab.fleets), ("coordinator", lab.coordinators), ("producer", lab.producers),
        ("operator", lab.operators), ("record keeper", lab.record_keepers),
    )  # fmt: skip
    found = [(name, process.pid) for name, kept in named for process in list(kept) if process.poll() is None]
    return found + [("worker", pid) for fleet in list(lab.fleets) for pid in children(fleet.pid)]


def mib_of(pid: int) -> float | None:
    """Return the resident memory of a process; None if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20 or None


def lines_of(samples: Sequence[Sample]) -> Mapping[tuple[str, int], list[Sample]]:
    """Return the samples of each process, in order."""
    found: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        found[sample.name, sample.pid].append(sample)
    return found


def growing(samples: Sequence[Sample]) -> list[str]:
    """Return a sentence for each process whose memory grew from the second quarter of the time to the last one.

    The first quarter does not count: a process loads its modules, and its tables reach their size.
    """
    end, found = max((sample.at for sample in samples), default=0.0), []
    for (name, pid), line in lines_of(samples).items():
        if line[-1].at - line[0].at < LIVED * end or line[-1].at < 0.9 * end:
            continue
        span = line[-1].at - line[0].at
        early = [s.size for s in line if 0.25 <= (s.at - line[0].at) / span < 0.5]
        late = [s.size for s in line if (s.at - line[0].at) / span >= 0.75]
        if not early or not late:
            continue
        before, after = statistics.median(early), statistics.median(late)
        spare = 0.0 if name == SERVER else SPARE_MIB
        if after - before > max(GROWTH * before, spare):
            found.append(
                f"{name} {pid} grew from {before:.1f} to {after:.1f} {'' if name == SERVER else 'MiB'}".strip()
            )
    return found


def plot(samples: Sequence[Sample], title: str) -> str:
    """Return an SVG with a line for each process, and one with its own scale for the server."""
    lines, width, height = lines_of(samples), 900, 300
    end = max((sample.at for sample in samples), default=1.0) or 1.0
    panels = (("MiB of each process", False), ("KiB of the server for each run that it keeps", True))
    parts = [f'<text x="10" y="20" font-size="15">{title}</text>']
    names = sorted({name for name, _ in lines if name != SERVER})
    for number, (label, server) in enumerate(panels):
        top, shown = 40 + number * (height + 60), {k: v for k, v in lines.items() if (k[0] == SERVER) == server}
        most = 1.1 * max((s.size for line in shown.values() for s in line), default=1.0)
        parts.append(f'<text x="10" y="{top + 12}" font-size="12">{label}</text>')
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            y = top + 20 + height * (1 - share)
            parts.append(f'<line x1="50" x2="{50 + width}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
            parts.append(f'<text x="5" y="{y + 4:.0f}" font-size="11">{most * share:.0f}</text>')
        for (name, _), line in shown.items():
            color = COLORS[names.index(name) % len(COLORS)] if name in names else COLORS[0]
            points = " ".join(
                f"{50 + width * s.at / end:.1f},{top + 20 + height * (1 - s.size / most):.1f}" for s in line
            )
            parts.append(f'<polyline fill="none" stroke="{color}" points="{points}"/>')
        for share in (0.0, 0.5, 1.0):
            x = 50 + width * share
            parts.append(
                f'<text x="{x - 20:.0f}" y="{top + 35 + height}" font-size="11">{end * share / 60:.0f} min</text>'
            )
    for number, name in enumerate(names):
        color = COLORS[number % len(COLORS)]
        parts.append(f'<text x="{60 + width}" y="{70 + number * 18}" font-size="12" fill="{color}">{name}</text>')
    size = f'width="{width + 180}" height="{2 * (height + 60) + 60}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">\n' + "\n".join(parts) + "\n</svg>\n"
    )


def break_one(lab: Lab, seconds: float) -> str:
    """Let the lab work, then kill or replace something that is not to live long."""
    until = time.monotonic() + seconds
    lab.work_on(lab.choose.randint(2, 20))
    while time.monotonic() < until:
        time.sleep(0.2)  # the pace of the faults
        lab.tend()
    fault = lab.choose.choice(["worker", "worker", "supervisor", "coordinator", "roll", "roll"])
    if fault == "coordinator":
        victim = lab.coordinators[-1]
        victim.kill()
        victim.wait()
    elif fault == "supervisor":
        victim = lab.fleets[-1]
        victim.kill()
        victim.wait()
    elif fault == "worker":
        kill(lab.choose.choice(wait_until(lambda: children(lab.fleets[-1].pid), "a worker is there", timeout=60)))
    else:
        victim = lab.fleets[-1]
        wait_until(lambda: set(lab.workers(at_work=True)) & set(children(victim.pid)), "the fleet works", timeout=60)
        lab.fleets.remove(victim)
        lab.tend()
        victim.terminate()
        assert victim.wait(90) == 0, f"a fleet that was replaced ended badly:\n{lab.logs()[-3000:]}"
    lab.tend()
    return fault


def campaign(sampler: Sampler, pace: float) -> Campaign:
    return Campaign(
        "soak",
        lambda lab: break_one(lab, pace),
        Plan(fleets=2, coordinators=2, operators=1, record_keepers=1, grace=10.0, lease=5.0),
        begin=sampler.begin,
        finish=lambda lab: sampler.stop(),
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults soak")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--pace", type=float, default=10.0, help="seconds between two faults, at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server", choices=["valkey", "redis"], default="valkey")
    parser.add_argument("--plot", type=Path, default=Path("soak.svg"))
    parser.add_argument("--samples", type=Path, help="append each sample to this file as it is taken")
    parser.add_argument("--no-record", action="store_true", help="do not append to tests/faults/records")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sampler = Sampler(file=chosen.samples)
    with tempfile.TemporaryDirectory(prefix="lab-") as place:
        try:
            seconds = chosen.minutes * 60
            ran = carry_out(campaign(sampler, chosen.pace), Path(place), 10**9, chosen.seed, seconds, chosen.server)
        finally:
            sampler.stop()
            chosen.plot.write_text(plot(sampler.samples, f"soak of {chosen.minutes:g} minutes, seed {chosen.seed}"))
    if grown := growing(sampler.samples):
        ran.judgement.breaches["memory_grows"] = grown
    report("soak", ran)
    print(f"plot: {chosen.plot}")
    if not chosen.no_record:
        kept = record_of("soak", chosen.seed, ran)
        records.keep(replace(kept, counts={**kept.counts, **largest(sampler.samples)}))
    return 0 if ran.judgement.passed else 1


def largest(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the largest memory of each kind of process, for the record."""
    found: dict[str, float] = {}
    for sample in samples:
        key = f"most {'KiB' if sample.name == SERVER else 'MiB'} of {sample.name.partition(',')[0]}"
        found[key] = round(max(found.get(key, 0.0), sample.size), 1)
    return found
