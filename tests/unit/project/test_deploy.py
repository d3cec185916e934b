"""The files under docs/deploy are valid for the tools that read them, and their numbers match the code."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import coordinator.cli.app
import workers.cli.app
from coordinator.config import Settings
from coordinator.services import daemon
from workers.process import membership
from workers.process.options import WorkerOptions
from workers.process.stopping import drain, stops
from workers.supervisor import child_pool

DEPLOY = Path(__file__).parents[3] / "docs" / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
DEFAULTS = WorkerOptions(Settings("redis://localhost"))
GRACE, LEASE = DEFAULTS.grace, DEFAULTS.lease
LONGEST_STOP = GRACE + child_pool.EXIT_TIMEOUT + LEASE + daemon.LAST_TICK


class Unit(configparser.RawConfigParser):
    """A parser for systemd units that keeps the case of names."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=True)
        self.read_string(path.read_text())

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def deployment(name: str) -> dict[str, Any]:
    (found,) = [d for d in documents("kubernetes.yaml") if d["kind"] == "Deployment" and d["metadata"]["name"] == name]
    return dict(found["spec"])


def pod(name: str) -> dict[str, Any]:
    return dict(deployment(name)["template"]["spec"])


def container(name: str) -> dict[str, Any]:
    (only,) = pod(name)["containers"]
    return dict(only)


def service(name: str) -> dict[str, Any]:
    return dict(documents("compose.yaml")[0]["services"][name])


def command_lines() -> dict[str, list[str]]:
    """Return every command in the deployment files, by its location."""
    found = {unit.name: Unit(unit)["Service"]["ExecStart"].split() for unit in UNITS}
    found |= {f"kubernetes {name}": container(name)["command"] for name in ("workers", "coordinator")}
    return found | {"compose": service("workers")["command"]}


def option(words: Sequence[str], name: str) -> str:
    return words[words.index(name) + 1]


# ---- valid files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", command_lines())
def test_every_command_and_option_in_the_deployment_files_exists(where: str) -> None:
    program, name, *words = command_lines()[where]
    app = {"workers": workers.cli.app.app, "coordinator": coordinator.cli.app.app}[Path(program).name]
    known = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]  # a group has them
    with known.make_context(name, list(words), resilient_parsing=False) as context:
        assert context.params["health"] is not None, "what is deployed can be asked how it is"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: str(path.name))
def test_systemd_accepts_its_units(path: Path, tmp_path: Path) -> None:
    unit = Unit(path)
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    if (analyze := shutil.which("systemd-analyze")) is None:
        return
    there = re.sub(r"/opt/app/\.venv/bin", str(Path(sys.executable).parent), path.read_text())
    (tmp_path / path.name).write_text(there)
    done = subprocess.run([analyze, "verify", "--man=no", str(tmp_path / path.name)], capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if path.name in line]
    assert (ours, done.returncode) == ([], 0)


@pytest.mark.parametrize("name", ["workers", "coordinator"])
def test_deployment_selects_its_own_pods_and_probes_the_open_port(name: str) -> None:
    spec = deployment(name)
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    (port,) = container(name)["ports"]
    assert str(port["containerPort"]) == option(container(name)["command"], "--health"), "on all interfaces"
    paths = {p: container(name)[p]["httpGet"] for p in container(name) if p.endswith("Probe")}
    assert {probe["port"] for probe in paths.values()} == {port["name"]}
    assert (paths["livenessProbe"]["path"], paths["readinessProbe"]["path"]) == ("/live", "/ready")


# ---- the numbers -----------------------------------------------------------------------------------------------------


def test_deployment_waits_longer_for_a_fleet_than_its_shutdown_may_take() -> None:
    waits = {
        "systemd": float(Unit(DEPLOY / "runs-workers.service")["Service"]["TimeoutStopSec"]),
        "kubernetes": float(pod("workers")["terminationGracePeriodSeconds"]),
        "compose": float(service("workers")["stop_grace_period"].removesuffix("s")),
    }
    assert {name: wait for name, wait in waits.items() if not LONGEST_STOP + 10 <= wait <= 2 * LONGEST_STOP} == {}


def test_child_process_stops_by_itself_before_its_supervisor_kills_it() -> None:
    """The limit covers a claim in flight, cancelled handlers, handlers that ignore it, and two server calls without a reply."""
    handlers = drain.CLAIM_ANSWER_SECONDS + 3 * stops.CLEAN_UP_SECONDS
    assert handlers + 2 * membership.LEAVE_SECONDS < child_pool.EXIT_TIMEOUT


def test_deployment_waits_for_the_last_tick_of_a_coordinator() -> None:
    units = float(Unit(DEPLOY / "runs-coordinator.service")["Service"]["TimeoutStopSec"])
    assert min(units, float(pod("coordinator")["terminationGracePeriodSeconds"])) >= 2 * daemon.LAST_TICK


def test_probe_does_not_kill_a_process_that_its_supervisor_would_restart() -> None:
    probe = container("workers")["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= LEASE


@pytest.mark.parametrize("where", [name for name in command_lines() if "coordinator" not in name])
def test_documented_grace_and_lease_are_the_defaults(where: str) -> None:
    words = command_lines()[where]
    assert (float(option(words, "--grace")), float(option(words, "--lease"))) == (GRACE, LEASE)


def test_command_has_the_same_defaults() -> None:
    start = typer.main.get_command(workers.cli.app.app).commands["start"]  # type: ignore[attr-defined]  # a group has them
    given = {parameter.name: parameter.default for parameter in start.params}
    assert (given["grace"], given["lease"]) == (GRACE, LEASE)


def test_table_in_the_docs_has_the_same_values() -> None:
    text = (DEPLOY / "README.md").read_text()
    rows = [float(number) for number in re.findall(r"^\| [^|]+ \| \**(\d+)\** \|$", text, re.MULTILINE)]
    assert rows == [GRACE, child_pool.EXIT_TIMEOUT, LEASE, daemon.LAST_TICK, LONGEST_STOP]


def test_command_that_cannot_succeed_is_not_retried_forever() -> None:
    assert {Unit(path)["Service"]["RestartPreventExitStatus"] for path in UNITS} == {"2"}
