"""Count the commands that an idle system sends: two fleets of one worker process each, and a coordinator, without any run.

    scripts/bench idle [--seconds S] [--partitions N] [--lease S] [--details] [--json]

Two counts: the commands that the processes send (from MONITOR; a script is one command), and the calls that the server counts
(`calls` of INFO commandstats), which include the commands inside scripts. The counts are exact: the speed of the machine does not
change them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import redis
from server import BenchServer, server

from coordinator.store import scripts

NAMESPACE = "idle"
FLEETS = ("one", "two")
SETTLE = 12.0  # seconds: the processes have joined, and rounds of waiting for bells that began at the start have ended
GOAL = 12.0
APP = "from workers import Registry\nruns = Registry()\n\n@runs.handler\nasync def nothing(run):\n    return None\n"
OWN = {"info", "monitor", "zcard", "hello", "client", "client|setinfo", "client|setname", "config"}


@contextlib.contextmanager
def system(url: str, lease: float, directory: Path) -> Iterator[None]:
    (directory / "idle_app.py").write_text(APP)
    programs = Path(sys.executable).parent
    common = ["--url", url, "--namespace", NAMESPACE, "--log-level", "WARNING"]
    fleets = [
        [programs / "workers", "start", "idle_app:runs", "--fleet", name, "--lease", str(lease)] for name in FLEETS
    ]
    commands = [*(command + common for command in fleets), [programs / "coordinator", "start", *common]]
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    processes = [subprocess.Popen(command, cwd=directory, env=environment) for command in commands]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)


def calls(admin: redis.Redis) -> Counter[str]:
    found = admin.info("commandstats")
    names = {name.removeprefix("cmdstat_"): int(value["calls"]) for name, value in found.items()}
    return Counter({name: count for name, count in names.items() if name not in OWN})


class Sent:
    """The commands that clients send, counted by their name or the name of their script, between `begin` and `end`."""

    def __init__(self, port: int) -> None:
        self.counts: Counter[str] = Counter()
        self._names = {script.sha: script.name for script in scripts.SCRIPTS}
        self._counting = False
        self._client = redis.Redis(port=port, protocol=2)
        self._monitor = self._client.monitor()
        threading.Thread(target=self._listen, daemon=True).start()

    def begin(self) -> None:
        self._counting = True

    def end(self) -> None:
        self._counting = False

    def _listen(self) -> None:
        with self._monitor as monitor, contextlib.suppress(redis.RedisError, ValueError, OSError):
            for line in monitor.listen():
                words = line["command"].split()
                if not self._counting or line["client_type"] == "lua" or words[0].lower() in OWN:
                    continue
                sha = words[1] if words[0].lower().startswith("evalsha") else ""
                key = words[1].rpartition("}")[2] if len(words) > 1 else ""
                self.counts[self._names.get(sha) or f"{words[0].lower()} {key}".strip()] += 1


def measure(host: BenchServer, options: argparse.Namespace, directory: Path) -> dict[str, object]:
    if options.partitions != 1:
        init = [Path(sys.executable).parent / "coordinator", "init", "--partitions", str(options.partitions)]
        subprocess.run([*init, "--url", host.url, "--namespace", NAMESPACE], check=True, stdout=subprocess.DEVNULL)
    with system(host.url, options.lease, directory):
        workers = f"{{{NAMESPACE}:0}}:workers"
        until = time.monotonic() + 60
        while int(host.admin.zcard(workers)) < len(FLEETS):
            if time.monotonic() > until:
                raise SystemExit("idle: the workers did not start")
            time.sleep(0.05)
        sent = Sent(host.port)
        time.sleep(SETTLE)
        before = calls(host.admin)
        sent.begin()
        began = time.monotonic()
        time.sleep(options.seconds)
        sent.end()
        seconds = time.monotonic() - began
        counted = calls(host.admin) - before
    return {
        "sent_per_s": round(sent.counts.total() / seconds, 2),
        "calls_per_s": round(counted.total() / seconds, 2),
        "sent": {name: round(count / seconds, 2) for name, count in sent.counts.most_common()},
        "calls": {name: round(count / seconds, 2) for name, count in counted.most_common()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--lease", type=float, default=15.0)
    parser.add_argument("--details", action="store_true", help="list each command")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with server() as host, tempfile.TemporaryDirectory() as directory:
        found = measure(host, options, Path(directory))
    if options.json:
        print(json.dumps(found))
        return
    print(f"sent by the processes, a script as one command:  {found['sent_per_s']:6.2f} per second")
    print(
        f"counted by the server, with those in scripts:    {found['calls_per_s']:6.2f} per second   at most {GOAL:.0f}"
    )
    if options.details:
        for part in ("sent", "calls"):
            print(f"\n{part}:")
            for name, count in found[part].items():  # type: ignore[attr-defined]  # a dict
                print(f"  {count:6.2f}  {name}")


if __name__ == "__main__":
    main()
