"""Plans of an attempt: save a checkpoint of the run, wait, and end the attempt.

Each plan sends the token of the run's owner. If another worker owns the run by now, the server answers `fenced` and writes nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from coordinator.encoding.seal import sealed
from coordinator.model.policies.budget import Amount
from coordinator.model.story import brief
from coordinator.store.keys import Keys
from coordinator.store.replies import text, word
from coordinator.store.script import Request
from coordinator.store.scripts import (
    CHECKPOINT,
    COLLECT,
    COMPLETE,
    EMIT,
    EXTEND,
    FAIL,
    JOIN_CHILDREN,
    KILL,
    NOTE,
    RECEIVE,
    REJECT,
    RELEASE,
    RETRY,
    SPEND,
    SUSPEND,
)


@dataclass(frozen=True, slots=True)
class Delta:
    """The changes of a checkpoint since the last acknowledged save. DELTA in store/formats.py describes the attributes."""

    seq: int
    acked: int
    generation: int
    base: int
    count: int
    chunk: bytes
    iteration: int
    schema: int
    state: bytes | None
    phases: tuple[tuple[str, bytes], ...] = ()
    drop: tuple[str, ...] = ()
    note: bytes = b""
    unfinished: bytes = b""
    more: bytes | None = None  # None: as it was
    output: bytes | None = None  # None: no events; never without `more`

    def wire(self) -> bytes:
        """Return the delta as netstrings, the form in which the scripts read it."""
        phases = [part for name, output in self.phases for part in (name.encode(), sealed(output))]
        drop = [name.encode() for name in self.drop]
        return b"".join(
            (
                _number(self.seq), _number(self.acked), _number(self.generation), _number(self.base), _number(self.count),
                _netstring(sealed(self.chunk)), _number(self.iteration), _number(self.schema),
                b"4:same0:" if self.state is None else b"3:set" + _netstring(sealed(self.state)),
                _netstring(netstrings(phases)) if phases else _EMPTY, _netstring(netstrings(drop)) if drop else _EMPTY,
                _netstring(sealed(self.note)) if self.note else _EMPTY,
                _netstring(sealed(self.unfinished)) if self.unfinished else _EMPTY,
                b"" if self.more is None else _netstring(self.more), b"" if self.output is None else _netstring(self.output),
            )
        )  # fmt: skip


_EMPTY = b"0:"


def _netstring(part: bytes) -> bytes:
    return b"%d:%b" % (len(part), part)


@lru_cache(maxsize=4096)  # each save has seven numbers, most of them small
def _number(number: int) -> bytes:
    return _netstring(b"%d" % number)


def netstrings(parts: Iterable[bytes]) -> bytes:
    """Return the parts one after the other, each as `<length>:<bytes>`."""
    return b"".join([b"%d:%b" % (len(part), part) for part in parts])  # a list is faster here than a generator


def checkpoint(
    keys: Keys, id: str, token: str, delta: Delta | bytes, now: str = ""
) -> Generator[Request, Any, tuple[str, int]]:
    """Save a checkpoint of a run.

    Args:
        keys: The keys of the run's partition.
        id: The id of the run.
        token: The token of the run's owner.
        delta: The changes since the last acknowledged save, encoded or not.
        now: The time in ms, for namespaces with the test clock.

    Returns:
        The answer word of checkpoint.lua (ok, gap, old, fenced, bad, unreadable), and the run's progress counter.
    """
    wire = delta if isinstance(delta, bytes) else delta.wire()
    reply = yield CHECKPOINT.each(keys.at, id, {"now": now}, id=id, token=token, delta=wire)
    return word(reply), int(reply[1]) if len(reply) > 1 else 0


def checkpoints(
    at: str, saves: Sequence[tuple[str, str, bytes]], now: str = ""
) -> Generator[Request, Any, list[tuple[str, int]]]:
    """Save checkpoints of several runs of one partition with one request.

    Args:
        at: The hash tag of the partition.
        saves: The id of each run, its token and the encoded changes.
        now: The time in ms, for namespaces with the test clock.

    Returns:
        For each run the answer word of checkpoint.lua, and the run's progress counter.
    """
    reply = yield CHECKPOINT.call(at, saves, now=now)
    return [(word(answer), int(answer[1]) if len(answer) > 1 else 0) for answer in reply]


def note(keys: Keys, id: str, token: str, note: bytes) -> Generator[Request, Any, str]:
    """Store a progress note of the run, and return `ok`, or `fenced` if the token is not the owner's."""
    reply = yield NOTE.each(keys.at, id, {}, id=id, token=token, note=sealed(note))
    return word(reply)


