"""Outbox: the events of an attempt that the server may not have stored yet."""

from __future__ import annotations

from coordinator.model.limits import OUTPUT_UNSENT, OUTPUT_UNSENT_IN_PROCESS
from coordinator.store.plans.attempts import Output
from workers.attempt.output.outbox import Outbox, UnsentBytes


def test_events_are_numbered_after_those_of_the_checkpoint() -> None:
    outbox = Outbox(7, UnsentBytes())
    assert [outbox.add(b"e", b"a"), outbox.add(b"n", b"b")] == [8, 9]
    assert outbox.take() == Output(8, 7, 0, (b"ea", b"nb"))


def test_events_stay_until_the_server_has_stored_them() -> None:
    outbox = Outbox(0, UnsentBytes())
    outbox.add(b"e", b"a")
    sent = outbox.take()
    outbox.add(b"e", b"b")
    assert sent is not None
    outbox.stored(sent)
    assert outbox.take() == Output(2, 0, 0, (b"eb",))
    outbox.stored(sent)  # the answer to a request that was repeated
    assert outbox.take() == Output(2, 0, 0, (b"eb",))


def test_nothing_is_sent_if_the_server_has_everything() -> None:
    outbox = Outbox(3, UnsentBytes())
    assert outbox.take(3) is None
    outbox.add(b"e", b"a")
    sent = outbox.take(4)
    assert sent == Output(4, 3, 4, (b"ea",))
    outbox.stored(sent)
    assert outbox.take(4) is None
    assert not outbox.waiting


def test_cut_without_new_events_is_still_told() -> None:
    outbox = Outbox(0, UnsentBytes())
    outbox.add(b"e", b"a")
    sent = outbox.take()
    assert sent is not None
    outbox.stored(sent)
    assert outbox.take(1) == Output(2, 0, 1, ())


def test_oldest_events_are_dropped_and_their_numbers_stay_unused() -> None:
    outbox, size = Outbox(0, UnsentBytes()), OUTPUT_UNSENT // 4
    for _ in range(10):
        outbox.add(b"e", b"x" * (size - 1))
    sent = outbox.take()
    assert sent is not None
    assert (sent.first, sent.last, len(sent.events), outbox.dropped) == (7, 10, 4, 6)


def test_answer_about_dropped_events_removes_no_later_ones() -> None:
    outbox, size = Outbox(0, UnsentBytes()), OUTPUT_UNSENT // 2
    outbox.add(b"e", b"a")
    sent = outbox.take()
    for _ in range(3):
        outbox.add(b"e", b"x" * (size - 1))
    assert sent is not None
    outbox.stored(sent)
    left = outbox.take()
    assert left is not None
    assert (left.first, left.last) == (3, 4)


def test_call_carries_a_limited_number_of_events() -> None:
    outbox = Outbox(0, UnsentBytes())
    for _ in range(10):
        outbox.add(b"e", b"a")
    part = outbox.take(most=4)
    assert part is not None
    assert (part.first, part.last) == (1, 4)
    outbox.stored(part)
    rest = outbox.take(most=100)
    assert rest is not None
    assert (rest.first, rest.last) == (5, 10)


def test_closed_outbox_sends_nothing() -> None:
    outbox = Outbox(0, UnsentBytes())
    outbox.add(b"e", b"a")
    outbox.close()
    assert outbox.take() is None
    outbox.add(b"e", b"b")
    assert outbox.take(2) is None
    assert (outbox.position, len(outbox._events)) == (2, 0)
    assert not outbox.waiting


def fill(unsent: UnsentBytes) -> list[Outbox]:
    """Return outboxes that hold as many bytes as a process may."""
    filled = [Outbox(0, unsent) for _ in range(OUTPUT_UNSENT_IN_PROCESS // OUTPUT_UNSENT)]
    for one in filled:
        one.add(b"e", b"x" * (OUTPUT_UNSENT - 1))
    assert unsent.total >= OUTPUT_UNSENT_IN_PROCESS
    return filled


def test_new_event_takes_the_place_of_older_ones_of_its_run_if_the_process_is_full() -> None:
    unsent = UnsentBytes()
    late = Outbox(0, unsent)
    for _ in range(10):
        late.add(b"e", b"a" * 9)
    fill(unsent)
    late.add(b"e", b"b" * 24)
    left = late.take()
    assert left is not None
    assert (left.first, left.last, late.dropped) == (4, 11, 3)
    assert unsent.total < OUTPUT_UNSENT_IN_PROCESS + 100


def test_newest_event_of_a_run_is_kept_although_the_process_is_full() -> None:
    unsent = UnsentBytes()
    fill(unsent)
    late = Outbox(0, unsent)
    for number in range(3):
        late.add(b"e", b"%d" % number)
    assert late.take() == Output(3, 0, 0, (b"e2",))


def test_stored_and_dropped_events_do_not_count_as_unsent() -> None:
    unsent = UnsentBytes()
    first, second, third = (Outbox(0, unsent) for _ in range(3))
    for one in (first, second, third):
        one.add(b"e", b"x" * 99)
    sent = first.take()
    assert sent is not None
    first.stored(sent)
    second.close()
    assert unsent.total == 100
    for _ in range(3):
        third.add(b"e", b"x" * (OUTPUT_UNSENT // 2 - 1))
    assert unsent.total == OUTPUT_UNSENT
