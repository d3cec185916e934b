"""SIGKILL and SIGTERM of workers while runs emit: no reader loses, doubles or keeps a word that is not in the final text."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter

import pytest

from coordinator import Client, Handle, Status
from tests.e2e.output_readers import Reader
from tests.e2e.processes import Stage, children
from tests.waiting import wait_until

TELLERS = int(os.environ.get("RUNS_TEST_TELLERS", "6"))
WORDS = int(os.environ.get("RUNS_TEST_WORDS", "150"))
KILLS = int(os.environ.get("RUNS_TEST_KILLS", "8"))


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
