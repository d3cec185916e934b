"""Measure what imports and the help of the commands cost, relative to `import redis.asyncio`.

    scripts/bench imports [--rounds N] [--json]

Each figure is the median processor time of interleaved rounds, in new interpreters, without the time of an empty interpreter.
redis.asyncio imports OpenTelemetry if it is installed. Here it may not, because most programs do not have it.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile

BASE = "import redis.asyncio"
HIDDEN = "import sys; sys.modules['opentelemetry'] = None\n"
EMPTY = "pass"


def command(program: str) -> str:
    return f"sys.argv = [{program!r}, '--help']\nfrom {program}.cli.app import main\nmain()"


CASES = {
    EMPTY: EMPTY,
    BASE: BASE,
    "import coordinator": "import coordinator",
    "import workers": "import workers",
    "coordinator --help": command("coordinator"),
    "workers --help": command("workers"),
    "from coordinator import Client": "from coordinator import Client",
    "from workers import Registry": "from workers import Registry",
}
GOALS = {"import coordinator": 0.5, "import workers": 0.5, "coordinator --help": 1.0, "workers --help": 1.0}


def processor_time(code: str, directory: str) -> float:
    """Return the processor time in milliseconds of a new interpreter that executes the code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", HIDDEN + code], stdout=subprocess.DEVNULL, check=True, cwd=directory)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Return the milliseconds of each case, and its ratio to the import of redis.asyncio."""
    found: dict[str, list[float]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as directory:
        for number in range(rounds + 1):
            for name, code in CASES.items():
                spent = processor_time(code, directory)
                if number:  # the first round reads the files from the disk and writes bytecode
                    found[name].append(spent)
    medians = {name: statistics.median(values) for name, values in found.items()}
    own = {name: value - medians[EMPTY] for name, value in medians.items() if name != EMPTY}
    return {name: {"ms": round(value, 1), "ratio": round(value / own[BASE], 2)} for name, value in own.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.rounds)
    if options.json:
        print(json.dumps(found))
        return
    width = max(len(name) for name in found)
    for name, figures in found.items():
        goal = f"   at most {GOALS[name]:.1f}" if name in GOALS else ""
        print(f"{name:{width}}  {figures['ms']:7.1f} ms  {figures['ratio']:5.2f} x{goal}")


if __name__ == "__main__":
    main()
