"""The tests that pydantic-ai-harness has for a durable engine, run against ours.

They come from the sdist of the installed version, which pip downloads when the test runs. Nothing of it is in this repository.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

pytestmark = pytest.mark.matrix("downloads the sdist of another project")

HERE = Path(__file__).parent
# What only AWS Lambda has: its two threads and their event loop, the configuration of its steps, a journal that is ordered and also
# keeps failures, and steps that cannot be nested.
OF_LAMBDA = [
    "retire", "retirement", "loop", "unwind", "shutdown", "cancel_timeout", "config", "thread", "decorator", "fake_records",
    "nested",     "sync_tool_calling_run_durable", "cancelled_step", "sdk_control_flow", "diverging", "recorded_step_failure",
    "never_starts", "liveness", "process_guard", "metadata_false",
]  # fmt: skip


def unpacked_sdist(package: str, directory: Path) -> Path:
    """Download the sdist of the installed version of a package, and return the folder of its content."""
    wanted = f"{package}=={version(package)}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        ":all:",
        "-d",
        str(directory),
        wanted,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    archives = list(directory.glob("*.tar.gz"))
    if not archives:
        reason = f"the sdist of {wanted} can't be downloaded: {done.stderr[-500:]}"
        pytest.fail(reason) if "CI" in os.environ else pytest.skip(reason)
    with tarfile.open(archives[0]) as archive:
        archive.extractall(directory, filter="data")
    return next(path for path in directory.iterdir() if path.is_dir())


@pytest.mark.timeout(600)
def test_the_tests_of_the_engine_for_lambda_pass_on_runs(tmp_path: Path) -> None:
    source = unpacked_sdist("pydantic-ai-harness", tmp_path)
    settings = tmp_path / "pytest.ini"
    settings.write_text("[pytest]\n")
    command = [
        sys.executable, "-m", "pytest", "-c", str(settings), "--rootdir", str(source), "--noconftest", "-q",
        "-p", "lambda_on_runs", "-p", "no:valkey", "-p", "no:cacheprovider", "-p", "no:xdist",
        "tests/aws_lambda", "-k", " and ".join(f"not {word}" for word in OF_LAMBDA),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=source, env=os.environ | {"PYTHONPATH": str(HERE)}, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout[-1000:]
    assert int(passed[1]) >= 45, "most tests of the engine are about every engine"
