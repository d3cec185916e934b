"""What a checkpoint keeps about waits: it is read as it was written, and parts of newer versions are kept."""

from __future__ import annotations

import pytest

from coordinator.errors import Unreadable
from coordinator.store.plans.attempts import netstrings
from workers.handlers.more import Base, More


def test_more_is_read_as_it_was_written() -> None:
    more = More({"a": 3}, {"wait:-:sleep#0": 17}, {"wait:-:gather x#0": Base(1, "b-00", 2)})
    assert More.parse(more.pack()) == more
    assert More().pack() == b""


def test_parts_of_a_newer_version_survive_a_save() -> None:
    data = netstrings([b"received:a", b"1", b"effect:charge", b"done"])
    assert More.parse(data).pack() == data


@pytest.mark.parametrize("data", [b"3:ab", b"x", b"1:a", b"99:a1:b"])
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises((Unreadable, ValueError)):
        More.parse(data)
