"""The saver with a fake clock and server: it throttles, sends one save at a time and only new content, and retries."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.errors import CoordinatorError, Unconfirmed
from coordinator.model.run import Note
from coordinator.store.keys import Keys
from coordinator.store.plans.attempts import Delta
from coordinator.store.transport.wire import AsyncWire
from tests.waiting import next_turn
from workers.attempt.output.outbox import Outbox, UnsentBytes
from workers.attempt.save_batch import Save, SaveBatch
from workers.attempt.saver import Saver, SaverClosed, SentSave
from workers.handlers.checkpoint.draft import Cut, Draft
from workers.handlers.checkpoint.messages import unchunk
from workers.throttle import Throttle

BATCHED = False


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits in a thread")

    async def asleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await next_turn()


@dataclass
class Server:
    """Answers saves with the given words, by default with "ok", and waits if the test says so."""

    words: list[Any] = field(default_factory=list)
    sent: list[Delta] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    progress: int = 0
    at_once: int = 0
    most_at_once: int = 0

    async def __call__(self, delta: Delta) -> tuple[str, int]:
        self.sent.append(delta)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.open.wait()
        finally:
            self.at_once -= 1
        word = self.words.pop(0) if self.words else "ok"
        if isinstance(word, Exception):
            raise word
        self.progress += word == "ok"
        return word, self.progress


@dataclass
class Bench:
    draft: Draft
    server: Server
    clock: Clock
    saver: Saver

    def save(self, **state: Any) -> None:
        self.draft.state.update(state)
        self.saver.offer(self.draft.cut())

    @property
    def sent(self) -> list[Delta]:
        return self.server.sent


class OneByOne(SaveBatch):
    """A batch whose requests the server of the test answers."""

    def __init__(self, server: Server) -> None:
        super().__init__(cast("AsyncWire", None), gather_seconds=0.0)
        self.server = server

    async def _ask(self, at: str, saves: Sequence[Save]) -> None:
        assert at == "{p}"
        [save] = saves
        delta = cast("SentSave", save).delta
        assert delta is not None
        assert save.item == ("r", "t", delta.wire())
        try:
            word, progress = await self.server(delta)
        except CoordinatorError as error:
            save.failed(error)
        else:
            save.answered(word, progress)


@pytest.fixture(params=["a task for each saver", "a batch"], autouse=True)
def batched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test twice: with savers that send by themselves, and with savers that use a batch."""
    monkeypatch.setattr(sys.modules[__name__], "BATCHED", request.param == "a batch")


def make_bench(window: float = 10.0, head: CheckpointHead | None = None, draft: Draft | None = None) -> Bench:
    draft, server, clock = draft or Draft(), Server(), Clock()
    server.open.set()
    saver = Saver(head or CheckpointHead(), 1, draft.cut(), Throttle(window), clock, server)
    if BATCHED:
        saver.use_batch(OneByOne(server), cast("Keys", SimpleNamespace(at="{p}")), "r", "t")
    return Bench(draft, server, clock, saver)


async def settled() -> None:
    await next_turn(30)


def messages(delta: Delta) -> list[Any]:
    return [value for _, value in unchunk(delta.chunk, "chunk")] if delta.chunk else []


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[Bench], None]:
    """Send deferred saves at once. The tests of the throttle cover the window."""

    def over(bench: Bench) -> None:
        bench.clock.time += 100.0
        bench.saver._hurry.set()

    return over


async def test_first_save_is_immediate_and_only_the_newest_follows_in_the_window(no_wait):
    bench = make_bench()
    bench.save(n=1)
    await settled()
    assert len(bench.sent) == 1
    for n in (2, 3, 4):
        bench.save(n=n)
        await settled()
    assert len(bench.sent) == 1, "held, and not sent"
    no_wait(bench)
    await settled()
    assert len(bench.sent) == 2
    assert bench.sent[1].state == bench.draft.cut().state
    assert [delta.seq for delta in bench.sent] == [1, 2]


async def test_save_waits_for_the_clock_to_reach_the_end_of_the_window(monkeypatch):
    bench, waits = make_bench(), []

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(bench.saver, "_pause", pause)
    bench.save(n=1)
    await settled()
    bench.clock.time += 4.0
    bench.save(n=2)
    await settled()
    assert [seconds for seconds in waits if seconds] == [6.0]


async def test_window_of_zero_saves_every_cut():
    bench = make_bench(window=0.0)
    for n in range(4):
        bench.save(n=n)
        await settled()
    assert len(bench.sent) == 4


