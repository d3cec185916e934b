"""What is shown: replies of the server as frozen views, and why a run waits, in words. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from coordinator.client.run_builder import read_spec, spec_of
from coordinator.encoding.codec import decode
from coordinator.errors import NotFound, RunCancelled, RunDead, RunFailed, Unreadable
from coordinator.model.deadline import DeadlineExceeded, Spent
from coordinator.model.run import Counters, Failure, Note, RunView, Status, made_at, parse_route
from coordinator.model.story import told
from coordinator.store.replies import pairs, text

# ---- how a run ended -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended."""

    run: str
    status: Status
    data: bytes
    error: bytes
    reason: str
    at: int
    bare: bool

    @classmethod
    def of(cls, run: str, reply: Sequence[Any]) -> Ending:
        """From the answer of wait.lua, without its word."""
        try:
            status, data, error, reason, at, bare = reply
            return cls(run, Status(text(status)), data, error, text(reason), int(at or 0), bool(bare))
        except ValueError as wrong:
            raise _corrupt(run, wrong) from wrong

    def result(self) -> Any:
        """What the handler returned; otherwise the error that says how it ended."""
        if self.status is Status.COMPLETED:
            if self.bare:
                raise NotFound(
                    f"run {self.run} has completed, and its result is not kept (retention=0, discarded, or too many)"
                )
            return decode(self.data, "result") if self.data else None
        if self.status is Status.CANCELLED:
            raise RunCancelled(f"run {self.run} was cancelled: {_why_cancelled(self.reason)}")
        failure = read_failure(self.error) or Failure("", self.reason)
        if self.status is Status.DEAD:
            raise RunDead(self.reason or failure.message, run=self.run, type=failure.type, traceback=failure.traceback)
        raise RunFailed(failure.message or self.reason, run=self.run, type=failure.type, traceback=failure.traceback)


def read_failure(data: bytes | None) -> Failure | None:
    if not data:
        return None
    try:
        return Failure(*decode(data, "error"))
    except Unreadable as error:
        return Failure("Unreadable", str(error))
    except TypeError:
        return Failure("Unreadable", repr(data[:200]))


def read_note(data: bytes | None) -> Note | None:
    if not data:
        return None
    try:
        return Note(*decode(data, "note"))
    except (Unreadable, TypeError):
        return None


_HEAD = 10  # numbers in the head of a checkpoint


# ---- a run -----------------------------------------------------------------------------------------------------------


def run_view(id: str, reply: Sequence[Any]) -> RunView:
    """A view from the answer of view.lua, without its word; Unreadable where the run's fields are not ours."""
    try:
        return _run_view(id, reply)
    except (ValueError, LookupError, TypeError, OverflowError, OSError) as error:
        raise _corrupt(id, error) from error


def damaged_view(id: str, status: Status, error: Unreadable) -> RunView:
    """What a list shows where a run can't be read: that it is there, since when, and what is wrong. Its neighbours are shown."""
    return RunView(
        id=id, kind="?", queue="?", status=status, inputs={}, meta={}, cancelling=False, why=str(error), counters=Counters(),
        schema=0, iteration=0, phases=(), note=None, error=None, owner=None, cause=None, created=_moment(made_at(id)),
        due=None, started=None, ended=None, checkpointed=None, parent=None, key=None, unreadable=str(error),
    )  # fmt: skip


def _corrupt(id: str, error: Exception) -> Unreadable:
    return Unreadable(
        f"run {id} can't be read ({type(error).__name__}: {error}): 'coordinator doctor' says what is wrong"
    )


def counters_of(id: str, data: bytes | None) -> Counters:
    """The counters of a run; Unreadable where they are not ours."""
    try:
        return Counters.parse(text(data or b""))
    except (ValueError, TypeError) as error:
        raise _corrupt(id, error) from error


def _run_view(id: str, reply: Sequence[Any]) -> RunView:
    flat, head, phases, before, able, paused, due, known = reply
    of: dict[str, Any] = pairs(flat)
    queue, kind, schema = parse_route(text(of.get("route", b"?:?@0")))
    inputs, meta, extra, no_spec = _spec(spec_of(of))
    head_numbers, no_head = _head(head)
    spent = Spent.parse(text(of.get("spent", b"")))
    line = Line(queue, kind, schema, int(before), int(able), text(paused), bool(head), int(known))
    view = RunView(
        id=id,
        kind=kind,
        queue=queue,
        status=Status(text(of["status"])),
        inputs=inputs,
        meta=meta,
        cancelling="cancel" in of and "ended" not in of,
        why="",
        counters=Counters.parse(text(of["counters"])),
        schema=schema,
        iteration=head_numbers[3],
        phases=tuple(phase_named(text(phase)) for phase in phases),
        note=read_note(of.get("note")),
        error=read_failure(of.get("error")),
        owner=_owner(of.get("token")),
        cause=_word(of.get("cause")),
        created=_moment(text(of["counters"]).split()[-1]),
        due=_moment(text(due)) if due else None,
        started=_moment(text(of["started"])) if "started" in of else None,
        ended=_moment(text(of["ended"])) if "ended" in of else None,
        checkpointed=_moment(head_numbers[7]) if head_numbers[7] else None,
        parent=extra.get("parent"),
        key=extra.get("key"),
        messages=head_numbers[2],
        ended_by=_owner(of.get("last", b"").partition(b" ")[0]) if of["status"] == b"completed" else None,
        code=_word(of.get("code")),
        story=told(of.get("story")),
        killed=read_failure(of.get("kill") or of.get("killed")),
        used=spent.used,
        extensions=spent.extensions,
        extended=spent.extended,
        unreadable=" and ".join(filter(None, (no_spec, no_head))),
    )
    return replace(view, why=why(view, line, _prose(of.get("reason")), killing="kill" in of))


