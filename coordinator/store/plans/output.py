"""Plans of clients that read the output or the transcript of a run."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

from coordinator.store.keys import Keys
from coordinator.store.replies import text, word
from coordinator.store.script import Request, read
from coordinator.store.scripts import INTERRUPT, LISTEN, TRANSCRIPT

Entry = tuple[bytes, list[bytes]]
PAGE = 1_000  # entries in one page


class Listening(NamedTuple):
    """The answer to a client that wants to read the output of a run.

    Attributes:
        word: The answer word of listen.lua: open, ended, missing.
        status: The status of the run; empty if it is missing.
        newest: The id of the newest entry of the output of an open run. New entries follow it.
    """

    word: str
    status: str = ""
    newest: str = "0-0"


def listen(keys: Keys, id: str) -> Generator[Request, Any, Listening]:
    """Prepare to read the output of a run: from now on, the script that ends the run writes an end to the output."""
    reply = yield LISTEN.call(keys.at, id=id)
    return Listening(*map(text, reply))


def read_page(keys: Keys, id: str, after: str) -> Generator[Request, Any, list[Entry]]:
    """Return up to `PAGE` entries of a run's output, after the entry with the id `after`."""
    reply = yield read(keys.at, "XRANGE", keys.output(id), f"({after}", "+", "COUNT", PAGE)
    return [(entry, fields) for entry, fields in reply]


def interrupt(keys: Keys, client: str) -> Generator[Request, Any, None]:
    """End the blocking read with which a client waits for outputs in a partition. Its next read can include further outputs."""
    yield INTERRUPT.call(keys.at, client=client)


@dataclass(frozen=True, slots=True)
class TranscriptPage:
    """A page of the saved messages of a run.

    Attributes:
        word: The answer word of transcript.lua: ok, missing, unreadable.
        generation: The number of the transcript, which grows when the handler replaces the transcript.
        length: The number of messages of the transcript.
        chunks: The number of the first message of each chunk, and the encoded chunk.
    """

    word: str
    generation: int = 0
    length: int = 0
    chunks: tuple[tuple[int, bytes], ...] = ()


def read_transcript(keys: Keys, id: str, start: int, room: int) -> Generator[Request, Any, TranscriptPage]:
    """Return a page of the saved messages of a run.

    Args:
        keys: The keys of the run's partition.
        id: The id of the run.
        start: The number of the first message, from 0.
        room: The size of the page in bytes, about.
    """
    reply = yield TRANSCRIPT.call(keys.at, id=id, number=start, room=room)
    if word(reply) != "ok":
        return TranscriptPage(word(reply))
    rows = reply[3]
    chunks = tuple((int(rows[i]), rows[i + 1]) for i in range(0, len(rows), 2))
    return TranscriptPage("ok", int(reply[1]), int(reply[2]), chunks)
