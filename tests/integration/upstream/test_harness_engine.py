"""The tests that pydantic-ai-harness has for durable engines and durable operations, run against ours.

The sdist of pydantic-ai itself has no tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.upstream.sdists import run_tests, unpacked_sdist

pytestmark = pytest.mark.matrix("downloads the sdist of another project")

# What only AWS Lambda has: its two threads and their event loop, the configuration of its steps, a journal that is ordered and also
# keeps failures, and steps that cannot be nested.
OF_LAMBDA = [
    "retire", "retirement", "loop", "unwind", "shutdown", "cancel_timeout", "config", "thread", "decorator", "fake_records",
    "nested", "sync_tool_calling_run_durable", "cancelled_step", "sdk_control_flow", "diverging", "recorded_step_failure",
    "never_starts", "liveness", "process_guard", "metadata_false",
]  # fmt: skip


@pytest.mark.timeout(900)
def test_the_tests_of_the_engine_for_lambda_pass_on_runs(tmp_path: Path) -> None:
    source = unpacked_sdist("pydantic-ai-harness", tmp_path)
    passed = run_tests(source, "lambda_on_runs", ["tests/aws_lambda"], OF_LAMBDA)
    assert passed >= 45, "most tests of the engine are about every engine"


# The files with tests of durable operations of capabilities: spending, summaries and steps, which a replay must not repeat.
OF_OPERATIONS = [
    "tests/spend/test_durable.py",
    "tests/compaction/test_durable_summarizing_compaction.py",
    "tests/step_persistence/test_durable_step_persistence.py",
]


# This version of pydantic-ai, without any durable engine too, does not show summaries in `all_messages()`, as the test expects.
OF_OLDER_VERSIONS = ["replays_the_recorded_summary"]


@pytest.mark.timeout(900)
def test_the_tests_of_durable_operations_of_capabilities_pass_on_runs(tmp_path: Path) -> None:
    source = unpacked_sdist("pydantic-ai-harness", tmp_path)
    passed = run_tests(source, "dbos_on_runs", OF_OPERATIONS, OF_OLDER_VERSIONS)
    assert passed >= 13, "all other tests of these files pass"
