"""The tests that the OpenAI Agents SDK has for sessions, run against `RunSession`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.upstream.sdists import run_tests, unpacked_sdist

pytestmark = pytest.mark.matrix("downloads the sdist of another project")

# What only SQLite has: connections, locks and damaged rows; and a constructor that takes settings as a dict.
OF_SQLITE = [
    "corrupt", "sql_injection", "connection", "lock", "rolls_back", "commit", "closed", "mutation", "retired", "reaps",
    "dictionary",
]  # fmt: skip


@pytest.mark.timeout(900)
def test_the_session_tests_of_the_sdk_pass_on_runs(tmp_path: Path) -> None:
    source = unpacked_sdist("openai-agents", tmp_path)
    passed = run_tests(source, "sessions_on_runs", "tests/memory/test_session.py", OF_SQLITE)
    assert passed >= 30, "most tests of sessions are about every session"