async def test_one_save_is_in_flight_and_later_cuts_are_merged_into_one():
    bench = make_bench(window=0.0)
    bench.server.open.clear()
    for n in range(5):
        bench.save(n=n)
        await settled()
    assert len(bench.sent) == 1
    bench.server.open.set()
    await settled()
    assert len(bench.sent) == 2
    assert bench.server.most_at_once == 1
    assert bench.sent[1].state == bench.draft.cut().state


async def test_failed_save_is_retried_with_the_newest_cut_and_a_new_seq():
    bench = make_bench()
    bench.server.words = [Unconfirmed("no answer"), Unconfirmed("no answer")]
    bench.server.open.clear()
    bench.draft.messages.append({"n": 1})
    bench.save(n=1)
    await settled()
    bench.draft.messages.append({"n": 2})
    bench.save(n=2)
    bench.server.open.set()
    await settled()
    assert [delta.seq for delta in bench.sent] == [1, 2, 3]
    assert [delta.acked for delta in bench.sent] == [0, 0, 0]
    assert messages(bench.sent[2]) == [{"n": 1}, {"n": 2}]
    assert bench.sent[2].state == bench.draft.cut().state
    assert bench.clock.slept == [0.2, 0.4], "with back-off, and not only when the window ends"


async def test_saving_and_flushing_survive_an_outage_of_hours():
    bench = make_bench()
    bench.server.words = [Unconfirmed("no answer")] * 2000
    logging.getLogger("workers.attempt.saver").setLevel(logging.CRITICAL)
    try:
        async with asyncio.timeout(60):
            await bench.saver.flush(bench.draft.cut())
    finally:
        logging.getLogger("workers.attempt.saver").setLevel(logging.NOTSET)
    assert len(bench.sent) == 2001
    assert max(bench.clock.slept) == 5.0


async def test_error_that_nobody_expected_does_not_leave_a_flush_waiting(monkeypatch, caplog):
    """A codec of a user may fail, for example because the service with its keys does not answer."""
    bench, wire, errors = make_bench(), Delta.wire, 3

    def encode(delta: Delta) -> bytes:
        nonlocal errors
        errors -= 1
        if errors >= 0:
            raise OSError("no key")
        return wire(delta)

    async def send(delta: Delta) -> tuple[str, int]:
        delta.wire()
        return await bench.server(delta)

    monkeypatch.setattr(Delta, "wire", encode)
    bench.saver._send = send
    bench.draft.state["n"] = 1
    async with asyncio.timeout(5):
        await bench.saver.flush(bench.draft.cut())
    assert [delta.state for delta in bench.sent] == [bench.draft.cut().state]
    assert "no key" in caplog.text


async def test_only_new_content_is_sent(no_wait):
    bench = make_bench(window=0.0)
    bench.draft.messages.extend([{"n": 0}, {"n": 1}])
    bench.draft.phases["phase:-:a#0"] = b"\x01"
    bench.save(x=1)
    await settled()
    bench.draft.messages.append({"n": 2})
    bench.draft.phases["phase:-:b#0"] = b"\x02"
    bench.saver.offer(bench.draft.cut())
    await settled()
    first, second = bench.sent
    assert (first.base, messages(first), first.state) == (0, [{"n": 0}, {"n": 1}], bench.draft.cut().state)
    assert (second.base, second.acked, messages(second)) == (2, 1, [{"n": 2}])
    assert second.state is None, "its bytes are those of the last acknowledged save"
    assert second.phases == (("phase:-:b#0", b"\x02"),)


async def test_unchanged_state_is_sent_again_after_an_unconfirmed_save():
    bench = make_bench(window=0.0)
    bench.save(x=1)
    await settled()
    bench.server.words = [Unconfirmed("lost")]
    bench.save(x=2)
    bench.draft.state["x"] = 1
    bench.saver.offer(bench.draft.cut())
    await settled()
    assert bench.sent[-1].state == bench.draft.cut().state


async def test_after_a_gap_everything_is_sent_in_a_new_generation():
    bench = make_bench(window=0.0)
    bench.draft.messages.append({"n": 0})
    bench.draft.phases["phase:-:a#0"] = b"\x01"
    bench.save(x=1)
    await settled()
    bench.server.words = ["gap"]
    bench.draft.messages.append({"n": 1})
    bench.saver.offer(bench.draft.cut())
    await settled()
    again = bench.sent[-1]
    assert (again.acked, again.base, again.generation) == (0, 0, bench.sent[0].generation + 1)
    assert messages(again) == [{"n": 0}, {"n": 1}]
    assert again.state == bench.draft.cut().state
    assert again.phases == (("phase:-:a#0", b"\x01"),)
    bench.draft.messages.append({"n": 2})
    bench.saver.offer(bench.draft.cut())
    await settled()
    assert (bench.sent[-1].base, bench.sent[-1].generation) == (2, again.generation)


