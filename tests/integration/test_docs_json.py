"""The JSON that docs/reference/commands.md shows has the fields that the commands print."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import coordinator.cli.app
import workers.cli.app
from workers import Registry, Run, testing

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "commands.md").read_text()
APPS = {"coordinator": coordinator.cli.app.app, "workers": workers.cli.app.app}
runs = Registry()


@runs.handler
def report(run: Run, topic: str) -> str:
    return topic


def shown() -> dict[str, Any]:
    """Return the JSON example of each command."""
    sections = re.findall(r"^### (\w+ [\w ]+)$(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    blocks = {name: re.findall(r"^```json\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) for name, text in sections}
    return {name: json.loads(found[0]) for name, found in blocks.items() if found}


def assert_same_fields(found: Any, example: Any, where: str) -> None:
    if isinstance(example, dict):
        assert isinstance(found, dict), where
        assert set(found) == set(example), where
        for name in example:
            assert_same_fields(found[name], example[name], f"{where}.{name}")
    elif isinstance(example, list):
        assert isinstance(found, list), where
        if example and found:
            assert_same_fields(found[0], example[0], f"{where}[0]")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RUNS_URL", f"embedded://{tmp_path}/.runs")
    monkeypatch.setenv("RUNS_NAMESPACE", "testing")
    with testing.worker(runs, url=f"embedded://{tmp_path}/.runs"):
        yield


def printed(*words: str) -> Any:
    done = CliRunner().invoke(APPS[words[0]], [*words[1:], "--json"], catch_exceptions=False)
    return json.loads(done.stdout)


def test_commands_print_the_fields_that_the_page_shows(server: None) -> None:
    examples, tried = shown(), set()

    def same(*words: str) -> Any:
        name = next(one for one in examples if " ".join(words).startswith(one))
        tried.add(name)
        answer = printed(*words)
        assert_same_fields(answer, examples[name], name)
        return answer

    same("coordinator", "init")
    same("coordinator", "check")
    same("coordinator", "acl", "worker")
    id = same("coordinator", "enqueue", "nobody")["runs"][0]["id"]
    same("coordinator", "cancel", id)
    assert_same_fields(printed("coordinator", "revive", id), examples["coordinator cancel"], "revive")
    printed("coordinator", "cancel", id)
    assert_same_fields(printed("coordinator", "discard", id), examples["coordinator cancel"], "discard")
    same("coordinator", "pause", "--kind", "report")
    assert_same_fields(printed("coordinator", "unpause", "--kind", "report"), examples["coordinator pause"], "unpause")
    ended = printed("coordinator", "enqueue", "report", "topic=tides", "--wait")["runs"][0]
    assert set(ended) == {"id", "created", "status", "result"}
    same("coordinator", "schedule", "set", "nightly", "0 2 * * *", "report", "topic=tides")
    same("coordinator", "schedule", "pause", "nightly")
    same("coordinator", "schedule", "unpause", "nightly")
    same("coordinator", "schedule", "remove", "nightly")
    same("coordinator", "doctor")
    worker = printed("workers", "list")[0]
    same("workers", "drain", worker["id"])
    assert tried == set(examples) - {"workers roll"}, "a roll needs a supervisor: tests/e2e/test_roll.py"
