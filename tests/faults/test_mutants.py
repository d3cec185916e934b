"""The planted bugs are still those of this source: every recipe applies, and names a test that is there."""

from __future__ import annotations

import pytest

from tests.faults.__main__ import commands
from tests.faults.mutants import ROOT
from tests.faults.mutants.recipes import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_recipe_applies(mutant: Mutant) -> None:
    source = (ROOT / mutant.path).read_text()
    assert mutant.applied(source) != source


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_who_has_to_notice_is_there(mutant: Mutant) -> None:
    if mutant.caught_by.startswith("campaign"):
        assert mutant.caught_by.split()[1] in commands()
    else:
        path, _, test = mutant.caught_by.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / path).read_text() if test else (ROOT / path).exists()


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25
