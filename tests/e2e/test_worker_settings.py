"""The options --url and --namespace of `workers start` reach the clients inside handlers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator import Client
from tests.e2e.processes import ROOT, stop
from tests.servers import Server

APP = "tests.e2e.child_runs_app:runs"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("variable", ["RUNS_URL", "REDIS_URL"])
def test_children_go_to_the_server_of_the_workers_options(
    valkey_server: Server, namespace: str, tmp_path: Path, variable: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("RUNS_URL", "REDIS_URL")}
    environment |= {variable: "redis://127.0.0.1:1/0", "RUNS_NAMESPACE": "elsewhere"}
    command = [
        str(Path(sys.executable).parent / "workers"), "start", APP, "--url", valkey_server.url, "--namespace", namespace,
    ]  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        fleet = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        with Client(valkey_server.url, namespace) as client:
            for place in ("handler", "module", "thread"):
                child = client.enqueue(place).result(timeout=60)
                assert client.handle(child).result(timeout=60) == "ok"
                assert client.handle(child).view().status == "completed"
    finally:
        stop(fleet)