@dataclass(frozen=True, slots=True)
class Output:
    """Events that the server may not have stored yet (see lua/shared/output.lua).

    Attributes:
        first: The number of the first event.
        base: The number of the last event that the checkpoint covered when the attempt began.
        settled: The number of the last event that the newest save covers; 0 if no save is sent with the events.
        events: A letter (e for an event, n for a note) and the encoded value, for each event.
    """

    first: int
    base: int
    settled: int
    events: tuple[bytes, ...] = ()

    @property
    def last(self) -> int:
        """The number of the last event."""
        return self.first + len(self.events) - 1

    def wire(self) -> bytes:
        """Return the events as netstrings, the form in which the scripts read them."""
        return netstrings([b"%d %d %d" % (self.first, self.base, self.settled), *self.events])


def emit(at: str, outputs: Sequence[tuple[str, str, Output]], now: str = "") -> Generator[Request, Any, list[str]]:
    """Store events of several runs of one partition with one request.

    Args:
        at: The hash tag of the partition.
        outputs: The id of each run, its token and its events.
        now: The time in ms, for namespaces with the test clock.

    Returns:
        For each run the answer word of emit.lua: ok, fenced or bad.
    """
    reply = yield EMIT.call(at, [(id, token, output.wire()) for id, token, output in outputs], now=now)
    return [word(answer) for answer in reply]


def spend(keys: Keys, id: str, token: str, amount: Amount) -> Generator[Request, Any, tuple[str, Amount]]:
    """Store the total that the attempt has spent of the run's budget.

    Returns:
        The answer word of spend.lua (ok, fenced, bad), and the amount that earlier attempts and children of the run have spent.
    """
    usd, tokens, requests = amount
    reply = yield SPEND.call(keys.at, id=id, token=token, usd=usd, tokens=tokens, requests=requests)
    return word(reply), Amount(*(int(number) for number in reply[1:]))


def complete(
    keys: Keys, id: str, token: str, result: bytes, now: str = "", output: bytes = b"", keep: bool = False
) -> Generator[Request, Any, str]:
    """Complete the run with a result, and store its last events.

    If a cancel was requested, this plan releases the run instead, which ends it as cancelled. complete.lua is the most frequent
    script, so it does not contain the code for that.

    Args:
        keys: The keys of the run's partition.
        id: The id of the run.
        token: The token of the run's owner.
        result: The encoded result.
        now: The time in ms, for namespaces with the test clock.
        output: The last events, encoded; empty if there are none.
        keep: Keep the checkpoint as long as the run, instead of deleting it.

    Returns:
        `ok`, `fenced` (the token is not the owner's), or the answer word of release.lua after a requested cancel.
    """
    rest = (b"k" if keep else b"-") + output if output or keep else b""
    reply = yield COMPLETE.each(keys.at, id, {"now": now}, id=id, token=token, result=sealed(result), rest=rest)
    if word(reply) == "requested":
        return (yield from release(keys, id, token, mode="stopping", now=now))
    return word(reply)


def fail(
    keys: Keys, id: str, token: str, error: bytes, delta: bytes = b"", now: str = ""
) -> Generator[Request, Any, str]:
    """End the run as failed, with a last checkpoint if `delta` is given.

    Args:
        keys: The keys of the run's partition.
        id: The id of the run.
        token: The token of the run's owner.
        error: The encoded error of the handler.
        delta: The last checkpoint, encoded; empty for none.
        now: The time in ms, for namespaces with the test clock.

    Returns:
        The answer word of fail.lua: ok, cancelled, fenced or gap.
    """
    reply = yield FAIL.call(
        keys.at, now=now, id=id, token=token, error=sealed(error), brief=sealed(brief(error)), delta=delta
    )
    return word(reply)


def retry(
    keys: Keys,
    id: str,
    token: str,
    *,
    delay: float,
    error: bytes,
    from_start: bool = False,
    asked: bool = False,
    delta: bytes = b"",
    now: str = "",
) -> Generator[Request, Any, str]:
    """Delay the run after a failure, so that a worker retries it.

    Args:
        keys: The keys of the run's partition.
        id: The id of the run.
        token: The token of the run's owner.
        delay: Seconds until the next attempt.
        error: The encoded error of the handler.
        from_start: Drop the checkpoint, so that the next attempt starts from the beginning.
        asked: True if the handler asked for the retry with RetryLater.
        delta: The last checkpoint, encoded; empty for none.
        now: The time in ms, for namespaces with the test clock.

    Returns:
        The answer word of retry.lua: ok, cancelled, failed, fenced or gap.
    """
    reply = yield RETRY.call(
        keys.at,
        now=now,
        id=id,
        token=token,
        delay=round(delay * 1000),
        error=sealed(error),
        brief=sealed(brief(error)),
        from_start=int(from_start),
        asked=int(asked),
        delta=delta,
    )
    return word(reply)


