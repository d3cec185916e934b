"""The quick suite (tests/quick.py) contains a test of every promise of the README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MARKED = re.compile(r"^(@|pytestmark = )pytest\.mark\.promise\(", re.MULTILINE)


def promises() -> set[int]:
    """Return the numbers of the README's promises."""
    section = re.findall(
        r"^## [^\n]*promise[^\n]*\n(.*?)^## ", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )[0]
    return {int(number) for number in re.findall(r"^(\d+)\. ", section, re.MULTILINE)}


def collect(*arguments: str) -> str:
    """Return what pytest prints when it collects tests."""
    options = ["--collect-only", "--quiet", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run([sys.executable, "-m", "pytest", *options], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def collected() -> str:
    """What pytest prints when it collects, for the quick suite, the files that have marks of promises."""
    files = [str(file) for file in (ROOT / "tests").rglob("test_*.py") if MARKED.search(file.read_text())]
    return collect("--quick", "--promises", *files)


def test_every_promise_of_the_readme_has_a_test_in_the_quick_suite(collected: str) -> None:
    assert promises() == set(range(1, 9))
    counted = re.findall(r"^promise (\d+): \d+ tests$", collected, re.MULTILINE)
    assert {int(number) for number in counted} == promises()


def test_quick_suite_reports_how_many_tests_it_leaves_out_and_how_to_run_them(collected: str) -> None:
    said = re.search(
        r"^quick suite: (\d+) tests deselected \(.+\); scripts/test --all runs them too$", collected, re.MULTILINE
    )
    assert said, "no line says what was deselected"
    assert f"({said[1]} deselected)" in collected, "pytest counts as many"


def test_quick_cases_are_spread_over_the_cases_of_a_test() -> None:
    file = "tests/unit/model/test_schedule.py"
    marked = re.compile(
        rf"^{file}::test_fire_times_increase_and_do_not_depend_on_the_starting_point\[.+$", re.MULTILINE
    )
    every, quick = (marked.findall(collect(file, *option)) for option in ([], ["--quick"]))
    assert len(every) == 16
    assert quick == every[::4]
