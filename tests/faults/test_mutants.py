"""The planted bugs still fit the source: every recipe applies and names an existing test."""

from __future__ import annotations

import re

import pytest

from tests.faults.__main__ import commands
from tests.faults.mutants import ROOT
from tests.faults.mutants.recipes import MUTANTS, POISON, PROMISES, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_recipe_applies(mutant: Mutant) -> None:
    source = (ROOT / mutant.path).read_text()
    assert mutant.applied(source) != source


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_test_that_must_notice_the_bug_exists(mutant: Mutant) -> None:
    if mutant.caught_by.startswith("campaign"):
        assert mutant.caught_by.split()[1] in commands()
    else:
        path, _, test = mutant.caught_by.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / path).read_text() if test else (ROOT / path).exists()


# Their behaviour is guarded by two lines, each of which is sufficient, or by a line that another test of the promise covers.
WITHOUT_A_LINE = {
    "test_worker_that_continues_after_its_lease_writes_nothing": "a flush waits out the doubt, and the token refuses it",
    "test_runs_in_four_partitions_survive_a_kill": "promise 1 in four partitions: the line is the same",
}


def test_each_promise_has_a_test_that_fails_without_its_line() -> None:
    assert {mutant.promise for mutant in MUTANTS} - {0} == set(range(1, 9))
    caught = {mutant.caught_by.rpartition("::")[2].partition("[")[0] for mutant in MUTANTS if mutant.promise}
    for path in (PROMISES, POISON):
        there = re.findall(r"^def (test_\w+)", (ROOT / path).read_text(), re.M)
        assert there
        assert set(there) - caught - WITHOUT_A_LINE.keys() == set(), f"no mutant covers a test of {path}"


def test_the_page_shows_the_line_behind_each_promise() -> None:
    page = (ROOT / "docs" / "faults.md").read_text()
    for mutant in MUTANTS:
        if mutant.promise:
            name, line = mutant.caught_by.rpartition("::")[2].partition("[")[0], mutant.old.strip().splitlines()[0]
            assert f"| {mutant.promise} | {mutant.name} | `{mutant.path}` | `{line}` | `{name}` |" in page


def test_there_are_enough_mutants_with_different_names() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25
