"""Measure how long `coordinator doctor` takes to check and to repair a large namespace, and the longest command of each.

It uses an embedded server of its own. The benchmark reports figures and never fails because of them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import redis

from coordinator import Client
from coordinator.config import Settings
from coordinator.doctor.examiner import examine
from coordinator.store import scripts
from coordinator.store import server_checks as checks
from coordinator.store.transport.connections.embedded_server import attach
from coordinator.store.transport.wire import Wire, drive

NAMESPACE = "large"


def examined(admin: redis.Redis, url: str, *, repair: bool) -> dict[str, object]:
    admin.slowlog_reset()
    settings = Settings(url, NAMESPACE)
    wire = Wire(settings.address)
    began, spent = time.monotonic(), cpu_of(admin)
    report = drive(wire, examine(drive(wire, checks.enter(settings)), repair=repair))
    took = time.monotonic() - began
    wire.close()
    slow = sorted(
        ((entry["duration"] / 1000, name_of(entry["command"])) for entry in admin.slowlog_get(10_000)), reverse=True
    )
    what = "repair" if repair else "look"
    return {
        f"{what}_s": round(took, 1), f"{what}_found": report.found, f"{what}_healthy": report.healthy,
        f"{what}_server_cpu_s": round(cpu_of(admin) - spent, 1), f"{what}_longest_command_ms": slow[0][0] if slow else 0.0,
        f"{what}_longest_command": slow[0][1] if slow else "",
        f"{what}_commands_above_5_ms": sum(ms > 5 for ms, _ in slow),
        f"{what}_commands_above_50_ms": sum(ms > 50 for ms, _ in slow),
    }  # fmt: skip


def name_of(command: bytes) -> str:
    """Return the name of the script that a command calls, or the name of the command if it calls none by its hash."""
    words = command.decode(errors="replace").split()
    names = {script.sha: script.name for script in scripts.SCRIPTS}
    return names.get(words[1], words[1]) if words[0] == "EVALSHA" else words[0]


def cpu_of(admin: redis.Redis) -> float:
    info = admin.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def measure(runs: int, damaged: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as directory, attach(Path(directory)) as server:
        admin = redis.Redis.from_url(server.url)
        admin.config_set("slowlog-log-slower-than", 1000)
        admin.config_set("slowlog-max-len", 10_000)
        began = time.monotonic()
        with Client(server.url, NAMESPACE) as client:
            client.enqueue_many((("nothing", {"number": number}) for number in range(runs)))
        found: dict[str, object] = {"runs": runs, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
        found["enqueued_in_s"] = round(time.monotonic() - began, 1)
        found |= examined(admin, server.url, repair=False)
        if damaged:
            # These runs are queued, but in no ready queue.
            admin.zpopmin(f"{{{NAMESPACE}:0}}:ready:default:nothing@0", damaged)
            found["damaged"] = damaged
            found |= examined(admin, server.url, repair=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--damaged", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.runs, options.damaged)
    if options.json:
        print(json.dumps(found))
        return
    width = max(len(name) for name in found)
    for name, value in found.items():
        print(f"{name:{width}}  {value}")


if __name__ == "__main__":
    main()
