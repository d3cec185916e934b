"""SIGKILL and SIGTERM of workers while runs emit: no reader loses, doubles or keeps a word that is not in the final text."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections import Counter
from typing import Any

import pytest

from coordinator import Client, Event, Gap, Handle, Rewind, Status
from tests.e2e.processes import Stage, children
from tests.waiting import wait_until

TELLERS = int(os.environ.get("RUNS_TEST_TELLERS", "6"))
WORDS = int(os.environ.get("RUNS_TEST_WORDS", "150"))
KILLS = int(os.environ.get("RUNS_TEST_KILLS", "8"))


class Reader(threading.Thread):
    """A reader that applies rewinds. With `patience`, it goes away after so many items, and comes back with the last id."""

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


def disturb(fleet: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(random.choice(wait_until(lambda: children(fleet), "the fleet has a process", timeout=60)), number)


@pytest.mark.timeout(180 + 10 * KILLS)
def test_readers_end_with_exactly_the_final_text_over_kills_and_drains(stage: Stage, client: Client) -> None:
    stage.coordinator()
    options = ["--processes", "2", "--concurrency", "10", "--lease", "5"]
    fleet = stage._start("workers", "start", "tests.e2e.output_app:runs", *options)
    handles: list[Handle[list[str]]] = [
        client.enqueue("teller" if number % 2 else "plain_teller", {"words": WORDS}) for number in range(TELLERS)
    ]
    readers = [
        reader
        for handle in handles
        for reader in (Reader(handle, False), Reader(handle, True), Reader(handle, False, 7), Reader(handle, True, 4))
    ]
    for kill in range(1, KILLS + 1):
        enough = TELLERS * WORDS * kill // (KILLS + 2)
        wait_until(lambda: len(stage.events("said")) >= enough, "more words are said", timeout=90)  # noqa: B023
        disturb(fleet.pid, signal.SIGKILL if kill % 3 else signal.SIGTERM)
    assert Counter(handle.wait(120) for handle in handles) == {Status.COMPLETED: TELLERS}
    said = {(event.run, f"{event.token}/{event.number}") for event in stage.events("said")}
    for reader in readers:
        reader.join(60)
        assert not reader.is_alive(), "the reader ends with the run"
        if reader.error is not None:
            raise reader.error
        final = reader.handle.result()
        assert reader.text == final
        assert {(reader.handle.id, word) for word in reader.text} <= said
        assert reader.gaps == 0
        if reader.settled:
            assert reader.rewinds == 0
            assert reader.delivered == list(range(1, WORDS + 1)), "each word once and in order"
    assert any(reader.rewinds for reader in readers), "some text was lost, and its readers were told"