def _spec(data: bytes | None) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]:
    """Inputs, meta, the rest; and what is wrong with them. The run is shown without them: why it is dead is not in them."""
    try:
        return (*read_spec(data), "") if data is not None else ({}, {}, {}, "")
    except Unreadable as error:
        return {}, {}, {}, f"its inputs are damaged ({error})"


def _head(head: Any) -> tuple[list[int], str]:
    """The numbers of its checkpoint; and what is wrong with them."""
    try:
        numbers = [int(number) for number in text(head).split()] or [0] * _HEAD
        _moment(numbers[7])
        return numbers, ""
    except (ValueError, LookupError, OverflowError, OSError):
        return [0] * _HEAD, f"its checkpoint is damaged (its head is {_prose(head)[:80]!r})"


def _prose(data: Any) -> str:
    """For people: what is not UTF-8 is shown as what it is."""
    return data.decode(errors="backslashreplace") if isinstance(data, bytes) else str(data or "")


def phase_named(field: str) -> str:
    """A phase as people call it, from the field that it is kept in: outline, outline#1 for the second of that name, and
    turn 3: search for one that belongs to a turn."""
    turn, _, name = field.removeprefix("phase:").partition(":")
    short = name.removesuffix("#0")
    return short if turn == "-" else f"turn {turn}: {short}"


def _word(value: bytes | None) -> str | None:
    return text(value) if value else None


def _owner(token: bytes | None) -> str | None:
    return text(token).split("-", 2)[2] if token else None


def _moment(ms: str | int) -> datetime:
    return datetime.fromtimestamp(float(ms) / 1000, UTC)


# ---- why -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """The line that a run waits in, as seen from the run: how many are before it, who could take it, what is paused, who knows its
    kind at whatever schema."""

    queue: str
    kind: str
    schema: int
    before: int
    able: int
    paused: str
    saved: bool
    known: int = 0


def why(view: RunView, line: Line, reason: str, *, killing: bool = False) -> str:
    """Why it is where it is. `killing`: its critic has, and its handler goes on."""
    match view.status:
        case Status.QUEUED:
            return _why_queued(line)
        case Status.DELAYED:
            return _why_delayed(view)
        case Status.RUNNING:
            at = f"attempt {view.attempt} on worker {view.owner}"
            if view.cancelling:
                return f"its owner was asked to cancel it ({at})"
            said = view.killed.message if killing and view.killed else ""
            return f"{said}; its handler has not ended yet ({at})" if said else at
        case Status.WAITING:
            return "suspended"
        case Status.COMPLETED:
            return "its handler returned"
        case Status.FAILED:
            return _shown(view.error) or reason
        case Status.DEAD:
            return reason
        case Status.CANCELLED:
            return _why_cancelled(reason)


def _why_cancelled(reason: str) -> str:
    """The scripts' bare word says only what the status does."""
    return "it was asked for" if reason in ("", "cancelled") else reason


def _why_queued(line: Line) -> str:
    if line.paused:
        return f"queue {line.queue!r} is paused" if line.paused == "queue" else f"kind {line.kind!r} is paused"
    where = f"kind {line.kind!r} (queue {line.queue!r})"
    if not line.able and not line.known:
        return f"no live worker knows {where}"
    if not line.able and line.saved:
        return (
            f"no live worker reads its checkpoint: it has schema {line.schema}, and they know other schemas of {where}"
        )
    if not line.able:
        return f"no live worker knows schema {line.schema} of {where}"
    if line.before < 0:
        return "its next strike would be its last: it waits for a worker that holds nothing else"
    return f"{line.before:,} before it" if line.before else "next in its line"


_AFTER = {"release": "a release by a worker that was not stopping", "recover": "a recovery"}


def _why_delayed(view: RunView) -> str:
    until = f"delayed until {view.due.isoformat(timespec='milliseconds')}" if view.due else "delayed"
    after = _AFTER.get(view.cause or "") or _shown(view.error)
    return f"{until}, after {after}" if after else until


def _shown(failure: Failure | None) -> str:
    """A kill says for itself what it is."""
    if failure and failure.type == DeadlineExceeded.__name__:
        return failure.message
    return f"{failure.type}: {failure.message}" if failure else ""


# ---- workers, and the whole ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as it was when it was asked for. `lease_age` is the time since its last good heartbeat, in seconds; `memory` is
    what its process held then, in bytes, 0 where it is not known."""

    id: str
    host: str
    pid: int
    fleet: str
    code: str
    slots: int
    running: int
    lease: float
    lease_age: float
    condemned: bool
    draining: bool
    routes: tuple[str, ...]
    memory: int = 0

    @property
    def expired(self) -> bool:
        return self.lease_age > self.lease


@dataclass(frozen=True, slots=True)
class CoordinatorView:
    """A coordinator, and how many seconds ago it was last seen."""

    id: str
    age: float


@dataclass(frozen=True, slots=True)
class Overview:
    """A namespace as it was when it was asked for."""

    namespace: str
    partitions: int
    durability: str
    counts: Mapping[Status, int]
    queues: Mapping[str, int]
    paused: tuple[str, ...]
    aside: int
    workers: tuple[WorkerView, ...]
    coordinators: tuple[CoordinatorView, ...]
