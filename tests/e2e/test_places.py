"""One promise and one part of the contract on each kind of server that the environment can select.

This is the short form. For the long form (see docs/operations/servers.md), run tests/e2e and tests/contract with
RUNS_TEST_TOPOLOGY, RUNS_TEST_UNREST and RUNS_TEST_RIGHTS.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.e2e.processes import ROOT

pytestmark = pytest.mark.matrix("a topology of their own")

PROMISE = "tests/e2e/test_promises.py::test_resumed_run_sees_at_least_the_last_acknowledged_checkpoint"


def suite(*words: str, **environment: str) -> str:
    """Run some tests with these environment variables, check that they pass, and return their output.

    Remove everything they leave behind.
    """
    named = {name: text for name, text in os.environ.items() if not name.startswith(("RUNS_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-rP", "-p", "no:cacheprovider", "--timeout", "150", *words]
    running = subprocess.Popen(
        command, cwd=ROOT, env=named | environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    with running:
        try:
            said, _ = running.communicate(timeout=170)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, said[-8000:]
    return said


@pytest.mark.timeout(180)
@pytest.mark.parametrize("topology", ["cluster", "sentinel"])
def test_promise_holds_for_acl_users_through_a_failover(topology: str) -> None:
    said = suite(PROMISE, RUNS_TEST_TOPOLOGY=topology, RUNS_TEST_UNREST="yes", RUNS_TEST_RIGHTS="yes")
    assert "unrest: a hand-over in the middle" in said
    assert "durability replicated(" in said
    assert "4 partitions" in said


@pytest.mark.timeout(180)
@pytest.mark.parametrize("topology", ["cluster", "sentinel"])
def test_contract_holds_while_masters_are_replaced(topology: str) -> None:
    chosen = f"{topology} and (key or wait or cancel)"  # The contract runs with one partition and with four.
    said = suite("-s", "tests/contract/test_client.py", "-k", chosen, RUNS_TEST_UNREST="yes")
    assert re.search(r"unrest: a hand-over [1-9]", said), said[-2000:]
