"""One trip as commands and replies: which calls were executed, whatever the node replies in between. No server is involved."""

from __future__ import annotations

from typing import Any

import redis.exceptions as foreign

from coordinator.model.address import Node, address
from coordinator.store import scripts
from coordinator.store.keys import Keys
from coordinator.store.transport.error_mapping import SlotMoved, TransientError
from coordinator.store.transport.lane import Lane
from coordinator.store.transport.trip import Trip

NODE = Node("a", 1)
HERE = address("redis+cluster://a:1")


def answers(partitions: list[int], replies: list[Any]) -> list[Any]:
    """Return the results of one call for each partition under replicated(1), for these replies of the node."""
    calls = [scripts.CANCEL.call(Keys("x", p, "replicated(1)").at, **CANCEL) for p in partitions]
    steps = Trip(HERE, Lane(NODE, 1), calls, 5.0).run()
    commands, _ = next(steps)
    assert [command[0] for command in commands] == ["EVALSHA"] * len(calls) + ["EVAL"] * len(calls) + ["WAIT"]
    try:
        steps.send(replies)
    except StopIteration as done:
        return list(done.value)
    raise AssertionError("it goes on")


CANCEL: dict[str, Any] = dict.fromkeys(scripts.CANCEL.arguments, 1)
OK = [b"ok"]


def test_call_confirmed_by_replicas_is_done() -> None:
    assert answers([0], [OK, OK, 1]) == [OK]
    (short,) = answers([0], [OK, OK, 0])
    assert (type(short), short.sent) == (TransientError, True)
    assert short.rediscover, "a master that was cut off and replaced does not know: somebody else must be asked"


def test_call_is_unconfirmed_if_its_node_was_demoted_afterwards() -> None:
    """The reply about the mark says nothing about the call, which was executed. With `not sent` the caller might repeat it."""
    said = [
        foreign.ReadOnlyError("You can't write against a read only replica."),
        foreign.MovedError("5 127.0.0.1:7000"),
        foreign.AskError("5 127.0.0.1:7000"),
        foreign.ClusterDownError("The cluster is down"),
        foreign.ResponseError("UNBLOCKED"),
    ]
    for error in said:
        (answer,) = answers([0], [OK, error, 0])
        assert (type(answer), answer.sent, answer.rediscover) == (TransientError, True, True), error
    refused = foreign.ResponseError("WAIT cannot be used with replica instances.")
    (answer,) = answers([0], [OK, OK, refused])
    assert (type(answer), answer.sent) == (TransientError, True), (
        "no refusal of the call: that would cost its run a strike"
    )


def test_call_that_was_not_executed_may_be_sent_elsewhere() -> None:
    moved, demoted = foreign.MovedError("5 127.0.0.1:7000"), foreign.ReadOnlyError("read only")
    (answer,) = answers([0], [moved, moved, 0])
    assert isinstance(answer, SlotMoved)
    (answer,) = answers([0], [demoted, demoted, 0])
    assert (type(answer), answer.sent, answer.rediscover) == (TransientError, False, True)


def test_partition_that_is_moving_does_not_affect_other_calls() -> None:
    asked = foreign.AskError("5 127.0.0.1:7000")
    away, here = answers([0, 1], [asked, OK, asked, OK, 1])
    assert (type(away), away.sent) == (TransientError, False)
    assert here == OK
