"""Histories: the requests of every process of a lab, and the replies. One JSON line per event, one write per line.

A line is written before the request is sent (invoke), and after the reply (ok, fail) or its loss (unknown). Times come
from CLOCK_MONOTONIC, which all processes of a machine share. The last calls of a killed process have no end, and count
as unknown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from coordinator.errors import CoordinatorError
from coordinator.model.policies.schedule import rules_from
from coordinator.store.script import Call
from coordinator.store.transport.packets import Packet

Outcome = Literal["ok", "fail", "unknown"]
NEVER = 2**63
_LONG = 96  # values up to this many bytes are stored as they are, longer ones as a digest
_DELTA = ("seq", "acked", "generation", "base", "count", "chunk", "iteration")


# ---- writing -----------------------------------------------------------------------------------------------------------


def to_plain(value: Any) -> Any:
    """Return a value as JSON: short text as it is, everything else as length and digest."""
    if isinstance(value, list | tuple):
        return [to_plain(part) for part in value]
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return digest(value)
        return text if len(value) <= _LONG else digest(value)
    if isinstance(value, str):
        return value if len(value) <= _LONG else digest(value.encode())
    return value


def digest(data: bytes) -> str:
    return f"#{len(data)}:{hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]}"


def describe_request(packet: Packet) -> dict[str, Any]:
    """Return the script of a packet and its arguments by name, item by item."""
    request = packet.request
    if not isinstance(request, Call):
        return {"script": str(request.arguments[0]).lower(), "at": request.at, "items": [{}]}
    script = request.script
    fixed = _given(script.arguments, request.fixed)
    if script.merges:
        items = [fixed | _given(script.item_fields, item) for item in packet.items or request.items]
    else:
        items = [fixed]
    return {"script": script.name, "at": request.at, "items": items}


def _given(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    return {
        name: _READ[name](bytes(value)) if name in _READ and value else to_plain(value)
        for name, value in zip(names, values, strict=True)
        if name not in ("now", "spec") and value != ""
    }


def delta(wire: bytes) -> dict[str, Any]:
    """Return the numbers of a delta, and the digest of its messages."""
    parts: list[bytes] = []
    while wire and len(parts) < len(_DELTA):
        length, _, rest = wire.partition(b":")
        parts.append(rest[: int(length)])
        wire = rest[int(length) :]
    named = dict(zip(_DELTA, parts, strict=True))
    return {name: digest(part) if name == "chunk" else int(part) for name, part in named.items()}


def interval(packed: bytes) -> float | None:
    """Return the seconds between two fire times of a schedule, or None if its rules are not a fixed interval."""
    try:
        return rules_from(packed).every or None
    except CoordinatorError:
        return None


_READ: dict[str, Callable[[bytes], Any]] = {"delta": delta, "rules": interval}


def reply_as_json(script: str, reply: Any) -> Any:
    """Return a reply as JSON. Of claimed runs, only what the judge needs is kept."""
    if script == "claim" and isinstance(reply, list) and len(reply) > 1:
        return [to_plain(reply[0]), [_claimed(row) for row in reply[1]]]
    if script == "load" and isinstance(reply, list) and len(reply) == 3:
        return [to_plain(reply[0]), _head(reply[1])]
    if script == "record_load" and isinstance(reply, list) and len(reply) == 4:
        return [to_plain(reply[0]), _head(reply[1])]
    return to_plain(reply)


def _claimed(row: Sequence[Any]) -> dict[str, Any]:
    id, token, route, _, cause, counters, *_, checkpoint = row
    claimed = {"id": id, "token": token, "route": route, "cause": cause, "counters": counters}
    claimed = {name: to_plain(value) for name, value in claimed.items()}
    if isinstance(checkpoint, list):
        claimed |= {"head": _head(checkpoint[0]), "chunks": {f.decode(): digest(c) for f, c in _pairs(checkpoint[1])}}
    elif checkpoint:
        claimed["head"] = "paged"
    return claimed


def _head(flat: Sequence[bytes]) -> str:
    return next((value.decode() for name, value in _pairs(flat) if name == b"head"), "")


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


# ---- reading -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Operation:
    """One call about one object, from request to reply. `ended` is NEVER if no reply came."""

    pid: int
    role: str
    script: str
    given: Mapping[str, Any]
    invoked: int
    ended: int = NEVER
    outcome: Outcome = "unknown"
    answer: Any = None

    @property
    def id(self) -> str:
        return str(self.given.get("id", ""))

    @property
    def token(self) -> str:
        return str(self.given.get("token", ""))

    @property
    def word(self) -> str:
        """The answer word, or an empty string if there was none."""
        if self.outcome != "ok":
            return ""
        return str(self.answer[0] if isinstance(self.answer, list) else self.answer)


@dataclass
class History:
    """All operations of all processes, in the order of the requests."""

    operations: list[Operation] = field(default_factory=list)

    def of(self, *scripts: str) -> Iterator[Operation]:
        return (operation for operation in self.operations if operation.script in scripts)


def read(directory: Path) -> History:
    """Read the histories in a directory."""
    operations: list[Operation] = []
    for path in sorted(directory.glob("history-*.jsonl")):
        operations += operations_of(_whole_lines(path))
    operations.sort(key=lambda operation: operation.invoked)
    return History(operations)


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().split(b"\n"):
        if line:
            yield json.loads(line)


def operations_of(lines: Iterable[Mapping[str, Any]]) -> list[Operation]:
    """Return the operations of one process."""
    found: list[Operation] = []
    open_calls: dict[int, list[Operation]] = {}
    for line in lines:
        if line["what"] == "invoke":
            calls = [
                Operation(line["pid"], line["role"], line["script"], given, line["time"]) for given in line["items"]
            ]
            open_calls[line["call"]] = calls
            found += calls
            continue
        calls = open_calls.pop(line["call"])
        answers: Any = line.get("answer")
        each = line["what"] == "ok" and line.get("each", False)
        for index, call in enumerate(calls):
            call.ended, call.outcome = line["time"] if line["what"] != "unknown" else NEVER, line["what"]
            call.answer = answers[index] if each else answers
    return found
