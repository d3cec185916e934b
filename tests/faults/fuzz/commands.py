"""Both commands with random arguments: they end with an exit code from 0 to 4, and never with a traceback."""

from __future__ import annotations

import contextlib
import io
import random
import sys
from unittest import mock

from typer.main import get_command

from coordinator.cli.app import app as coordinator_app
from coordinator.cli.app import main as coordinator_main
from workers.cli.app import app as workers_app
from workers.cli.app import main as workers_main

# Commands that run until they are stopped. `workers start` ends, because it only gets registries that can't be loaded.
ENDLESS = {"coordinator": ("start", "web", "top", "stream"), "workers": ("dev",)}
COMMANDS = {
    program: (*(name for name in get_command(app).commands if name not in ENDLESS[program]), "nonsense", "")  # type: ignore[attr-defined]  # a group has them
    for program, app in (("coordinator", coordinator_app), ("workers", workers_app))
}
GROUPS = ("schedule", "limit", "rate")  # commands that have subcommands
SUBCOMMANDS = ("set", "list", "pause", "unpause", "remove", "")
OPTIONS = (
    "--json",
    "--log-json",
    "--url",
    "--namespace",
    "--timeout",
    "--status",
    "--kind",
    "--queue",
    "--since",
    "--limit",
    "--stuck",
    "--yes",
    "--dry-run",
    "--from-start",
    "--inputs",
    "--count",
    "--delay",
    "--priority",
    "--key",
    "--tz",
    "--partitions",
    "--durability",
    "--repair",
    "--fleet",
    "--at-once",
    "--tree",
    "--group",
    "--rate",
    "--burst",
    "--usd",
    "--forget-effect",
    "--help",
    "--version",
    "--nonsense",
    "-x",
    "--",
)
VALUES = (
    "",
    "0",
    "-1",
    "1",
    "99999999999999999999",
    "1e400",
    "nan",
    "inf",
    "x",
    "ü\0",
    "\ud800",
    "a=b",
    "a:=1",
    "a:={",
    ":=",
    "=",
    "[]",
    "{}",
    '{"a": NaN}',
    '{"a": 1e999}',
    "[" * 2000,
    "@/nowhere",
    "@/",
    "-",
    "queued",
    "running",
    "30s",
    "1d",
    "every 0s",
    "every 1s",
    "* * * * *",
    "61 * * * *",
    "Europe/Berlin",
    "../etc",
    "runs",
    "k",
    "redis://",
    "redis://localhost:1/0",
    "memory://x",
    "unix://",
    "http://x",
    "redis://u:secret@127.0.0.1:1/x",
    "01hf7yatnn1az14bjyrp-00",
    "01hf7yatnn1az14bjyrp-99",
    "x" * 600,
    "none",
    "local",
    "synced",
    "no.module:runs",
    "json:dumps",
    ":",
)


def words(dice: random.Random) -> tuple[str, list[str]]:
    program = dice.choice(["coordinator", "coordinator", "coordinator", "workers"])
    command = dice.choice(COMMANDS[program])
    found = [command] if command else []
    if command in GROUPS:
        found.append(dice.choice(SUBCOMMANDS))
    if command == "start":
        found.append(dice.choice(["no.module:runs", "json:dumps", "json", ":", "", "json:nothing", "-x"]))
    found += [dice.choice([*VALUES, *VALUES, *OPTIONS]) for _ in range(dice.randrange(5))]
    return program, [word for word in found if word]


def bad(url: str, seed: int) -> str:
    dice = random.Random(seed)
    return judged(url, *words(dice), dice.choice(VALUES))


def judged(url: str, program: str, given: list[str], typed: str = "") -> str:
    """Return what is wrong with the end of one call, or an empty string."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="replace")
    entry = coordinator_main if program == "coordinator" else workers_main
    environment = {"RUNS_URL": url, "RUNS_TIMEOUT": "1", "RUNS_NAMESPACE": "fuzz-commands"}
    with (
        mock.patch.object(sys, "argv", [program, *given]),
        mock.patch.object(sys, "stdin", io.StringIO(typed)),
        mock.patch.dict("os.environ", environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        try:
            entry()
        except SystemExit as ended:
            code = ended.code
        except BaseException as error:  # noqa: BLE001  # Any error is a finding.
            return f"{program} {given} raised {type(error).__name__}: {error}"
    out.seek(0)
    said = out.read()
    if code not in (0, 1, 2, 3, 4, None):
        return f"{program} {given} ended with {code!r}: {said[-300:]}"
    if "Traceback" in said:
        return f"{program} {given} printed a traceback: {said[-300:]}"
    if "secret" in said:
        return f"{program} {given} printed a password"
    return ""
