"""The public API is typed: both type checkers report every wrong call and accept every right one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TYPING = ROOT / "tests" / "typing"
FILES = ("agent.py", "good_calls.py", "producer.py", "wrong_calls.py")

Errors = set[tuple[str, int]]


def expected() -> Errors:
    return {
        (name, number)
        for name in FILES
        for number, line in enumerate((TYPING / name).read_text().splitlines(), 1)
        if line.endswith("# error")
    }


def output_of(*command: str) -> str:
    environment = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def mypy_errors() -> Errors:
    paths = [str(TYPING / name) for name in FILES]
    lines = output_of(
        "mypy", "--strict", "--config-file=", "--follow-imports=silent", "--output=json", *paths
    ).splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return {(Path(one["file"]).name, one["line"]) for one in found if one["severity"] == "error"}


def pyright_errors() -> Errors:
    paths = [str(TYPING / name) for name in FILES]
    report = json.loads(output_of("pyright", "--outputjson", "--pythonpath", sys.executable, *paths))
    assert report["summary"]["filesAnalyzed"] == len(FILES)
    return {
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1)
        for one in report["generalDiagnostics"]
        if one["severity"] == "error"
    }


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("checker", [mypy_errors, pyright_errors])
def test_each_wrong_call_is_a_type_error_and_nothing_else_is(checker):
    assert checker() == expected()


def test_the_file_of_wrong_calls_is_not_empty():
    assert len(expected()) > 20
