"""Plant each known bug in a copy of the source, and run the test that must notice it.

    scripts/faults mutants [NAME …] [--at-once N] [--no-control]

Without names, the tests are first run without a bug. `--no-control` leaves this out: use it if the whole suite has just passed.

The exit code is 1 if a mutant survives, a recipe does not apply any more, or a named test fails without a bug.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.faults.mutants.recipes import MUTANTS, Mutant
from tests.faults.records import archive as records

ROOT = Path(__file__).parents[3]
PARTS = (
    "coordinator",
    "workers",
    "tests",
    "scripts",
    "examples",
    "docs",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
)
LONGEST = 300.0
NOTICED, PASSED, BROKEN = (
    1,
    0,
    -2,
)  # exit codes of pytest and of campaigns; a campaign that broke down has judged nothing
JUDGED = ": FAILED;"  # the output of a campaign that found a breach


@dataclass(frozen=True, slots=True)
class Result:
    mutant: Mutant
    said: str
    seconds: float

    @property
    def caught(self) -> bool:
        return self.said == "caught"


def copied(place: Path) -> Path:
    """Copy the source to a folder, from which the processes import it."""
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, place / part, ignore=shutil.ignore_patterns("__pycache__", "*.jsonl"))
        else:
            shutil.copy(source, place / part)
    return place


def tried(root: Path, caught_by: str) -> int:
    """Return the exit code of the test or campaign in a copy; -1 if it did not end in time."""
    words = caught_by.split()
    if words[0] == "campaign":
        command = ["-m", "tests.faults", *words[1:], "--no-record"]
    else:
        command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", caught_by]
    environment = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        with (root / "output").open("wb") as output:
            return subprocess.run(
                [sys.executable, *command], cwd=root, env=environment, stdout=output, stderr=output, timeout=LONGEST
            ).returncode
    except subprocess.TimeoutExpired:
        return -1


def hunted(mutant: Mutant) -> Result:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        root = copied(Path(place))
        try:
            mutant.plant(root)
        except ValueError as error:
            return Result(mutant, str(error), 0.0)
        code = tried(root, mutant.caught_by)
        if mutant.caught_by.startswith("campaign") and code == NOTICED and JUDGED not in (root / "output").read_text():
            code = BROKEN
        said = {NOTICED: "caught", PASSED: "SURVIVED"}.get(code, f"its test ended with {code}: {_end_of(root)}")
    return Result(mutant, said, time.monotonic() - begun)


def _end_of(root: Path) -> str:
    return (root / "output").read_text(errors="replace").strip()[-300:].replace("\n", " | ")


def control() -> str:
    """Run the named tests in a copy without a bug. They must pass, otherwise a failure proves nothing."""
    tests = sorted({mutant.caught_by for mutant in MUTANTS if not mutant.caught_by.startswith("campaign")})
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        root = copied(Path(place))
        environment = os.environ | {"PYTHONPATH": str(root)}
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        ended = subprocess.run([sys.executable, *words], cwd=root, env=environment, stdout=subprocess.PIPE, text=True)
    return "" if ended.returncode == PASSED else ended.stdout[-2000:]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults mutants")
    parser.add_argument("names", nargs="*", help="only bugs whose name contains one of these words")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--no-control", action="store_true", help="do not run the named tests without a bug first")
    parser.add_argument("--no-record", action="store_true")
    chosen = parser.parse_args(arguments)
    mutants = [m for m in MUTANTS if not chosen.names or any(name in m.name for name in chosen.names)]
    begun = time.monotonic()
    if not chosen.names and not chosen.no_control and (wrong := control()):
        print(f"the named tests fail without a bug:\n{wrong}")
        return 1
    random.shuffle(mutants)
    results = []
    with ThreadPoolExecutor(chosen.at_once) as pool:
        for result in pool.map(hunted, mutants):
            mutant = result.mutant
            test = mutant.caught_by.rpartition("/")[2]
            print(f"{result.said:<9} {result.seconds:6.1f} s  {mutant.name}  ({test})", flush=True)
            results.append(result)
    for result in results:
        if not result.caught:
            print(f"not caught: {result.mutant.name}: {result.said}")
    caught = sum(result.caught for result in results)
    print(f"{caught} of {len(results)} mutants caught")
    good = caught == len(results)
    if not chosen.names and not chosen.no_record:
        counts = {"mutants": len(results), "caught": caught}
        seconds = round(time.monotonic() - begun, 1)
        verdict: records.Verdict = "passed" if good else "failed"
        records.keep(records.Record("mutants", 0, records.commit(), len(results), seconds, verdict, counts))
    return 0 if good else 1