async def test_replaced_transcript_starts_a_new_generation():
    bench = make_bench(window=0.0)
    bench.draft.messages.extend([{"n": 0}, {"n": 1}])
    bench.saver.offer(bench.draft.cut())
    await settled()
    bench.draft.messages.replace([{"sum": 1}])
    bench.saver.offer(bench.draft.cut())
    await settled()
    assert (bench.sent[1].generation, bench.sent[1].base) == (2, 0)
    assert messages(bench.sent[1]) == [{"sum": 1}]


async def test_phases_of_a_turn_are_dropped_after_it():
    bench = make_bench(window=0.0)
    bench.draft.turn = 0
    bench.draft.phases["phase:0:tool#0"] = b"\x01"
    bench.saver.offer(bench.draft.cut())
    await settled()
    bench.draft.end_turn(0)
    bench.saver.offer(bench.draft.cut())
    await settled()
    assert bench.sent[1].drop == ("phase:0:tool#0",)
    bench.save(x=1)
    await settled()
    assert bench.sent[2].drop == ()


async def test_phase_of_an_unconfirmed_save_is_dropped_too():
    bench = make_bench(window=0.0)
    bench.server.words = [Unconfirmed("lost")]
    bench.server.open.clear()
    bench.draft.turn = 0
    bench.draft.phases["phase:0:tool#0"] = b"\x01"
    bench.saver.offer(bench.draft.cut())
    await settled()
    bench.draft.end_turn(0)
    bench.saver.offer(bench.draft.cut())
    bench.server.open.set()
    await settled()
    assert bench.sent[-1].drop == ("phase:0:tool#0",), "it may be there"


async def test_flush_skips_the_window_and_returns_when_saved():
    bench = make_bench()
    bench.save(n=1)
    await settled()
    bench.server.open.clear()
    bench.draft.state["n"] = 2
    flush = asyncio.ensure_future(bench.saver.flush(bench.draft.cut()))
    await settled()
    assert len(bench.sent) == 2
    assert not flush.done()
    bench.server.open.set()
    await flush


async def test_flush_waits_for_a_save_that_contains_its_cut():
    bench = make_bench(window=0.0)
    bench.server.open.clear()
    bench.save(n=1)
    await settled()
    bench.draft.state["n"] = 2
    flush = asyncio.ensure_future(bench.saver.flush(bench.draft.cut()))
    await settled()
    assert len(bench.sent) == 1
    bench.server.open.set()
    await flush
    assert bench.sent[1].state == bench.draft.cut().state


async def test_abandoned_flush_is_still_saved():
    bench = make_bench(window=0.0)
    bench.server.open.clear()
    flush = asyncio.ensure_future(bench.saver.flush(bench.draft.cut()))
    await settled()
    flush.cancel()
    await settled()
    bench.server.open.set()
    await settled()
    assert bench.saver.last_delta() == b""


async def test_fenced_save_ends_all_saving_and_notifies_the_attempt():
    bench, told = make_bench(window=0.0), []
    bench.saver.on_fenced = lambda: told.append(True)
    bench.server.words = ["fenced"]
    with pytest.raises(SaverClosed):
        await bench.saver.flush(bench.draft.cut())
    assert told == [True]
    bench.save(n=9)
    await settled()
    assert len(bench.sent) == 1
    with pytest.raises(SaverClosed):
        await bench.saver.flush(bench.draft.cut())


async def test_save_in_flight_at_close_is_repeated_with_the_ending():
    bench = make_bench(window=0.0)
    bench.save(n=1)
    await settled()
    bench.server.open.clear()
    bench.draft.messages.append({"n": 0})
    bench.save(n=2)
    await settled()
    bench.saver.close()
    await settled()
    last = bench.saver.last_delta()
    assert last, "nobody knows whether the save arrived"
    assert bench.draft.cut().state in last
    assert bench.draft.messages.packed[0] in last
    assert last.startswith(b"1:3"), "a new seq"
    bench.server.open.set()
    await settled()
    assert len(bench.sent) == 2, "nothing is sent after it"


async def test_ending_carries_nothing_when_everything_is_saved():
    bench = make_bench(window=0.0)
    assert bench.saver.last_delta() == b""
    bench.save(n=1)
    await settled()
    assert bench.saver.last_delta() == b""


