"""Random histories of a run that emits: requests are repeated, late, or of a former owner. Readers end with the final text."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans.attempts import Output, netstrings
from tests.lua.outputs import Reader, encode_said
from tests.lua.store import Store, delta

HISTORIES = 25


class History:
    """A run with its owners, and all requests that were ever sent."""

    def __init__(self, store: Store, dice: random.Random) -> None:
        self.store, self.dice = store, dice
        self.run = store.running("w0")
        self.owners, self.requests = 1, list[Callable[[], Any]]()
        self.saved: list[int] = []
        self.text: list[int] = []
        self.base = self.acked = self.seq = self.number = 0

    def send(self, plan: Callable[[], Any]) -> Any:
        """Send a request, or lose it on its way. It may arrive later, again, or both."""
        self.requests.append(plan)
        return self.store.do(plan()) if self.dice.random() < 0.8 else None

    def say(self) -> None:
        for _ in range(self.dice.randint(1, 4)):
            self.number = (self.number + 1) % 100
            self.text.append(self.number)

    def unacknowledged(self, settled: int) -> Output:
        events = tuple(map(encode_said, self.text[self.acked :]))
        return Output(self.acked + 1, self.base, settled, events)

    def emit(self) -> None:
        run, given = self.run, self.unacknowledged(0)
        plan = lambda: attempt_plans.emit(self.store.keys.at, [(run.id, run.token, given)], now=self.store.at)  # noqa: E731
        if self.send(plan) == ["ok"]:
            self.acked = given.last

    def save(self) -> None:
        """Save a cut, which may be older than the newest event. Only a newer cut than the stored one is offered."""
        cut = self.dice.randint(len(self.saved), len(self.text))
        self.seq += 1
        run, given = self.run, self.unacknowledged(cut)
        more = netstrings([b"emitted", b"%d" % cut]) if cut else b""
        change = delta(self.seq, acked=self.seq - 1, state=b"%d" % self.seq, more=more, output=given.wire())
        plan = lambda: attempt_plans.checkpoint(self.store.keys, run.id, run.token, change, now=self.store.at)  # noqa: E731
        self.requests.append(plan)
        assert self.store.do(plan())[0] == "ok"
        self.acked, self.saved = given.last, self.text[:cut]

    def lose(self) -> None:
        """Let the worker die. The next owner continues from the checkpoint."""
        self.store.crash(self.run)
        self.resume()

    def leave(self) -> None:
        """End the attempt without an ending of the run: it waits, or its worker shuts down."""
        if self.dice.random() < 0.5:
            assert self.store.suspend(self.run, deadline=self.store.now + 1000) == "waiting"
        else:
            assert self.store.release(self.run) == "ok"

    def step_aside(self) -> None:
        """Leave, and continue from the checkpoint with another owner. The events after the checkpoint are void."""
        self.leave()
        self.resume()

    def resume(self) -> None:
        self.store.later(60_000)
        self.store.due()
        worker = f"w{self.owners}"
        self.store.join(worker)
        self.owners += 1
        (self.run,) = self.store.claim(worker, alone=True)[1] or self.store.claim(worker)[1]
        self.text = list(self.saved)
        self.base = self.acked = len(self.saved)

    def repeat(self) -> None:
        if self.requests:
            self.store.do(self.dice.choice(self.requests)())

    def complete(self) -> None:
        run, given = self.run, self.unacknowledged(0)
        events = given.wire() if given.events else b""
        owner = (self.store.keys, run.id, run.token)
        for _ in range(2):
            assert self.store.do(attempt_plans.complete(*owner, b"r", now=self.store.at, output=events)) == "ok"

    def cancel(self) -> None:
        """Cancel the run while no worker has it, and sometimes revive and cancel it again."""
        if self.dice.random() < 0.5:
            self.leave()
        else:
            self.store.crash(self.run)
        for number in range(self.dice.randint(1, 2)):
            if number:
                assert self.store.revive(self.run.id, f"r{number}") == "queued"
            self.store.cancel(self.run.id, f"c{number}")


def tell(store: Store, seed: int) -> tuple[History, list[Reader]]:
    """Make a random history of a run that has not ended, with its readers."""
    dice = random.Random(seed)
    history = History(store, dice)
    readers = [Reader(store, history.run.id, settled) for settled in (False, True) for _ in range(2)]
    steps = ["say", "emit", "emit", "save", "lose", "step_aside", "step_aside", "repeat", "repeat", "look", "look"]
    for _ in range(40):
        step = dice.choice(steps)
        if step == "look":
            dice.choice(readers).look(returns=dice.random() < 0.3)
        elif step == "lose":
            history.save()  # progress, so that the run is not dead after three losses
            history.say()
            history.emit()
            history.lose()
        else:
            getattr(history, step)()
    return history, readers


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_every_reader_ends_with_the_final_text(store: Store, seed: int) -> None:
    history, readers = tell(store, seed)
    history.complete()
    for _ in range(5):
        history.repeat()
    for reader in readers:
        reader.look(returns=False)
        assert reader.folder.ended == "completed"
        assert reader.text == history.text
        assert not (reader.settled and reader.rewinds)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_readers_of_a_cancelled_run_have_the_stored_events_of_its_last_attempt(store: Store, seed: int) -> None:
    history, readers = tell(store, seed)
    if history.dice.random() < 0.5:  # otherwise the last attempt may have emitted nothing
        history.say()
        history.emit()
    history.cancel()
    for _ in range(5):
        history.repeat()
    readers.append(Reader(store, history.run.id, settled=False))  # it comes after the end
    for reader in readers:
        reader.look(returns=False)
        assert reader.folder.ended == "cancelled"
        if reader.settled:
            assert reader.text == history.saved
            assert not reader.rewinds
        else:
            assert reader.text == history.text[: len(reader.text)]
            assert len(reader.text) >= history.acked
    assert len({tuple(reader.text) for reader in readers if not reader.settled}) == 1
