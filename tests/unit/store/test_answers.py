"""Retries of a call: what is sent again, and what the caller learns in the end. No server is involved."""

from __future__ import annotations

from coordinator.errors import ServerFull, Unconfirmed, Unreachable
from coordinator.store import scripts
from coordinator.store.script import Call, fail_fast, read
from coordinator.store.transport.answers import Answers
from coordinator.store.transport.error_mapping import TransientError

SENT, NOT_SENT = TransientError("no answer", sent=True), TransientError("nobody there", sent=False)


def enqueue() -> Call:
    return Call(scripts.ENQUEUE, "{x:0}", ("", "b"), (("id",),), "id")


def test_refusal_after_an_earlier_send_does_not_prove_that_nothing_was_written() -> None:
    gathered = Answers([enqueue()])
    assert gathered.take([SENT])
    assert not gathered.take([ServerFull("full")])
    (answer,) = gathered.result()
    assert isinstance(answer, Unconfirmed)
    first = Answers([enqueue()])
    first.take([ServerFull("full")])
    assert isinstance(first.result()[0], ServerFull)


def test_call_that_was_sent_stays_in_doubt() -> None:
    gathered = Answers([enqueue()])
    gathered.take([SENT])
    gathered.take([NOT_SENT])
    assert isinstance(gathered.result()[0], Unconfirmed)


def test_fail_fast_call_stops_retrying_only_if_it_was_certainly_not_sent() -> None:
    assert not Answers([fail_fast(enqueue())]).take([NOT_SENT])
    assert Answers([fail_fast(enqueue())]).take([SENT])


def test_read_only_call_may_stop_retrying_even_if_it_was_sent() -> None:
    """The call changes nothing, so a node that hangs must not delay the answers of other nodes."""
    question = read("{x:0}", "INFO")
    gathered = Answers([type(question)(question.at, question.arguments, fail_fast=True)])
    assert not gathered.take([SENT])
    assert isinstance(gathered.result()[0], Unreachable)
    looking = Answers([Call(scripts.VIEW, "{x:0}", ())])
    looking.take([SENT])
    assert isinstance(looking.result()[0], Unreachable)
