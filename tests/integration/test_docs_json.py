"""The JSON that docs/reference/commands.md shows has the fields that the commands print."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import coordinator.cli.app
import workers.cli.app
from coordinator import Client
from tests.waiting import wait_until
from workers import Registry, Run, testing

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "commands.md").read_text()
APPS = {"coordinator": coordinator.cli.app.app, "workers": workers.cli.app.app}
runs = Registry()


@runs.handler
def report(run: Run, topic: str) -> str:
    run.emit({"delta": topic})
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
    same("coordinator", "send", id, "approval", "ok:=true")
    same("coordinator", "grant", id, "--usd", "5")
    same("coordinator", "cancel", id)
    assert_same_fields(printed("coordinator", "revive", id), examples["coordinator cancel"], "revive")
    printed("coordinator", "cancel", id)
    assert_same_fields(printed("coordinator", "discard", id), examples["coordinator cancel"], "discard")
    same("coordinator", "pause", "--kind", "report")
    assert_same_fields(printed("coordinator", "unpause", "--kind", "report"), examples["coordinator pause"], "unpause")
    ended = printed("coordinator", "enqueue", "report", "topic=tides", "--wait")["runs"][0]
    assert set(ended) == {"id", "created", "status", "result"}
    same("coordinator", "stream", ended["id"])
    same("coordinator", "schedule", "set", "nightly", "0 2 * * *", "report", "topic=tides")
    same("coordinator", "schedule", "pause", "nightly")
    same("coordinator", "schedule", "unpause", "nightly")
    same("coordinator", "schedule", "remove", "nightly")
    same("coordinator", "limit", "set", "research", "--group", "acme", "--at-once", "2")
    same("coordinator", "limit", "list")
    same("coordinator", "limit", "remove", "research", "--group", "acme")
    same("coordinator", "rate", "set", "openai", "--rate", "90000/min", "--burst", "10000")
    same("coordinator", "rate", "list")
    same("coordinator", "rate", "remove", "openai")
    same("coordinator", "doctor")
    worker = printed("workers", "list")["workers"][0]
    same("workers", "drain", worker["id"])
    same("coordinator", "events", "--limit", "1")
    assert tried == set(examples) - {"workers roll"}, "a roll needs a supervisor: tests/e2e/test_roll.py"


VIEWS = (Path(__file__).parents[2] / "docs" / "reference" / "views.md").read_text()


def fields_of(heading: str) -> set[str]:
    """Return the fields that a table of the page about views documents."""
    text = re.split(rf"^##+ {heading}$", VIEWS, flags=re.MULTILINE)[1]
    table = re.split(r"^##", text, maxsplit=1, flags=re.MULTILINE)[0]
    return {
        name for cell in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    }


def test_lists_are_objects_whose_fields_the_page_about_views_has(server: None) -> None:
    printed("coordinator", "enqueue", "report", "topic=tides", "--wait")
    printed("coordinator", "enqueue", "nobody", "--delay", "100")
    printed("coordinator", "schedule", "set", "nightly", "0 2 * * *", "report", "topic=tides")
    done, later = sorted(printed("coordinator", "runs")["runs"], key=lambda run: str(run["status"]))
    assert set(done) == set(later) == fields_of("RunView") | {"attempt"}, "a field without a value is null"
    assert later["ended"] is None
    assert set(done["counters"]) == {"life", "attempt", "epoch", "releases", "recoveries", "strikes", "failures"}
    assert set(printed("coordinator", "show", later["id"])) == set(later) | {"result"}
    (dry,) = printed("coordinator", "cancel", later["id"], "--dry-run")["runs"]
    assert set(dry) == set(later)
    assert set(printed("workers", "list")["workers"][0]) == fields_of("WorkerView")
    assert set(printed("coordinator", "schedule", "list")["schedules"][0]) == fields_of("ScheduleView")
    assert set(printed("coordinator", "status")) == fields_of("Overview")
    assert printed("coordinator", "runs", "--kind", "nothing") == {"runs": []}


def test_an_error_is_one_json_object_on_stderr(server: None) -> None:
    for words, code, kind in (
        (["show", "0" * 20 + "-00"], 3, "NotFound"),
        (["show", "nonsense"], 2, "BadName"),
        (["runs", "--colour"], 2, "UsageError"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "coordinator.cli", *words, "--json"], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (code, "")
        error = json.loads(done.stderr)["error"]
        assert error["type"] == kind
        assert error["message"]


def test_the_dry_run_of_a_cancelled_tree_lists_the_runs_below(server: None) -> None:
    with Client() as client:
        root = client.enqueue("nobody", delay=100)
        child = client.enqueue("nobody", delay=100, parent=root.id)
        grandchild = client.enqueue("nobody", delay=100, parent=child.id)
        client.enqueue("nobody", delay=100)
        tree = [root.id, child.id, grandchild.id]
        assert [run["id"] for run in printed("coordinator", "cancel", root.id, "--tree", "--dry-run")["runs"]] == tree
        assert [run["id"] for run in printed("coordinator", "cancel", root.id, "--dry-run")["runs"]] == [root.id]
        assert {handle.view().status for handle in (root, child, grandchild)} == {"delayed"}


@pytest.mark.parametrize("program", ["coordinator", "workers"])
def test_every_command_has_h_and_the_programs_have_completion(program: str) -> None:
    for words in (["-h"], ["list" if program == "workers" else "runs", "-h"]):
        done = CliRunner().invoke(APPS[program], words)
        assert (done.exit_code, "Usage" in done.stdout) == (0, True), words
    assert "--install-completion" in CliRunner().invoke(APPS[program], ["--help"]).stdout


def test_a_misspelt_kind_is_answered_with_the_kind_that_is_meant(server: None) -> None:
    done = CliRunner().invoke(APPS["coordinator"], ["enqueue", "reprot"], catch_exceptions=False)
    assert "did you mean 'report'?" in done.stderr


def test_the_list_of_schedules_names_the_time_zone_of_the_next_fire_time(server: None) -> None:
    printed("coordinator", "schedule", "set", "nightly", "0 2 * * *", "report", "topic=a", "--tz", "Europe/Berlin")
    with Client() as client:
        wait_until(lambda: client.schedules()[0].next is not None, "a coordinator to compute the next fire time")
    done = CliRunner().invoke(APPS["coordinator"], ["schedule", "list"], catch_exceptions=False)
    assert "02:00:00 Europe/Berlin (in " in done.stdout
