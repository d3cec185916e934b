"""The transcript: an append-only list of read-only, plain items that json and SDKs accept."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pydantic
import pytest

from coordinator.errors import NotPlain, Refused, TooLarge
from workers.handlers.checkpoint.messages import (
    NESTED,
    FrozenDict,
    FrozenList,
    Messages,
    ReadOnly,
    chunk,
    encode_plain,
    unchunk,
)

MESSAGE = {"role": "user", "content": [{"type": "text", "text": "hi", "tags": ["a", {"b": 1}]}]}


def filled(*items: Any) -> Messages:
    messages = Messages()
    messages.extend(items)
    return messages


# ---- a list


def test_messages_are_a_list_that_json_accepts():
    messages = filled(MESSAGE, "text", 3)
    assert isinstance(messages, list)
    assert json.loads(json.dumps(messages)) == [MESSAGE, "text", 3]
    assert json.dumps({"messages": messages, "last": messages[-2:]})
    assert messages == [MESSAGE, "text", 3]
    assert [*messages, 1] == [MESSAGE, "text", 3, 1]
    assert isinstance(messages[0], dict)


def test_appended_message_is_copied():
    item = copy.deepcopy(MESSAGE)
    messages = filled(item)
    item["role"] = "changed"
    item["content"][0]["tags"].append("changed")  # type: ignore[index]
    assert messages == [MESSAGE]


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m[0].update(a=1),
        lambda m: m[0].__setitem__("role", "x"),
        lambda m: m[0].pop("role"),
        lambda m: m[0].setdefault("x", 1),
        lambda m: m[0].__ior__({"x": 1}),
        lambda m: m[0].clear(),
        lambda m: m[0]["content"].append(1),
        lambda m: m[0]["content"][0].__delitem__("text"),
        lambda m: m[0]["content"][0]["tags"].insert(0, 1),
        lambda m: m[0]["content"][0]["tags"][1].update(b=2),
        lambda m: m[0]["content"].__iadd__([1]),
        lambda m: m[0]["content"].sort(),
        lambda m: m.__setitem__(0, 1),
        lambda m: m.__delitem__(0),
        lambda m: m.pop(),
        lambda m: m.insert(0, 1),
        lambda m: m.clear(),
        lambda m: m.sort(),
        lambda m: m.reverse(),
        lambda m: m.remove(m[0]),
        lambda m: m.__imul__(2),
    ],
)
def test_editing_a_message_raises_and_names_replace(edit):
    messages = filled(MESSAGE)
    with pytest.raises(ReadOnly, match="replace"):
        edit(messages)
    assert messages == [MESSAGE]
    with pytest.raises(TypeError):
        edit(messages)


@pytest.mark.parametrize(
    "content", ["text", 1, 1.5, True, None, b"bytes", [1], {"a": 1}, (1, [2]), datetime(2026, 1, 1, tzinfo=UTC)]
)
def test_message_is_a_read_only_copy_whatever_it_contains(content):
    messages, item = Messages(), {"role": "user", "content": content}
    messages.append(item)
    assert type(messages[0]) is FrozenDict
    [(_, stored)] = unchunk(chunk(messages.packed), "messages")
    assert messages[0] == stored
    assert type(messages[0]["content"]) in (type(content), FrozenDict, FrozenList)
    if isinstance(content, (list, dict)):
        assert messages[0]["content"] is not content
        with pytest.raises(ReadOnly):
            messages[0]["content"].clear()
    item["role"] = "other"
    assert messages[0]["role"] == "user"


@pytest.mark.parametrize("count", [1, 2, 15, 16, 70_000])
def test_chunk_of_any_length_has_its_messages(count):
    packed = [b"%c" % (number % 100) for number in range(count)]
    assert [value for _, value in unchunk(chunk(packed), "messages")] == [number % 100 for number in range(count)]


def test_copy_may_be_edited_without_changing_the_original():
    messages = filled(MESSAGE)
    plain = messages.copy()
    plain[0]["content"][0]["tags"][1]["b"] = 2
    plain[0]["content"].append("more")
    plain.pop()
    assert messages == [MESSAGE]


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301  # our own


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, pickled])
def test_copying_a_message_gives_a_plain_value(copied):
    messages = filled(MESSAGE)
    for value in (copied(messages), [copied(messages[0])]):
        assert value == [MESSAGE]
        value[0]["content"].append(1)
        value[0]["role"] = "x"
    assert messages == [MESSAGE]


def test_messages_can_be_appended_again_and_stored_elsewhere():
    messages = filled(MESSAGE)
    messages.append(messages[0])
    messages.append({"quoted": messages[0]["content"]})
    assert messages[2] == {"quoted": MESSAGE["content"]}
    messages += messages[:1]
    assert len(messages) == 4
    assert encode_plain({"last": messages[-1], "all": messages[:2]}, "state", 1 << 20)


def test_compaction_may_reuse_existing_messages_in_replace():
    messages = filled({"n": 0}, {"n": 1}, {"n": 2})
    messages.replace([{"summary": "0, 1"}, *messages[-1:]])
    assert messages == [{"summary": "0, 1"}, {"n": 2}]
    assert messages.generation == 2
    assert len(messages.packed) == 2
    messages.append({"n": 3})
    assert [value for _, value in unchunk(chunk(messages.packed), "c")] == messages


def test_refused_replacement_changes_nothing():
    messages = filled({"n": 0})
    with pytest.raises(NotPlain):
        messages.replace([{"n": 1}, object()])
    assert messages == [{"n": 0}]
    assert messages.generation == 1


# ---- plain data


def test_stored_message_round_trips_with_its_type():
    item = {"t": (1, (2,)), "b": b"\x00", "when": datetime(2020, 1, 1, tzinfo=UTC), "none": None, "f": 1.5}
    messages = filled(item)
    assert messages == [item]
    assert type(messages[0]["t"]) is tuple
    [(_, value)] = unchunk(chunk(messages.packed), "c")
    assert value == item
    assert type(value["t"][1]) is tuple


@pytest.mark.parametrize(
    ("item", "place"),
    [
        ({"a": [1, {2}]}, r"messages\[1\].*a.*\[1\] is a set"),
        (object(), r"messages\[1\]"),
        ({"n": 2**70}, r"messages\[1\].*n"),
    ],
)
def test_message_that_cannot_be_stored_is_refused_with_its_path(item, place):
    messages = filled({"n": 0})
    with pytest.raises(NotPlain, match=place):
        messages.append(item)
    assert messages == [{"n": 0}]
    assert len(messages.packed) == 1


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def endless() -> list[Any]:
    wheel: list[Any] = []
    wheel.append({"again": wheel})
    return wheel


@pytest.mark.parametrize(
    "item", [nested(NESTED + 1), nested(600), nested(5000), endless()], ids=["one level", "600", "5000", "endless"]
)
def test_deep_or_cyclic_message_is_refused_without_a_recursion_error(item):
    messages = filled({"n": 0})
    with pytest.raises(NotPlain, match=r"messages\[1\].* nested deeper than"):
        messages.append(item)
    assert messages == [{"n": 0}]
    assert len(messages.packed) == 1


def test_message_at_the_depth_limit_is_stored_and_loaded():
    messages = filled(nested(NESTED - 1))
    assert list(Messages(unchunk(chunk(messages.packed), "c"))) == [nested(NESTED - 1)]


@pytest.mark.parametrize("value", [nested(5000), endless(), {"with a message": filled({"n": 0}), "and": endless()}])
def test_cyclic_state_or_output_is_refused_by_name(value):
    with pytest.raises(NotPlain, match=r"^the output.*(nested deeper than|is a Messages)"):
        encode_plain(value, "the output", 1000)


def test_message_has_a_size_limit(monkeypatch):
    monkeypatch.setattr("workers.handlers.checkpoint.messages.MESSAGE_LIMIT", 100)
    with pytest.raises(TooLarge, match=r"messages\[0\]"):
        filled({"text": "x" * 200})


class Function(pydantic.BaseModel):
    name: str
    arguments: str


class Call(pydantic.BaseModel):
    id: str
    function: Function
    type: str = "function"


class Reply(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    role: str = "assistant"
    content: str | None = None
    tool_calls: list[Call] | None = None
    refusal: str | None = None


def test_pydantic_object_is_stored_as_its_sdk_sends_it():
    reply = Reply(role="assistant", tool_calls=[Call(id="c1", function=Function(name="f", arguments="{}"))], extra=1)  # type: ignore[call-arg]
    messages = filled(reply)
    assert messages == [
        {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}], "extra": 1}
    ]
    assert "refusal" not in messages[0], "what was never set is not sent"
    assert [call.id for call in messages.open_calls()] == ["c1"]


def test_pydantic_objects_inside_a_message_are_stored_too():
    class Block(pydantic.BaseModel):
        type: str
        text: str | None = None

    messages = filled({"role": "assistant", "content": [Block(type="text", text="hi"), Block(type="x")]})
    assert messages == [{"role": "assistant", "content": [{"type": "text", "text": "hi"}, {"type": "x"}]}]


def test_class_is_not_mistaken_for_an_object():
    with pytest.raises(NotPlain):
        filled(Reply)


# ---- tool calls


CHAT = [
    {"role": "assistant", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}},
        {"id": "c2", "type": "function", "function": {"name": "go", "arguments": "{}"}},
    ]},
    {"role": "tool", "tool_call_id": "c1", "content": "seen"},
]  # fmt: skip
RESPONSES = [
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'},
    {"type": "function_call", "call_id": "c2", "name": "go", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "seen"},
]
ANTHROPIC = [
    {"role": "assistant", "content": [
        {"type": "text", "text": "well"},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": 1}},
        {"type": "tool_use", "id": "c2", "name": "go", "input": {}},
    ]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "seen"}]},
]  # fmt: skip


@pytest.mark.parametrize(
    ("items", "style", "answer"),
    [
        (CHAT, "chat", {"role": "tool", "tool_call_id": "c2", "content": "interrupted, outcome unknown"}),
        (RESPONSES, "responses", {"type": "function_call_output", "call_id": "c2", "output": "interrupted, outcome unknown"}),
        (ANTHROPIC, "anthropic", {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c2", "content": "interrupted, outcome unknown", "is_error": True}
        ]}),
    ],
    ids=["chat", "responses", "anthropic"],
)  # fmt: skip
def test_open_calls_lack_a_result_and_close_calls_answers_them(items, style, answer):
    messages = filled(*items)
    assert [(call.id, call.name, call.style) for call in messages.open_calls()] == [("c2", "go", style)]
    assert filled(items[0]).open_calls()[0].id == "c1"
    messages.close_calls()
    assert messages[-1] == answer
    assert messages.open_calls() == []
    length = len(messages)
    messages.close_calls()
    assert len(messages) == length


def test_arguments_are_returned_as_the_model_gave_them():
    assert filled(*CHAT[:1]).open_calls()[0].arguments == '{"at": 1}'
    assert filled(*ANTHROPIC[:1]).open_calls()[0].arguments == {"at": 1}


@pytest.mark.parametrize(
    "odd",
    ["text", 3, None, {"tool_calls": "?"}, {"tool_calls": [1, None]}, {"role": "assistant", "content": [1, "x"]},
     {"role": "assistant", "content": None, "tool_calls": None}],
)  # fmt: skip
def test_messages_of_unknown_shape_have_no_open_calls(odd):
    assert filled(odd).open_calls() == []


def test_loaded_transcript_is_read_only_too():
    messages = filled(MESSAGE)
    loaded = Messages(unchunk(chunk(messages.packed), "c"), 3)
    assert loaded == messages
    assert loaded.packed == messages.packed
    assert type(loaded[0]) is FrozenDict
    with pytest.raises(Refused):
        loaded[0]["x"] = 1
