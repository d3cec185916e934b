"""Remember, in a process, which content of each thread the server has, so that a save sends only the rest.

This memory may be wrong: another process may have deleted a thread, or a save may have failed. The server checks everything that
a save refers to, and answers `gap` if something is missing. The process then clears its memory of the thread, and sends more.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

THREADS = 500  # threads that a saver remembers
RECENT = 6  # items of one thread whose content a saver remembers
RECENT_BYTES = 16 * 1024
COLLECTED = 6  # bodies of checkpoints that make a dictionary; the steps of most graphs repeat after fewer
DICTIONARY_BYTES = 8 * 1024  # the most bytes of such a dictionary, unless one body is longer
ITEMS = 20_000  # items of one thread that a saver remembers


@dataclass(slots=True)
class StoredList:
    """A list that the server has.

    Attributes:
        log: The name under which the chunks of the list are stored.
        chunks: The number of its chunks.
        entries: Its entries.
    """

    log: bytes
    chunks: int
    entries: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Dictionary:
    """A text that the server has, against which the bodies of checkpoints are compressed.

    Attributes:
        field: The field of the text.
        text: The text.
        bodies: Bodies that were compressed against the text, which are collected for a better dictionary. None if this is the
            better one, and no more are collected.
    """

    field: bytes
    text: bytes
    bodies: tuple[bytes, ...] | None = ()

    @classmethod
    def of(cls, field: bytes, before: Dictionary | None, body: bytes) -> Dictionary:
        """Return a dictionary of the bodies that an earlier dictionary has collected, and of a new body."""
        collected = (before.bodies or ()) if before else ()
        text = body
        for one in reversed(collected):
            if len(one) + len(text) > DICTIONARY_BYTES:
                break
            text = one + text
        return cls(field, text, None if collected else ())

    def is_ready(self) -> bool:
        """Return True if there are enough bodies for a better dictionary."""
        return self.bodies is not None and len(self.bodies) >= COLLECTED

    def seen(self, body: bytes) -> Dictionary:
        """Return the dictionary with another collected body. Return it unchanged if it does not collect bodies."""
        return self if self.bodies is None else Dictionary(self.field, self.text, (*self.bodies, body))


@dataclass(slots=True)
class KnownThread:
    """The content of a thread that the server has, as far as this process knows.

    Attributes:
        items: The fields of the items that the server has.
        recent: Fields and contents of the last items that were sent, against which the next ones are compressed.
        lists: The newest list of each channel, by namespace and channel.
        refs: For each namespace the newest checkpoint, and the version of each of its channels.
        dictionaries: For each namespace the text against which bodies are compressed.
        under_way: Saves that are under way. The value is True for a checkpoint, and False for the writes of a task.
        lock: Protects the decision which items a save sends, and the saves under way.
    """

    items: dict[bytes, None] = field(default_factory=dict)
    recent: list[tuple[bytes, bytes]] = field(default_factory=list)
    lists: dict[tuple[str, str], StoredList] = field(default_factory=dict)
    refs: dict[str, tuple[str, dict[str, bytes]]] = field(default_factory=dict)
    dictionaries: dict[str, Dictionary] = field(default_factory=dict)
    under_way: dict[Future[None], bool] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add_items(self, fields: Sequence[bytes]) -> None:
        """Remember items. If there are too many, forget the older ones: a save that refers to them sends them again."""
        if len(self.items) + len(fields) > ITEMS:
            self.items, self.recent = {}, []
        self.items.update(dict.fromkeys(fields))

    def add_recent(self, field: bytes, content: bytes) -> None:
        """Remember the content of an item that was sent, unless it is too large. Keep the first item and the last ones."""
        if len(content) <= RECENT_BYTES:
            self.recent = [*self.recent[:1], *self.recent[1:][2 - RECENT :], (field, content)]

    @contextmanager
    def in_order(self, *, checkpoint: bool) -> Iterator[tuple[Future[None], ...]]:
        """Add a save to `under_way` while the context is open, and yield the earlier saves that it must wait for.

        LangGraph saves checkpoints and writes of tasks at the same time. A save refers to values of the saves before it, so the
        server must get these first. Writes of different tasks do not wait for each other.

        Args:
            checkpoint: True for a checkpoint, False for the writes of a task.
        """
        own: Future[None] = Future()
        with self.lock:
            earlier = tuple(one for one, is_checkpoint in self.under_way.items() if checkpoint or is_checkpoint)
            self.under_way[own] = checkpoint
        try:
            yield earlier
        finally:
            with self.lock:
                del self.under_way[own]
            own.set_result(None)

    def forget_items(self, fields: Iterable[bytes]) -> None:
        """Forget items, after a save that may not have stored them."""
        with self.lock:
            for one in fields:
                self.items.pop(one, None)
            self.recent = []

    def forget_all_items(self) -> None:
        """Forget all items and their contents.

        An item that is not known is sent again. It must not be compressed against its own earlier content.
        """
        with self.lock:
            self.items, self.recent = {}, []


class KnownThreads:
    """The memory of the threads that a saver has used last."""

    def __init__(self) -> None:
        self._threads: OrderedDict[str, KnownThread] = OrderedDict()

    def of(self, thread: str) -> KnownThread:
        """Return the memory of a thread. If the thread is new, its memory is empty."""
        known = self._threads.setdefault(thread, KnownThread())
        try:
            self._threads.move_to_end(thread)
            if len(self._threads) > THREADS:
                self._threads.popitem(last=False)
        except KeyError:
            pass  # another Python thread has removed the entry at this moment
        return known

    def forget(self, thread: str) -> None:
        """Forget a thread that was deleted, or that lacks content which this process expected."""
        self._threads.pop(thread, None)
