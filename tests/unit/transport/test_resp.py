"""The proxy's parser finds the end of every frame, and only of complete ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.resp import frame_end, words

FRAMES = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":-12\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"$4\r\n\r\n+1\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
    b"%1\r\n+a\r\n*1\r\n_\r\n",
    b"PING\r\n",
]


@pytest.mark.parametrize("frame", FRAMES)
def test_frame_ends_at_its_last_byte(frame: bytes) -> None:
    assert frame_end(frame + b"+next\r\n") == len(frame)


@pytest.mark.parametrize("frame", FRAMES)
def test_part_of_a_frame_is_not_a_frame(frame: bytes) -> None:
    assert [frame_end(frame[:length]) for length in range(len(frame))] == [None] * len(frame)


@given(some.lists(some.binary(), min_size=1))
def test_words_of_a_request_equal_the_sent_words(sent: list[bytes]) -> None:
    request = b"*%d\r\n" % len(sent) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in sent)
    assert frame_end(request) == len(request)
    assert words(request) == sent


def test_inline_request_has_words_too() -> None:
    assert words(b"SET key value\r\n") == [b"SET", b"key", b"value"]
