"""The checkpoint that an attempt builds, and loading a stored one."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.encoding.codec import encode
from coordinator.errors import NotPlain, Refused, TooLarge, Unreadable
from workers.handlers.checkpoint.draft import Draft, loaded
from workers.handlers.checkpoint.messages import chunk


def stored(**changes: Any) -> list[list[bytes]]:
    """Return the parts of a checkpoint as the server returns them: two messages, a state, a phase."""
    fields: dict[str, Any] = {
        "head": b"4 1 2 1 1 3 1 1000 2 20",
        "state": encode({"x": 1}, "s"),
        "phase:-:a#0": encode("out", "p"),
        "unfinished": chunk([encode({"n": 2}, "m")]),
    } | changes.pop("fields", {})
    chunks: dict[bytes, bytes] = changes.pop(
        "chunks", {b"1": chunk([encode({"n": 1}, "m")]), b"0": chunk([encode({"n": 0}, "m")])}
    )
    flat = [part for name, value in fields.items() if value is not None for part in (name.encode(), value)]
    return [flat, [part for pair in chunks.items() for part in pair]]


def test_stored_checkpoint_is_loaded_in_order():
    draft, head, unfinished = loaded(stored())
    assert list(draft.messages) == [{"n": 0}, {"n": 1}]
    assert (draft.state, draft.iteration, list(draft.phases)) == ({"x": 1}, 1, ["phase:-:a#0"])
    assert head == CheckpointHead(4, 1, 2, 1, 1, 3, 1, 1000, 2, 20)
    assert unfinished == [{"n": 2}]


@pytest.mark.parametrize(
    "broken",
    [
        {"fields": {"head": None}},
        {"fields": {"head": b"x"}},
        {"fields": {"head": b"1 2"}},
        {"fields": {"head": b"1 2 3 4 5 6 7 8 9 10 11"}},
        {"fields": {"state": b"\xc1"}},
        {"fields": {"state": encode([1], "s")}},
        {"fields": {"unfinished": b"\xc1"}},
        {"chunks": {b"0": chunk([encode({"n": 0}, "m")])}},
        {"chunks": {b"0": chunk([encode({"n": 0}, "m")]), b"2": chunk([encode({"n": 1}, "m")])}},
        {"chunks": {b"0": b"\xc1"}},
        {"chunks": {}},
    ],
)
def test_damaged_checkpoint_is_unreadable(broken):
    with pytest.raises(Unreadable):
        loaded(stored(**broken))


def test_phases_are_identified_by_name_and_equal_names_by_order():
    draft = Draft()
    names = []
    for name in ("a", "b", "a"):
        names.append(draft.begin_phase(name))
        draft.end_phase(names[-1], b"\x01")
    assert names == ["phase:-:a#0", "phase:-:b#0", "phase:-:a#1"]


def test_phases_inside_a_turn_belong_to_the_turn():
    draft = Draft()
    draft.turn = 3
    field = draft.begin_phase("tool")
    draft.end_phase(field, b"\x01")
    assert field == "phase:3:tool#0"
    outer = Draft(phases={"phase:-:kept#0": b"\x01", field: b"\x02"}, turn=3)
    outer.end_turn(3)
    assert list(outer.phases) == ["phase:-:kept#0"]
    assert (outer.iteration, outer.turn) == (4, None)


def test_phase_that_outlives_its_turn_is_saved_with_the_next_turn():
    draft = Draft(turn=0)
    field = draft.begin_phase("late")
    draft.end_turn(0)
    draft.end_phase(field, b"\x01")
    failed = Draft(turn=0)
    again = failed.begin_phase("late")
    failed.end_turn(0)
    failed.end_phase(again, None)
    draft.turn = 1
    draft.end_turn(1)
    assert draft.phases == {}
    assert not draft._seen


def test_concurrent_phases_of_one_name_are_refused():
    draft = Draft()
    draft.begin_phase("a")
    draft.begin_phase("b")
    with pytest.raises(Refused, match="already running"):
        draft.begin_phase("a")


def test_equal_names_with_a_state_change_in_between_are_refused():
    draft = Draft()
    draft.end_phase(draft.begin_phase("a"), b"\x01")
    draft.end_phase(draft.begin_phase("a"), b"\x01")
    draft.state["step"] = 1
    draft.end_phase(draft.begin_phase("b"), b"\x01")
    with pytest.raises(Refused, match=r"'a' is called twice, and run.state changed between"):
        draft.begin_phase("a")


def test_failed_phase_may_be_called_again():
    draft = Draft()
    field = draft.begin_phase("a")
    draft.end_phase(field, None)
    draft.state["tries"] = 1
    assert draft.begin_phase("a") == field


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "\udc80", 3, None, b"bytes"])
def test_phase_name_must_be_storable(name):
    with pytest.raises(Refused, match="1 to 200"):
        Draft().begin_phase(name)


def test_cut_refuses_values_that_cannot_be_stored_and_names_their_path():
    draft = Draft(state={"a": [{1, 2}]})
    with pytest.raises(NotPlain, match=r"state.*a.*\[0\] is a set"):
        draft.cut()


def test_messages_may_be_part_of_the_state():
    draft = Draft()
    draft.messages.append({"n": [1]})
    draft.state["last"] = draft.messages[0]
    assert draft.cut().state == encode({"last": {"n": [1]}}, "s")


def test_checkpoint_that_is_too_large_is_refused_at_its_cut_until_the_transcript_is_shortened(monkeypatch):
    monkeypatch.setattr("workers.handlers.checkpoint.draft.CHECKPOINT_LIMIT", 1000)
    draft = Draft()
    for _ in range(4):
        draft.messages.append({"text": "x" * 200})
    draft.cut()
    draft.messages.append({"text": "x" * 200})
    with pytest.raises(TooLarge, match=r"1,0\d\d bytes, and the limit is 1,000"):
        draft.cut()
    draft.messages.replace(draft.messages[-2:])
    assert draft.cut().length == 2
