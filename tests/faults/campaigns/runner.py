"""The common part of all campaigns: arguments, the loop of faults, the judgement, the record.

A campaign is a function that breaks one thing in a lab and returns the name of the fault. Between faults it waits for
work to be done, so that faults hit runs in progress.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.judge.checker import Judgement, judge
from tests.faults.judge.evidence import Evidence
from tests.faults.lab.lab import Lab, Plan, Store
from tests.faults.records import archive as records
from tests.proxy import Proxy, SlowLine
from tests.servers import DURABLE, Kind, Server

Break = Callable[[Lab], str]
BREACHES = Path(tempfile.gettempdir()) / "faults"


@dataclass(frozen=True)
class Campaign:
    """A name, a plan of the lab, and the function that breaks one thing.

    `proxied` puts a proxy in front of the server, and `line` a slow line. `also` is an additional rule for these faults.
    `waived` are rules that are not promised under them.
    """

    name: str
    break_one: Break
    plan: Plan = field(default_factory=Plan)
    settings: dict[str, str] = field(default_factory=lambda: dict(DURABLE))
    waived: tuple[str, ...] = ()
    also: Callable[[Evidence], Iterator[str]] | None = None
    measures: Callable[[Evidence], dict[str, int | float]] | None = None
    begin: Callable[[Lab], None] = lambda lab: None
    finish: Callable[[Lab], None] = lambda lab: None
    proxied: bool = False
    line: Callable[[int], SlowLine] | None = None
    server: Callable[[Kind, Path, dict[str, str]], Store] = Server


@dataclass(frozen=True)
class Ran:
    """A campaign with its judgement."""

    judgement: Judgement
    faults: Counter[str]
    seconds: float


def options(name: str, arguments: Sequence[str], count: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"scripts/faults {name}")
    parser.add_argument("--count", type=int, default=count, help="number of faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no fault after this many seconds")
    parser.add_argument("--server", choices=["valkey", "redis"], default="valkey")
    parser.add_argument("--no-record", action="store_true", help="do not append to tests/faults/records")
    return parser.parse_args(arguments)


def run(campaign: Campaign, arguments: Sequence[str], count: int = 20) -> int:
    """Run a campaign from the command line, print the result, and keep the record."""
    chosen = options(campaign.name, arguments, count)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(1)
    )  # The lab's processes and its server end together with this process.
    with tempfile.TemporaryDirectory(prefix="lab-") as place:
        ran = carry_out(campaign, Path(place), chosen.count, chosen.seed, chosen.seconds, chosen.server)
    report(campaign.name, ran)
    if not chosen.no_record:
        records.keep(record_of(campaign.name, chosen.seed, ran))
    return 0 if ran.judgement.passed else 1


def carry_out(
    campaign: Campaign, place: Path, count: int, seed: int, seconds: float = float("inf"), kind: Kind = "valkey"
) -> Ran:
    """Inject `count` faults, or as many as fit into `seconds`, and judge everything."""
    begun = time.monotonic()
    home = place / "server"
    home.mkdir()
    server = campaign.server(kind, home, dict(campaign.settings))
    proxy: Proxy | SlowLine | None = None
    if isinstance(server, Server):
        proxy = campaign.line(server.port) if campaign.line else Proxy(server.port) if campaign.proxied else None
    directory = place / "lab"
    directory.mkdir()
    lab = Lab(server, directory, campaign.plan, seed, proxy)
    faults: Counter[str] = Counter()
    try:
        campaign.begin(lab)
        lab.tend()
        lab.work_on(10)
        while faults.total() < count and time.monotonic() - begun < seconds:
            since = time.time()
            fault = campaign.break_one(lab)
            faults[fault] += 1
            lab.note(f"{clock_time(since)} {clock_time(time.time())} {fault}")
        campaign.finish(lab)
        lab.settle()
        evidence = lab.evidence()
        judgement = judge(evidence, faults=faults.total(), waived=campaign.waived)
        if campaign.measures:
            judgement.counts |= campaign.measures(evidence)
        if campaign.also and (also := list(campaign.also(evidence))):
            judgement.breaches[campaign.also.__name__] = also
        if not judgement.passed:
            (directory / "breaches").write_text(json.dumps(judgement.breaches, indent=1))
            lab.keep(BREACHES / f"{campaign.name}-{seed}", home)
    except BaseException:
        lab.keep(BREACHES / f"{campaign.name}-{seed}", home)
        raise
    finally:
        lab.close()
        if proxy:
            proxy.close()
        server.close()
        shutil.rmtree(home, ignore_errors=True)
    return Ran(judgement, faults, time.monotonic() - begun)


def clock_time(moment: float) -> str:
    """Return a time in the format of the servers' logs."""
    return time.strftime("%H:%M:%S", time.localtime(moment)) + f"{moment % 1:.3f}"[1:]


def record_of(name: str, seed: int, ran: Ran) -> records.Record:
    counts = {**ran.judgement.counts, **{f"fault {fault}": count for fault, count in sorted(ran.faults.items())}}
    verdict: records.Verdict = "passed" if ran.judgement.passed else "failed"
    return records.Record(name, seed, records.commit(), ran.faults.total(), round(ran.seconds, 1), verdict, counts)


def report(name: str, ran: Ran) -> None:
    for rule, breaches in ran.judgement.breaches.items():
        print(f"{rule}: {len(breaches)}")
        for breach in breaches[:10]:
            print(f"  {breach}")
    print(json.dumps({"campaign": name, "seconds": round(ran.seconds, 1), **ran.judgement.counts}))
    print(", ".join(f"{fault} {count}" for fault, count in sorted(ran.faults.items())))
    print(f"{name}: {'passed' if ran.judgement.passed else 'FAILED'}; 95 % bound {ran.judgement.counts['bound_95']}")
