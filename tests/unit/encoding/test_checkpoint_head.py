"""The head of a stored checkpoint consists of ten numbers; other bytes are refused."""

from __future__ import annotations

import pytest

from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.errors import Unreadable


def test_numbers_are_read_in_the_order_of_the_script() -> None:
    head = CheckpointHead.parse(b"4 1 2 3 5 6 7 8 9 10")
    assert head == CheckpointHead(
        seq=4, generation=1, length=2, iteration=3, peak=5, progress=6, schema=7, updated=8, appended=9, size=10
    )


@pytest.mark.parametrize(
    "text", [b"", b"1", b"1 2 3 4 5 6 7 8 9", b"1 2 3 4 5 6 7 8 9 10 11", b"1 2 3 4 5 6 7 8 9 x", b"\xff"]
)
def test_other_bytes_are_unreadable(text: bytes) -> None:
    with pytest.raises(Unreadable, match="the head of the checkpoint can't be read"):
        CheckpointHead.parse(text)
