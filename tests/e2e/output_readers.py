"""A reader of a run's output in a thread, which a test compares with the final text."""

from __future__ import annotations

import threading
from typing import Any

from coordinator import Event, Gap, Handle, Rewind


class Reader(threading.Thread):
    """A reader that applies rewinds. With `patience`, it stops after that number of items, and continues after the last id."""

    def __init__(self, handle: Handle[Any], settled: bool, patience: int | None = None) -> None:
        super().__init__(daemon=True)
        self.handle, self.settled, self.patience = handle, settled, patience
        self.text: list[str] = []
        self.delivered: list[int] = []
        self.rewinds = self.gaps = 0
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            after: str | None = None
            while (after := self._read(after)) is not None:
                pass
        except BaseException as error:  # noqa: BLE001  # raised in the test
            self.error = error

    def _read(self, after: str | None) -> str | None:
        """Read until the end or the end of the patience. Return the id to continue after; None after the end."""
        for count, item in enumerate(self.handle.stream(after=after, settled=self.settled, timeout=120), 1):
            after = item.id
            match item:
                case Event(number=number, value=value):
                    assert number == len(self.text) + 1, "the numbers have no hole"
                    self.text.append(value)
                    self.delivered.append(number)
                case Rewind(to=to):
                    assert to < len(self.text), "a rewind that drops nothing is not delivered"
                    del self.text[to:]
                    self.rewinds += 1
                case Gap():
                    self.gaps += 1
            if count == self.patience:
                return after
        return None
