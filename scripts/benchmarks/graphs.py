"""Compare checkpointers of LangGraph in the same minute: bytes sent for a chat, and the time of put and get, in interleaved rounds.

langgraph-checkpoint-redis needs the modules RediSearch and RedisJSON of the server, and langgraph-checkpoint-postgres needs an
installed PostgreSQL. Where they are missing, the report says so. `--redis` names a server that has the modules and holds nothing.

    scripts/bench graphs [--turns N] [--rounds N] [--redis URL] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import postgres
from venvs import python_of

from coordinator.store.transport.connections.embedded_server import attach

SAVERS = ("ours", "redis", "postgres", "sqlite", "memory")
MODES = ("async", "exit")


def measure(saver: str, url: str, turns: int, durability: str) -> dict[str, Any]:
    python = sys.executable if saver == "ours" else str(python_of("langgraph"))
    program = Path(__file__).with_name("peers") / "graphs_app.py"
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [python, program, saver, url, str(turns), directory, durability],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
    if done.returncode:
        return {"problem": done.stderr.strip()[-200:]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


@contextmanager
def server_of(saver: str, redis_url: str) -> Iterator[str]:
    """Yield the URL of a server for a checkpointer."""
    with tempfile.TemporaryDirectory() as directory:
        if saver == "postgres":
            with postgres.started(Path(directory)) as url:
                yield url
        elif saver == "redis" and redis_url:
            yield redis_url
        else:
            with attach(Path(directory)) as server:
                yield server.url


def combine(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    good = [one for one in rounds if "problem" not in one]
    if not good:
        return rounds[0]
    found = {name: statistics.median(one[name] for one in good) for name in good[0]}
    return found | {"times_the_transcript": round(found["bytes"] / found["transcript"], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--redis", default="", help="the URL of a server with RediSearch and RedisJSON")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, Any]]] = {f"{saver} {mode}": [] for mode in MODES for saver in SAVERS}
    for _ in range(options.rounds):
        for mode in MODES:
            for saver in SAVERS:
                try:
                    with server_of(saver, options.redis) as url:
                        found = measure(saver, url, options.turns, mode)
                except FileNotFoundError as error:
                    found = {"problem": str(error)}
                rounds[f"{saver} {mode}"].append(found)
    figures = {name: combine(some) for name, some in rounds.items()}
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, row in figures.items():
        print(f"{name:14}", "  ".join(f"{key}={value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
