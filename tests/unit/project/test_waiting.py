"""The waiting helpers return the awaited value, and a timeout says what they waited for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.waiting import eventually, wait_until


def test_first_true_answer_is_returned() -> None:
    answers = iter([0, None, 7, 8])
    assert wait_until(lambda: next(answers), "an answer") == 7


def test_timeout_names_what_was_waited_for() -> None:
    with pytest.raises(AssertionError, match="for the moon; the last answer was 0"):
        wait_until(lambda: 0, "the moon", timeout=0)


async def test_coroutine_may_be_the_condition() -> None:
    answers = iter([0, 7])

    async def ask() -> int:
        return next(answers)

    assert await eventually(ask, "an answer") == 7


async def test_timeout_in_an_event_loop_names_what_was_waited_for() -> None:
    with pytest.raises(AssertionError, match="for the moon"):
        await eventually(lambda: 0, "the moon", timeout=0)


# ---- no other sleeps -------------------------------------------------------------------------------------------------

TESTS = Path(__file__).parents[2]
SLEEP = re.compile(r"\b(?:time|asyncio)\.sleep\(|(?<![\w.])(?<!def )sleep\(")  # not run.sleep, nor the sleep of a clock
COMMENT = re.compile(r"#(?! noqa:[^#]*$)")
ALLOWED = {
    "waiting.py",  # the helpers themselves
    "faults/simulation",  # a virtual clock: no time passes
    "integration/worker/test_worker_process.py",  # the text of a program that has no access to the helpers
    "e2e/test_dev.py",
    "e2e/test_critic.py",  # a line that a log must contain
    "unit/project/test_waiting.py",
}


def test_every_sleep_outside_the_helpers_has_a_comment_that_says_why() -> None:
    unexplained = []
    for file in sorted(TESTS.rglob("*.py")):
        name = file.relative_to(TESTS).as_posix()
        if any(name.startswith(allowed) for allowed in ALLOWED):
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if SLEEP.search(line) and not COMMENT.search(line):
                unexplained.append(f"tests/{name}:{number}: {line.strip()}")
    assert all((TESTS / allowed).exists() for allowed in ALLOWED), "an exception for a file that is gone"
    assert not unexplained, "use tests/waiting.py, or say why not in a comment on the line"
