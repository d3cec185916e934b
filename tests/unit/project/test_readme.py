"""The code, the diagram and the commands in the README, the tutorial and the list of commands are correct."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import coordinator.cli.app
import workers.cli.app
from coordinator.model.run import MOVES

ROOT = Path(__file__).parents[3]
FIRST = ROOT / "examples" / "first"
README = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs" / "start" / "first-program.md").read_text()
COMMANDS = (ROOT / "docs" / "reference" / "commands.md").read_text()


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def programs(page: str = TUTORIAL) -> dict[str, str]:
    """Return the Python blocks of a page by the file name in their first line."""
    return {re.findall(r"[\w.]+", text)[0]: text for text in blocks("python", page)}


def test_programs_of_the_readme_are_those_of_the_examples() -> None:
    assert set(programs()) == {"app.py", "produce.py", "test_app.py"}
    for name in ("app.py", "produce.py"):
        assert programs()[name] == (FIRST / name).read_text(), f"the tutorial and examples/first/{name} differ"


def test_readme_shows_the_handlers_of_the_example() -> None:
    assert programs(README) == {"app.py": (FIRST / "app.py").read_text()}


@pytest.mark.matrix("scripts/check runs mypy, too")
def test_programs_of_the_readme_type_check(tmp_path: Path) -> None:
    for name, text in programs().items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", *programs()],
        cwd=tmp_path, env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_readme_test_example_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("app.py", "test_app.py"):
        (tmp_path / name).write_text(programs()[name])
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("app", "test_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    shown = importlib.import_module("test_app")
    tests = [value for name, value in vars(shown).items() if name.startswith("test_")]
    assert len(tests) == 1
    tests[0]()
    for name in ("app", "test_app"):
        del sys.modules[name]


def test_state_diagram_matches_the_table_of_moves() -> None:
    (diagram,) = blocks("mermaid")
    expected = {(before or "[*]", after): frozenset(by) for (before, after), by in MOVES.items()}
    arrows = re.findall(r"^ +(\S+) --> (\w+): (.+)$", diagram, re.MULTILINE)
    assert {(before, after): frozenset(by.split(", ")) for before, after, by in arrows} == expected


def listed() -> list[str]:
    """Return the lines of the list of commands."""
    (found,) = [text for text in blocks("text", COMMANDS) if "enqueue KIND" in text]
    return found.splitlines()


def commands(program: str, app: typer.Typer) -> set[str]:
    return {f"{program} {name}" for name in typer.main.get_command(app).commands}  # type: ignore[attr-defined]  # a group has them


def test_readme_lists_exactly_the_existing_commands() -> None:
    shown = {" ".join(line.split()[:2]) for line in listed()}
    assert shown == commands("coordinator", coordinator.cli.app.app) | commands("workers", workers.cli.app.app)


@pytest.mark.parametrize("line", listed(), ids=lambda line: " ".join(line.split()[:2]))
def test_every_option_named_in_the_readme_exists(line: str) -> None:
    program, command = line.split()[:2]
    app = {"coordinator": coordinator.cli.app.app, "workers": workers.cli.app.app}[program]
    group = typer.main.get_command(app)
    found = group.commands[command]  # type: ignore[attr-defined]  # a group has them
    known = {name for one in (found, *getattr(found, "commands", {}).values()) for p in one.params for name in p.opts}
    assert set(re.findall(r"--[a-z-]+", line)) <= known


def test_readme_is_short_and_contains_no_local_paths() -> None:
    assert len(README.splitlines()) <= 200
    assert re.findall(r"(?<![\w.])/(?:home|root|tmp|work|Users)/\S*", README) == []
