"""Plans of clients that read the output of a run."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from coordinator.store.keys import Keys
from coordinator.store.replies import text, word
from coordinator.store.script import Request, read
from coordinator.store.scripts import INTERRUPT, LISTEN

Entry = tuple[bytes, list[bytes]]
PAGE = 1_000  # entries in one page


def listen(keys: Keys, id: str) -> Generator[Request, Any, tuple[str, str]]:
    """Prepare to read the output of a run.

    Returns:
        The answer word of listen.lua (open, ended, missing), and the status of the run.
    """
    reply = yield LISTEN.call(keys.at, id=id)
    return word(reply), text(reply[1]) if len(reply) > 1 else ""


def read_page(keys: Keys, id: str, after: str) -> Generator[Request, Any, list[Entry]]:
    """Return up to `PAGE` entries of a run's output, after the entry with the id `after`."""
    reply = yield read(keys.at, "XRANGE", keys.output(id), f"({after}", "+", "COUNT", PAGE)
    return [(entry, fields) for entry, fields in reply]


def interrupt(keys: Keys, client: str) -> Generator[Request, Any, None]:
    """End the blocking read of a client's outputs in a partition, so that the client can read other outputs too."""
    yield INTERRUPT.call(keys.at, client=client)
