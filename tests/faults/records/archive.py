"""The records of all campaigns: one JSON line for each, in this folder. docs/faults.md contains their sums.

A campaign writes its line after the judgement, whatever the verdict. No line is written by hand.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[3]
HOME = Path(__file__).parent

Verdict = Literal["passed", "failed"]


@dataclass(frozen=True, slots=True)
class Record:
    """One campaign with its verdict.

    Attributes:
        count: The number of faults, seeds or inputs.
        seconds: The duration.
        evidence: A line for each event that a promise excludes and that the campaign therefore did not count as a breach.
    """

    campaign: str
    seed: int
    commit: str
    count: int
    seconds: float
    verdict: Verdict
    counts: Mapping[str, int | float] = field(default_factory=dict)
    evidence: Sequence[str] = field(default_factory=list)


def commit() -> str:
    """Return the tested commit, with a + if files differ from it."""
    head = _git("rev-parse", "--short=12", "HEAD").strip()
    changed = [
        line
        for line in _git("status", "--porcelain", "--untracked-files=no").splitlines()
        if not line.endswith(".jsonl")
    ]
    return head + ("+" if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def keep(record: Record, home: Path = HOME) -> None:
    """Append a record to the file of its campaign."""
    home.mkdir(exist_ok=True)
    with (home / f"{record.campaign}.jsonl").open("a") as kept:
        kept.write(json.dumps(asdict(record), sort_keys=True) + "\n")


def read(home: Path = HOME) -> Iterable[Record]:
    """Return all records, campaign by campaign."""
    for path in sorted(home.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            yield Record(**json.loads(line))
