"""The old names of `workers.testing` still work, with a warning."""

from __future__ import annotations

import pytest

from workers import testing


def test_old_name_of_the_backing_works_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"workers\.testing\.Desk is now MemoryBacking"):
        old = testing.Desk
    assert old is testing.MemoryBacking


@pytest.mark.parametrize("kind", [testing.AsyncRun, testing.Run])
def test_old_name_of_the_parameter_works_with_a_warning(kind: type[testing.AsyncRun] | type[testing.Run]) -> None:
    backing = testing.MemoryBacking()
    with pytest.warns(DeprecationWarning, match="the parameter desk is now called backing"):
        run = kind(desk=backing)
    run.note("kept there")
    assert [note.text for note in backing.notes] == ["kept there"]


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        testing.absent  # noqa: B018  # the access itself is tested
