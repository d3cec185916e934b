"""Measure the memory of an idle supervisor, worker process, coordinator and server, and the processor time that they use meanwhile.

    scripts/bench memory [--seconds S] [--processes N] [--json]

`rss` is the resident memory of a process. `pss` counts each shared page in parts: the sum over all processes is the memory that
they take together. Both are read from `/proc`, so the load of the machine does not change them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from due import process, tool
from server import cpu_of_tree, server, where

APP = "from workers import Registry\nruns = Registry()\n\n@runs.handler\nasync def nothing(run):\n    return None\n"
NAMESPACE = "memory"
PATIENCE = 60.0


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def memory_of(pid: int) -> dict[str, float]:
    """Return the MiB of a process."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return {name.lower(): round(int(lines[name].split()[0]) / 1024, 1) for name in ("Rss", "Pss")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with server() as found, tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "memory_app.py").write_text(APP)
        place = {"RUNS_URL": found.url, "RUNS_NAMESPACE": NAMESPACE, "PYTHONPATH": directory}
        start = (tool("workers"), "start", "memory_app:runs", "--processes", str(options.processes))
        with process(*start, **place) as fleet, process(tool("coordinator"), "start", **place) as coordinator:
            until = time.monotonic() + PATIENCE
            while int(found.admin.zcard(f"{{{NAMESPACE}:0}}:workers")) < options.processes:
                if time.monotonic() > until:
                    raise SystemExit("memory: the workers did not start")
                time.sleep(0.05)
            time.sleep(options.seconds / 2)
            names = {fleet.pid: "supervisor", coordinator.pid: "coordinator", found.pid: "server"}
            for number, child in enumerate(children_of(fleet.pid), 1):
                names[child] = f"worker process {number}"
            before = {pid: cpu_of_tree(pid) for pid in names}
            time.sleep(options.seconds)
            rows: dict[str, dict[str, float]] = {}
            for pid, name in names.items():
                spent = cpu_of_tree(pid) - before[pid]
                if name == "supervisor":
                    spent -= sum(cpu_of_tree(child) - before[child] for child in children_of(pid) if child in before)
                rows[name] = memory_of(pid) | {"cpu_percent": round(100 * spent / options.seconds, 2)}
        facts: dict[str, Any] = where(found)
    if options.json:
        print(json.dumps(facts | {"processes": rows}))
        return
    print(f"{'MiB':28} {'rss':>8} {'pss':>8} {'cpu %':>8}")
    for name, row in rows.items():
        print(f"{name:28} {row['rss']:>8} {row['pss']:>8} {row['cpu_percent']:>8}")


if __name__ == "__main__":
    main()