async def test_messages_after_the_last_cut_are_unfinished_and_not_in_the_transcript():
    bench = make_bench(window=0.0)
    bench.draft.messages.append({"n": 0})
    bench.saver.offer(bench.draft.cut())
    await settled()
    bench.draft.messages.append({"n": 1})
    unfinished = bench.saver.unfinished(bench.draft.messages)
    assert [value for _, value in unchunk(unfinished, "u")] == [{"n": 1}]
    last = bench.saver.last_delta(unfinished)
    assert unfinished in last
    assert last.startswith(b"1:21:1"), "seq 2, acknowledged 1"
    bench.draft.messages.replace([{"sum": 1}])
    assert bench.saver.unfinished(bench.draft.messages) == b"", "those of another transcript belong to no saved one"


async def test_ending_after_a_gap_carries_everything():
    bench = make_bench(window=0.0)
    bench.draft.messages.append({"n": 0})
    bench.save(n=1)
    await settled()
    whole = bench.saver.whole_delta()
    assert bench.draft.messages.packed[0] in whole
    assert bench.draft.cut().state in whole
    assert whole.startswith(b"1:21:01:21:01:1"), "seq 2, nothing acknowledged, generation 2, base 0, one message"


async def test_sequence_number_continues_across_attempts():
    draft = Draft()
    draft.messages.append({"n": 0})
    draft.state = {"x": 1}
    head = CheckpointHead(seq=7, generation=3, length=1, iteration=2, peak=2, progress=4, schema=1)
    draft.messages.generation = 3
    bench = make_bench(window=0.0, head=head, draft=draft)
    bench.draft.messages.append({"n": 1})
    bench.saver.offer(bench.draft.cut())
    await settled()
    delta = bench.sent[0]
    assert (delta.seq, delta.acked, delta.generation, delta.base) == (8, 7, 3, 1)
    assert delta.state is None


async def test_note_is_sent_once():
    bench = make_bench(window=0.0)
    bench.saver.note = Note("half way", 1, 2)
    bench.save(n=1)
    await settled()
    bench.save(n=2)
    await settled()
    assert b"half way" in bench.sent[0].note
    assert bench.sent[1].note == b""


@pytest.mark.parametrize("what", ["turn", "phase", "state", "message"])
async def test_progress_counts_before_a_save_has_carried_it(what):
    bench = make_bench()
    bench.save(n=1)
    await settled()
    mark = bench.saver.progress
    assert not bench.saver.progress_since(mark)
    if what == "turn":
        bench.draft.end_turn(0)
    elif what == "phase":
        bench.draft.phases["phase:-:a#0"] = b"\x01"
    elif what == "state":
        bench.draft.state["n"] = 2
    else:
        bench.draft.messages.append({"n": 1})
    bench.saver.offer(bench.draft.cut())
    await settled()
    assert len(bench.sent) == 1
    assert bench.saver.progress_since(mark)


async def test_replaced_transcript_is_not_progress():
    bench = make_bench()
    bench.draft.messages.append({"n": 1})
    bench.save(n=1)
    await settled()
    bench.draft.messages.replace([{"a": 1}, {"b": 2}])
    bench.saver.offer(bench.draft.cut())
    assert not bench.saver.progress_since(bench.saver.progress)


async def test_saver_closed_during_a_save_is_garbage_collected_at_once():
    """The saver holds the whole transcript, so it must not wait for the cyclic garbage collector."""
    bench = make_bench()
    bench.server.open.clear()
    bench.save(n=1)
    await settled()
    assert len(bench.sent) == 1
    bench.saver.close()
    closed = weakref.ref(bench.saver)
    gc.disable()
    try:
        del bench
        await settled()
        assert closed() is None
    finally:
        gc.enable()


async def test_save_that_waits_for_a_batch_carries_the_events_before_its_cut():
    bench = make_bench()
    bench.saver.offer(bench.draft.cut())
    outbox = bench.saver.outbox = Outbox(0, UnsentBytes())
    bench.draft.bookkeeping.emitted = outbox.add(b"e", b"x")
    bench.save(n=1)
    await settled()
    assert bench.sent[0].output is not None
    assert outbox.take(1) is None, "the server has the event"


def test_cut_keeps_the_content_it_was_created_with():
    draft = Draft()
    draft.messages.append({"n": 0})
    cut = draft.cut()
    draft.messages.append({"n": 1})
    draft.phases["phase:-:a#0"] = b"\x01"
    assert isinstance(cut, Cut)
    assert (cut.length, cut.phases) == (1, {})
