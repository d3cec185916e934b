"""The transcript of a run: a list that json and SDKs take, append-only, its items read-only.

An item is copied in and turned into bytes when it is appended, so that what can't be kept is refused at that line and not hours
later, and a save never walks the whole transcript.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, SupportsIndex

import msgpack

from coordinator.encoding.codec import decode, encode
from coordinator.errors import NotPlain, Refused

MESSAGE_LIMIT = 8 * 1024 * 1024
NESTED = 200  # levels of a message: some hundreds of frames when it is made read-only, now and when it is loaded
INTERRUPTED = "interrupted, outcome unknown"


class ReadOnly(Refused, TypeError):
    """A message was edited in place; use `run.messages.replace(…)`, or `copy()` to decorate one for a request."""


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise ReadOnly("a message can't be edited in place: use run.messages.replace(...), or .copy() for a changed copy")


class FrozenDict(dict[Any, Any]):
    """A dict that refuses edits and is a plain dict to everybody else."""

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def copy(self) -> dict[Any, Any]:
        return {key: thawed(value) for key, value in self.items()}

    def __reduce__(self) -> Any:  # deepcopy and pickle: else they fill an empty one, item by item
        return dict, (self.copy(),)


class FrozenList(list[Any]):
    """A list that refuses edits and is a plain list to everybody else."""

    __setitem__ = __delitem__ = append = clear = extend = insert = pop = remove = reverse = sort = _refuse
    __iadd__ = __imul__ = _refuse

    def copy(self) -> list[Any]:
        return [thawed(value) for value in self]

    def __reduce__(self) -> Any:
        return list, (self.copy(),)


def frozen(value: Any, room: int = 1_000_000) -> Any:
    """The value with every dict and list in it read-only; RecursionError where it has more levels than there is room for."""
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
    """A plain copy that may be edited, of messages and of what holds some."""
    if type(value) is dict or type(value) is FrozenDict:
        return {key: thawed(inner) for key, inner in value.items()}
    if type(value) is list or type(value) is FrozenList:
        return [thawed(inner) for inner in value]
    if type(value) is tuple:
        return tuple(thawed(inner) for inner in value)
    return value


def kept(value: Any, place: str, limit: int) -> bytes:
    """The bytes of plain data in which messages may stand: read-only or not, they are plain data."""
    try:
        return encode(value, place, limit)
    except NotPlain as refused:
        return _encoded(thawed, value, place, limit, refused)


def _encoded(made_plain: Callable[[Any], Any], value: Any, place: str, limit: int, refused: NotPlain) -> bytes:
    """Of what it becomes; one that has no end, or is too deep to walk, stays refused as it was."""
    try:
        return encode(made_plain(value), place, limit)
    except RecursionError:
        raise refused from None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model asked for."""

    id: str
    name: str
    arguments: Any
    style: str


class Messages(list[Any]):
    """`run.messages`. Append to it; everything else that changes a list is refused, except `replace`."""

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
        place = f"messages[{len(self)}]"
        try:
            data = encode(item, place, MESSAGE_LIMIT)
        except NotPlain as refused:
            data = _encoded(plain, item, place, MESSAGE_LIMIT, refused)
        try:
            kept_item = frozen(decode(data, place), NESTED)
        except RecursionError:
            raise NotPlain(f"{place} is nested deeper than {NESTED} levels, which can't be kept") from None
        self.packed.append(data)
        self.size += len(data)
        super().append(kept_item)

    def extend(self, items: Iterable[Any]) -> None:
        for item in items:
            self.append(item)

    def __iadd__(self, items: Iterable[Any]) -> Messages:  # type: ignore[misc]
        self.extend(items)
        return self

    def replace(self, items: Iterable[Any]) -> None:
        """Another transcript in the place of this one (an agent's own compaction)."""
        fresh = Messages()
        fresh.extend(items)
        self.generation += 1
        self.packed, self.size = fresh.packed, fresh.size
        super().__setitem__(slice(None), list(fresh))

    def copy(self) -> list[Any]:
        """Plain copies, to decorate for one request."""
        return [thawed(item) for item in self]

    def open_calls(self) -> list[ToolCall]:
        """Tool calls without a result, in order (OpenAI Chat and Responses, Anthropic)."""
        answered = {id for item in self for id in _answers(item)}
        return [call for item in self for call in _calls(item) if call.id not in answered]

    def close_calls(self, text: str = INTERRUPTED) -> None:
        """Answers the open calls, for tools that must not run twice: their outcome is unknown."""
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
    """A message as its SDK sends it: pydantic objects, also within lists and dicts, without what was never set."""
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


def chunk(packed: list[bytes]) -> bytes:
    """Packed messages as one msgpack array, without packing them again."""
    return msgpack.Packer().pack_array_header(len(packed)) + b"".join(packed)  # type: ignore[no-any-return]


def unchunk(data: bytes, place: str) -> list[tuple[bytes, Any]]:
    """The messages of a chunk, each with its bytes."""
    return [(encode(value, place), value) for value in decode(data, place)]
