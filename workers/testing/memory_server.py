"""The part of the server for runs that live in memory: their signals, clock, children, enqueued runs and output."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from coordinator.clock import SystemClock
from coordinator.encoding.codec import encode
from coordinator.errors import KeyConflict
from coordinator.model.enqueue import Inputs
from coordinator.model.names import name
from coordinator.model.run_id import RunIds, child_base
from coordinator.store.plans.attempts import ChildEnding, Collected, Condition, Received, netstrings
from workers.handlers.operations.children import Child
from workers.handlers.operations.enqueues import Enqueued


def _start_ms() -> int:
    return int(SystemClock().now() * 1000)


@dataclass(frozen=True, slots=True)
class EnqueuedRun:
    """A run that a handler enqueued in memory with `run.enqueue`. It is not executed.

    Attributes:
        id: The id of the run.
        kind: The kind of the run.
        inputs: The inputs of the run by name.
        options: The options of the call, for example `key` and `delay`.
    """

    id: str
    kind: str
    inputs: Mapping[str, Any]
    options: Mapping[str, Any]


@dataclass(slots=True)
class LimitedCall:
    """An external call under `run.limit` in memory.

    Attributes:
        name: The name of the limit.
        reserved: The tokens that the call reserved.
        cost: The tokens that the call has cost.
        back_off: The seconds of `limit.back_off`; None if it was not called.
        is_open: True until the block has ended.
    """

    name: str
    reserved: int
    cost: int
    back_off: float | None = None
    is_open: bool = True


@dataclass
class MemoryServer:
    """The signals, the clock, the children and the output of a run in memory. All attempts of a run share one server.

    Time stands still while a handler works, and jumps to the end of a sleep or a timeout when the handler waits for it.

    Attributes:
        now_ms: The time of the run's clock, in Unix ms. It starts at the time of the machine.
        signals: The signals: topic, number, time in ms, and encoded payload. Oldest first.
        keys: The idempotency keys that were used.
        endings: The endings of children by the base of their step, in the order in which they ended.
        ids: Makes the ids of children.
        enqueued: The runs that the handler enqueued without waiting for them, by id.
        output: The values that the handler emitted, as a reader has them at the end.
        limited: The external calls under a limit, oldest first.
    """

    now_ms: int = field(default_factory=_start_ms)
    signals: list[tuple[str, int, int, bytes]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    endings: dict[str, list[ChildEnding]] = field(default_factory=dict)
    ids: RunIds = field(default_factory=RunIds)
    enqueued: dict[str, EnqueuedRun] = field(default_factory=dict)
    output: list[Any] = field(default_factory=list)
    limited: list[LimitedCall] = field(default_factory=list)

    def make_child_base(self) -> str:
        """Return a new id for the first child of a step."""
        return child_base(self.now_ms / 1000, 0)

    async def run_child(self, child: Child, perform: Callable[[Child], Awaitable[Any]]) -> None:
        """Run a child, unless it has run before, and store its ending."""
        base = child.run.parent.split(" ")[2]
        endings = self.endings.setdefault(base, [])
        if any(one.index == child.index for one in endings):
            return
        try:
            result = await perform(child)
            endings.append(ChildEnding(child.index, "completed", encode(result, "result")))
        except Exception as error:  # noqa: BLE001  # whatever a child raises, it has failed
            failure = encode([type(error).__name__, str(error), ""], "error")
            endings.append(ChildEnding(child.index, "failed", netstrings([failure, b""])))

    def enqueue(self, id: str, inputs: Inputs[Any], options: Mapping[str, Any]) -> Enqueued:
        """Store an enqueued run, unless a run with the same id or key is stored. Return the answer to the enqueue.

        Raises:
            KeyConflict: If the key belongs to a run with other inputs.
        """
        key, same_key = options.get("key"), list[EnqueuedRun]()
        if key is not None and id not in self.enqueued:
            of_kind = [one for one in self.enqueued.values() if one.kind == inputs.kind]
            same_key = [one for one in of_kind if one.options.get("key") == key]
        if not same_key:
            self.enqueued.setdefault(id, EnqueuedRun(id, inputs.kind, dict(inputs.values), dict(options)))
            return Enqueued(id, True)
        if dict(same_key[0].inputs) != dict(inputs.values):
            raise KeyConflict(f"key {key!r} belongs to run {same_key[0].id}, which has other inputs")
        return Enqueued(same_key[0].id, False)

    def collect(self, base: str, by: str, start: int) -> Collected:
        """Return a page of the endings of a step's children, as the script collect.lua does."""
        endings = self.endings.get(base, [])
        if by == "order":
            page = endings[start - 1 :]
        else:
            page = [one for one in sorted(endings, key=lambda one: one.index) if one.index >= start]
        return Collected("ok", len(endings), len(endings), tuple(page))

    @property
    def now(self) -> datetime:
        """The time of the run's clock, in UTC."""
        return _datetime(self.now_ms)

    def send(self, topic: str, payload: Any = None, key: str | None = None) -> bool:
        """Send a signal to the run.

        Args:
            topic: The topic.
            payload: The payload, as plain data.
            key: The idempotency key. A second signal with the same key is not stored.

        Returns:
            False if a signal with this key was sent before.

        Raises:
            BadName: If the topic is not a valid name.
            NotPlain: If the payload is not plain data.
        """
        encoded = encode(payload, f"the payload of topic {name(topic, 'topic')!r}")
        if key is not None and key in self.keys:
            return False
        if key is not None:
            self.keys.add(key)
        number = 1 + sum(other == topic for other, *_ in self.signals)
        self.signals.append((topic, number, self.now_ms, encoded))
        return True

    def look(self, condition: Condition, timeout_ms: int | None) -> Received:
        """Return the next signal or the timeout, as the script receive.lua does."""
        deadline = condition.deadline
        if deadline is None and timeout_ms is not None:
            deadline = self.now_ms + timeout_ms
        for topic, number, at, payload in self.signals:
            if number == condition.received.get(topic, number) + 1 and (deadline is None or at <= deadline):
                return Received("signal", self.now_ms, deadline, topic, number, payload)
        over = deadline is not None and self.now_ms >= deadline
        return Received("timeout" if over else "none", self.now_ms, deadline)

    def jump(self, condition: Condition) -> None:
        """Set the run's clock forward to the deadline of a wait."""
        if condition.deadline is not None:
            self.now_ms = max(self.now_ms, condition.deadline)

    def wake_reason(self, condition: Condition) -> str:
        """Return the reason for which a server would wake a run with this condition: "signal <topic>" or "time".

        Return an empty text if the run still waits.
        """
        found = self.look(condition, None)
        return f"signal {found.topic}" if found.word == "signal" else "time" if found.word == "timeout" else ""


def deadline_of(condition: Condition) -> datetime | None:
    """Return the time in UTC at which a wait ends; None if only a signal ends the wait."""
    return None if condition.deadline is None else _datetime(condition.deadline)


def _datetime(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