def release(
    keys: Keys, id: str, token: str, *, mode: str, jitter: float = 0.5, delta: bytes = b"", now: str = ""
) -> Generator[Request, Any, str]:
    """Release the run, with a last checkpoint if `delta` is given.

    Args:
        keys: The keys of the run's partition.
        id: The id of the run.
        token: The token of the run's owner.
        mode: `stopping` if the worker was asked to stop the run, so that the run is requeued immediately. `unasked` otherwise: the
            run is delayed, and gets a strike if it made no progress.
        jitter: A number from 0 to 1, which spreads delays.
        delta: The last checkpoint, encoded; empty for none.
        now: The time in ms, for namespaces with the test clock.

    Returns:
        The answer word of release.lua: ok, delayed, dead, cancelled, failed, fenced or gap.
    """
    reply = yield RELEASE.call(keys.at, now=now, id=id, token=token, mode=mode, jitter=str(jitter), delta=delta)
    return word(reply)


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition that a run waits for (see lua/shared/waiting.lua).

    Attributes:
        deadline: The server time in ms at which the wait ends; None to wait without a limit.
        received: For each topic that the run waits for, the number of the last signal that it has received.
        children: For each step that the run waits for, by its base, how many of its children must have ended.
    """

    deadline: int | None = None
    received: Mapping[str, int] = field(default_factory=dict)
    children: Mapping[str, int] = field(default_factory=dict)

    def wire(self) -> str:
        """Return the condition as the text that the scripts read: the deadline or "-", then a part for each topic and step."""
        parts = [f"s:{topic}:{number}" for topic, number in self.received.items()]
        parts += [f"c:{base}:{need}" for base, need in self.children.items()]
        return " ".join(["-" if self.deadline is None else str(self.deadline), *parts])


def suspend(
    keys: Keys, id: str, token: str, *, condition: Condition, jitter: float = 0.5, delta: bytes = b"", now: str = ""
) -> Generator[Request, Any, str]:
    """Suspend the run until its condition is true, with a last checkpoint if `delta` is given.

    Args:
        keys: The keys of the run's partition.
        id: The id of the run.
        token: The token of the run's owner.
        condition: The condition. If it is already true, the run is requeued or delayed instead.
        jitter: A number from 0 to 1, which spreads delays.
        delta: The last checkpoint, encoded; empty for none.
        now: The time in ms, for namespaces with the test clock.

    Returns:
        The answer word of suspend.lua: waiting, ok, delayed, cancelled, failed, fenced, gap or bad.
    """
    reply = yield SUSPEND.call(
        keys.at, now=now, id=id, token=token, condition=condition.wire(), jitter=str(jitter), delta=delta
    )
    return word(reply)


@dataclass(frozen=True, slots=True)
class Received:
    """The answer to a request for the next signal.

    Attributes:
        word: The answer word of receive.lua: signal, timeout (the deadline has passed), none, fenced, bad or unreadable.
        now: The server's time in ms.
        deadline: The server time in ms at which the wait ends; None without a limit.
        topic: The topic of the signal.
        number: The number of the signal in its topic.
        payload: The encoded payload of the signal.
    """

    word: str
    now: int = 0
    deadline: int | None = None
    topic: str = ""
    number: int = 0
    payload: bytes = b""


def receive(
    keys: Keys, id: str, token: str, condition: Condition, *, timeout_ms: int | None = None, now: str = ""
) -> Generator[Request, Any, Received]:
    """Read the next signal of the given topics. Nothing is written: the next save of the run records the signal as received.

    Args:
        keys: The keys of the run's partition.
        id: The id of the run.
        token: The token of the run's owner.
        condition: The topics, and the deadline if it is known already.
        timeout_ms: The time from now to the deadline, if the deadline is not known yet.
        now: The time in ms, for namespaces with the test clock.
    """
    reply = yield RECEIVE.call(
        keys.at,
        list(condition.received.items()),
        now=now,
        id=id,
        token=token,
        deadline="" if condition.deadline is None else condition.deadline,
        timeout="" if timeout_ms is None else timeout_ms,
    )
    answer = word(reply)
    if answer not in ("signal", "timeout", "none"):
        return Received(answer)
    clock, deadline = int(reply[1]), int(reply[2]) if reply[2] else None
    if answer != "signal":
        return Received(answer, clock, deadline)
    topic, number, payload = reply[3:]
    return Received(answer, clock, deadline, text(topic), int(number), payload)


def join_children(
    keys: Keys, id: str, token: str, *, order: int, base: str, count: int, old: str = ""
) -> Generator[Request, Any, tuple[str, int]]:
    """Announce the children of a step before they are enqueued.

    Args:
        keys: The keys of the run's partition.
        id: The id of the parent.
        token: The token of the parent's owner.
        order: The number of this call among the calls of `join_children` and `drop_steps` by this owner. A repeated call has
            the same number.
        base: The id of the first child of the step.
        count: How many children the step may create.
        old: The base of the same step in an earlier life, if there was one. Results of its completed children are kept, and
            its open children are cancelled.

    Returns:
        The answer word of join_children.lua (ok, fenced, late, bad, unreadable), and how many children have ended.
    """
    reply = yield JOIN_CHILDREN.call(keys.at, [], id=id, token=token, order=order, base=base, old=old, count=count)
    return word(reply), int(reply[1]) if len(reply) > 1 else 0


def drop_steps(keys: Keys, id: str, token: str, bases: Sequence[str], *, order: int) -> Generator[Request, Any, str]:
    """Drop steps of a run: coordinators cancel their open children, and their results are deleted.

    Args:
        keys: The keys of the run's partition.
        id: The id of the parent.
        token: The token of the parent's owner.
        bases: The bases of the steps.
        order: The number of this call, as for `join_children`.

    Returns:
        The answer word of join_children.lua (ok, fenced, late, unreadable).
    """
    left = [(one,) for one in bases]
    reply = yield JOIN_CHILDREN.call(keys.at, left, id=id, token=token, order=order, base="", old="", count=0)
    return word(reply)


@dataclass(frozen=True, slots=True)
class ChildEnding:
    """The ending of a joined child.

    Attributes:
        index: The position of the child in its step, from 0.
        status: The status in which the child ended.
        payload: The encoded result of a completed child; otherwise netstrings: the encoded error, and the reason.
    """

    index: int
    status: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Collected:
    """A page of the endings of a step's children.

    Attributes:
        word: The answer word of collect.lua: ok, fenced, missing, bad.
        spawned: How many children the step may create.
        ended: How many of them have ended.
        endings: The endings of this page.
    """

    word: str
    spawned: int = 0
    ended: int = 0
    endings: tuple[ChildEnding, ...] = ()


def collect(
    keys: Keys, id: str, token: str, *, base: str, by: str, start: int, room: int = 1024 * 1024
) -> Generator[Request, Any, Collected]:
    """Return a page of the endings of a step's children.

    Args:
        keys: The keys of the run's partition.
        id: The id of the parent.
        token: The token of the parent's owner.
        base: The id of the first child of the step.
        by: `index` for the order of the step, counted from 0, or `order` for the order of the endings, counted from 1.
        start: The first number of the page, in this order.
        room: The size in bytes to which a page is limited. A page has at least one ending, if there is one.
    """
    reply = yield COLLECT.call(keys.at, id=id, token=token, base=base, by=by, start=start, room=room)
    if word(reply) != "ok":
        return Collected(word(reply))
    rows = reply[3]
    endings = (ChildEnding(int(rows[i]), text(rows[i + 1]), rows[i + 2]) for i in range(0, len(rows), 3))
    return Collected("ok", int(reply[1]), int(reply[2]), tuple(endings))


def reject(
    keys: Keys, id: str, token: str, *, proven: bool, error: bytes, jitter: float = 0.5, now: str = ""
) -> Generator[Request, Any, str]:
    """Delay a run whose attempt failed before the first line of its handler.

    Args:
        keys: The keys of the run's partition.
        id: The id of the run.
        token: The token of the run's owner.
        proven: True if a handler of the kind has started in this process before. Only then does the attempt count as a strike.
        error: The encoded error.
        jitter: A number from 0 to 1, which spreads delays.
        now: The time in ms, for namespaces with the test clock.

    Returns:
        The answer word of reject.lua: delayed, dead, cancelled, failed or fenced.
    """
    reply = yield REJECT.call(
        keys.at,
        now=now,
        id=id,
        token=token,
        proven=int(proven),
        jitter=str(jitter),
        error=sealed(error),
        brief=sealed(brief(error)),
    )
    return word(reply)


def extend(keys: Keys, id: str, token: str, *, number: int, seconds: float) -> Generator[Request, Any, str]:
    """Extend the soft deadline of a run by some seconds.

    Args:
        keys: The keys of the run's partition.
        id: The id of the run.
        token: The token of the run's owner.
        number: The number of this extension, counted from 1, by which the server recognises a repeated call.
        seconds: The seconds to add.

    Returns:
        `ok`, or `fenced` if the token is not the owner's.
    """
    reply = yield EXTEND.call(keys.at, id=id, token=token, number=number, ms=round(seconds * 1000))
    return word(reply)


def kill(keys: Keys, id: str, token: str, error: bytes) -> Generator[Request, Any, str]:
    """Mark a run as killed: it will fail with this error, whatever happens to its worker.

    Returns:
        `ok`, or `fenced` if the token is not the owner's.
    """
    reply = yield KILL.call(keys.at, id=id, token=token, error=sealed(error))
    return word(reply)
