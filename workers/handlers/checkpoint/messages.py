"""The transcript of a run: an append-only list of read-only items that JSON encoders and SDKs accept.

`append` copies and encodes an item immediately. A value that cannot be stored is therefore refused at that line and not hours
later, and a save never has to walk the whole transcript.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, SupportsIndex

import msgpack

from coordinator.encoding.codec import decode, encode
from coordinator.errors import NotPlain, Refused

MESSAGE_LIMIT = 8 * 1024 * 1024
NESTED = 200  # levels of a message; to freeze a message takes a few stack frames per level
_UNCHANGING = frozenset({str, int, float, bool, type(None), bytes})
_ARRAY, _SHORT_ARRAY = 0x90, 16  # msgpack: the header of an array with fewer than 16 elements is one byte
INTERRUPTED = "interrupted, outcome unknown"


class ReadOnly(Refused, TypeError):
    """The error that is raised when code edits a message in place.

    Use `run.messages.replace(…)` to change the transcript, or `copy()` to get a copy that may be edited.
    """


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise ReadOnly("a message can't be edited in place: use run.messages.replace(...), or .copy() for a changed copy")


class FrozenDict(dict[Any, Any]):
    """A dict that cannot be edited. Other code sees an ordinary dict."""

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def copy(self) -> dict[Any, Any]:
        """Return an ordinary dict that may be edited, with ordinary values."""
        return {key: thawed(value) for key, value in self.items()}

    def __reduce__(self) -> Any:  # else deepcopy and pickle would fill an empty FrozenDict, item by item
        return dict, (self.copy(),)


class FrozenList(list[Any]):
    """A list that cannot be edited. Other code sees an ordinary list."""

    __setitem__ = __delitem__ = append = clear = extend = insert = pop = remove = reverse = sort = _refuse
    __iadd__ = __imul__ = _refuse

    def copy(self) -> list[Any]:
        """Return an ordinary list that may be edited, with ordinary values."""
        return [thawed(value) for value in self]

    def __reduce__(self) -> Any:
        return list, (self.copy(),)


def frozen(value: Any, room: int = 1_000_000) -> Any:
    """Return a copy of a value in which all dicts and lists are read-only.

    Args:
        value: Plain data.
        room: The number of levels that the value may have.

    Raises:
        RecursionError: If the value has more levels.
    """
    if not room:
        raise RecursionError
    if type(value) is dict:
        return FrozenDict({key: frozen(inner, room - 1) for key, inner in value.items()})
    if type(value) is list:
        return FrozenList([frozen(inner, room - 1) for inner in value])
    if type(value) is tuple:
        return tuple(frozen(inner, room - 1) for inner in value)
    return value


def thawed(value: Any) -> Any:
    """Return a copy of a value in which all dicts and lists may be edited."""
    if type(value) is dict or type(value) is FrozenDict:
        return {key: thawed(inner) for key, inner in value.items()}
    if type(value) is list or type(value) is FrozenList:
        return [thawed(inner) for inner in value]
    if type(value) is tuple:
        return tuple(thawed(inner) for inner in value)
    return value


def encode_plain(value: Any, place: str, limit: int) -> bytes:
    """Encode plain data, which may contain read-only messages, and return the bytes.

    Args:
        value: The data.
        place: The name of the data in error messages.
        limit: The largest number of bytes.

    Raises:
        NotPlain: If the data contain a value that cannot be stored.
        TooLarge: If the result has more bytes than the limit.
    """
    try:
        return encode(value, place, limit)
    except NotPlain as refused:
        return _encoded(thawed, value, place, limit, refused)


def _encoded(made_plain: Callable[[Any], Any], value: Any, place: str, limit: int, refused: NotPlain) -> bytes:
    """Convert a value to plain data with `made_plain`, and return the encoded value.

    Raises:
        NotPlain: If the converted value is not plain. If the value contains itself, or is nested too deep to convert, the
            error `refused` is raised.
        TooLarge: If the result has more bytes than the limit.
    """
    try:
        return encode(made_plain(value), place, limit)
    except RecursionError:
        raise refused from None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that a model has requested.

    Attributes:
        id: The id of the call.
        name: The name of the tool.
        arguments: The arguments as the model gave them: a JSON string (OpenAI) or a dict (Anthropic).
        style: The message format: "chat" (OpenAI Chat Completions), "responses" (OpenAI Responses) or "anthropic".
    """

    id: str
    name: str
    arguments: Any
    style: str


