"""Waits of a handler: what the checkpoint keeps about them, and waits that a resumed run could not tell apart."""

from __future__ import annotations

import pytest

from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.encoding.codec import encode
from coordinator.errors import Refused, Unreadable
from coordinator.store.plans.attempts import netstrings
from workers import Left, Registry, Run, testing
from workers.handlers.checkpoint.bookkeeping import Base, Bookkeeping
from workers.handlers.checkpoint.draft import Draft
from workers.handlers.checkpoint.migration import migrated


def test_more_is_read_as_it_was_written() -> None:
    more = Bookkeeping({"a": 3}, {"wait:-:sleep#0": 17}, {"wait:-:gather x#0": Base(1, "b-00", 2)})
    assert Bookkeeping.parse(more.pack()) == more
    assert Bookkeeping().pack() == b""


def test_parts_of_a_newer_version_survive_a_save() -> None:
    data = netstrings([b"received:a", b"1", b"effect:charge", b"done"])
    assert Bookkeeping.parse(data).pack() == data


@pytest.mark.parametrize("data", [b"3:ab", b"x", b"1:a", b"99:a1:b"])
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises((Unreadable, ValueError)):
        Bookkeeping.parse(data)


def tool_call(id: str) -> dict[str, object]:
    return {"id": id, "type": "function", "function": {"name": "buy", "arguments": "{}"}}


def answer_calls(run: Run, *topics: str) -> None:
    run.messages.append({"role": "assistant", "tool_calls": [tool_call("c1"), tool_call("c2")]})
    for call, topic in zip(run.messages.open_calls(), topics, strict=True):
        said = run.receive(topic).payload
        run.messages.append({"role": "tool", "tool_call_id": call.id, "content": said})


def test_second_wait_of_a_name_after_an_answered_tool_call_is_refused() -> None:
    run = testing.Run()
    for topic in ("approval", "approval", "approval.c1", "approval.c2"):
        run.send(topic, "yes")
    with pytest.raises(Refused, match="before tool call 'c1' was answered"):
        answer_calls(run, "approval", "approval")
    answer_calls(run_with_signals(), "approval.c1", "approval.c2")


def run_with_signals() -> testing.Run:
    run = testing.Run()
    run.send("approval.c1", "yes")
    run.send("approval.c2", "no")
    return run


def test_chat_may_wait_for_the_same_topic_again_and_again() -> None:
    run = testing.Run()
    for word in ("a", "b", "c"):
        run.send("word", word)
    for _ in range(3):
        run.messages.append({"role": "user", "content": run.receive("word").payload})
    assert [message["content"] for message in run.messages] == ["a", "b", "c"]


def test_migration_keeps_waits_signals_and_children() -> None:
    runs = Registry()

    @runs.handler(kind="migrated", schema=2)
    def handler(run: Run) -> None: ...

    @handler.migration(1)
    def migrate(left: Left) -> None:
        assert left.phases == {}

    draft = Draft(phases={"wait:-:receive go#0": encode(["go", 1, "payload"], "signal")})
    draft.bookkeeping.received["go"] = 1
    draft.bookkeeping.deadlines["wait:-:sleep#0"] = 1_700_000_000_000
    draft.bookkeeping.bases["wait:-:gather all#0"] = Base(1, "01hf7wz8001hf7wz800z-00", 3)
    fresh = migrated(draft, CheckpointHead(schema=1), {}, handler)
    assert fresh.phases["wait:-:receive go#0"] == draft.phases["wait:-:receive go#0"]
    assert fresh.bookkeeping == draft.bookkeeping
    assert Bookkeeping.parse(fresh.cut().bookkeeping) == draft.bookkeeping