class Messages(list[Any]):
    """The transcript of a run, `run.messages`.

    Handlers append messages to this list. `replace` replaces all messages. Every other change of the list, and every change of a
    message in it, raises ReadOnly.

    Args:
        items: Stored messages, each with its encoded form.
        generation: The number of the transcript. `replace` increases it.
    """

    def __init__(self, items: Iterable[tuple[bytes, Any]] = (), generation: int = 1) -> None:
        super().__init__()
        self.packed: list[bytes] = []
        self.size = 0
        self.generation = generation
        for data, value in items:
            self.packed.append(data)
            self.size += len(data)
            super().append(frozen(value))

    def append(self, item: Any) -> None:
        """Append a message.

        Args:
            item: Plain data, or a pydantic object of an SDK, which is stored as the SDK would send it.

        Raises:
            NotPlain: If the message contains a value that cannot be stored, or is nested deeper than 200 levels.
            TooLarge: If the message has more than 8 MiB.
        """
        place = f"messages[{len(self)}]"
        try:
            data = encode(item, place, MESSAGE_LIMIT)
        except NotPlain as refused:
            data = _encoded(plain, item, place, MESSAGE_LIMIT, refused)
        if _is_flat(item):
            kept_item: Any = FrozenDict(item)
        else:
            try:
                kept_item = frozen(decode(data, place), NESTED)
            except RecursionError:
                raise NotPlain(f"{place} is nested deeper than {NESTED} levels and can't be stored") from None
        self.packed.append(data)
        self.size += len(data)
        super().append(kept_item)

    def extend(self, items: Iterable[Any]) -> None:
        """Append several messages. If one of them is refused, the messages before it stay appended.

        Raises:
            NotPlain: If a message cannot be stored.
            TooLarge: If a message is too large.
        """
        for item in items:
            self.append(item)

    def __iadd__(self, items: Iterable[Any]) -> Messages:  # type: ignore[misc]
        self.extend(items)
        return self

    def replace(self, items: Iterable[Any]) -> None:
        """Replace the whole transcript, for example with a summary of it.

        Args:
            items: The messages of the new transcript.

        Raises:
            NotPlain: If a message cannot be stored. The transcript then stays as it was.
            TooLarge: If a message is too large. The transcript then stays as it was.
        """
        fresh = Messages()
        fresh.extend(items)
        self.generation += 1
        self.packed, self.size = fresh.packed, fresh.size
        super().__setitem__(slice(None), list(fresh))

    def copy(self) -> list[Any]:
        """Return copies of the messages that may be edited, for example for one request to a model."""
        return [thawed(item) for item in self]

    def open_calls(self) -> list[ToolCall]:
        """Return the tool calls that have no result in the transcript, in order.

        The formats of OpenAI Chat Completions, OpenAI Responses and Anthropic are recognized.
        """
        answered = {id for item in self for id in _answers(item)}
        return [call for item in self for call in _calls(item) if call.id not in answered]

    def close_calls(self, text: str = INTERRUPTED) -> None:
        """Append a result for each open tool call.

        Use it after a resume for tools that must not run twice. Whether such a tool was carried out is unknown.

        Args:
            text: The text of the results.
        """
        calls = self.open_calls()
        blocks = [
            {"type": "tool_result", "tool_use_id": c.id, "content": text, "is_error": True}
            for c in calls
            if c.style == "anthropic"
        ]
        for call in calls:
            if call.style == "chat":
                self.append({"role": "tool", "tool_call_id": call.id, "content": text})
            elif call.style == "responses":
                self.append({"type": "function_call_output", "call_id": call.id, "output": text})
        if blocks:
            self.append({"role": "user", "content": blocks})

    __delitem__ = clear = insert = pop = remove = reverse = sort = __imul__ = _refuse

    def __setitem__(self, index: SupportsIndex | slice, value: Any) -> NoReturn:
        _refuse(self)

    def __reduce__(self) -> Any:
        return (list, (self.copy(),))


def plain(item: Any) -> Any:
    """Return a message as its SDK would send it: pydantic objects become dicts without the fields that were never set."""
    if type(item) is dict or type(item) is FrozenDict:
        return {key: plain(inner) for key, inner in item.items()}
    if type(item) is list or type(item) is FrozenList:
        return [plain(inner) for inner in item]
    if type(item) is tuple:
        return tuple(plain(inner) for inner in item)
    dump = getattr(item, "model_dump", None)
    return item if dump is None or isinstance(item, type) else dump(mode="json", exclude_unset=True)


def _calls(item: Any) -> Iterator[ToolCall]:
    if not isinstance(item, dict):
        return
    for call in _dicts(item.get("tool_calls")):
        function = call.get("function") or {}
        yield ToolCall(str(call.get("id")), str(function.get("name")), function.get("arguments"), "chat")
    if item.get("type") == "function_call":
        yield ToolCall(str(item.get("call_id")), str(item.get("name")), item.get("arguments"), "responses")
    if item.get("role") == "assistant":
        for block in _dicts(item.get("content")):
            if block.get("type") == "tool_use":
                yield ToolCall(str(block.get("id")), str(block.get("name")), block.get("input"), "anthropic")


def _answers(item: Any) -> Iterator[str]:
    if not isinstance(item, dict):
        return
    if item.get("role") == "tool":
        yield str(item.get("tool_call_id"))
    if item.get("type") == "function_call_output":
        yield str(item.get("call_id"))
    for block in _dicts(item.get("content")):
        if block.get("type") == "tool_result":
            yield str(block.get("tool_use_id"))


def _dicts(value: Any) -> list[dict[Any, Any]]:
    return [inner for inner in value if isinstance(inner, dict)] if isinstance(value, (list, tuple)) else []


def _is_flat(item: Any) -> bool:
    """Return True if a message is a dict without nested values, so that a copy of it equals the message in the store."""
    return (
        type(item) is dict
        and _UNCHANGING.issuperset(map(type, item.values()))
        and _UNCHANGING.issuperset(map(type, item))
    )


def chunk(packed: list[bytes]) -> bytes:
    """Join encoded messages into one msgpack array without encoding them again, and return the array."""
    if len(packed) < _SHORT_ARRAY:
        return b"%c%b" % (_ARRAY | len(packed), packed[0] if len(packed) == 1 else b"".join(packed))
    return msgpack.Packer().pack_array_header(len(packed)) + b"".join(packed)  # type: ignore[no-any-return]


def unchunk(data: bytes, place: str) -> list[tuple[bytes, Any]]:
    """Split a chunk into its messages, and return each message with its encoded form.

    Raises:
        Unreadable: If the data is not a chunk. The error message names the data by `place`.
    """
    return [(encode(value, place), value) for value in decode(data, place)]
