"""Build a RunView from the reply of view.lua. This module does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from coordinator.encoding.checkpoint_head import NO_CHECKPOINT, CheckpointHead
from coordinator.encoding.codec import decode
from coordinator.encoding.spec import join_spec, read_spec
from coordinator.errors import BadOption, Unreadable
from coordinator.model.limits import FAR_FUTURE, MOST_AT_ONCE
from coordinator.model.names import parse_route
from coordinator.model.policies.budget import Budget, Spending, spending, sum_spend
from coordinator.model.policies.deadline import Spent
from coordinator.model.policies.groups import NO_LIMIT, decode_starts
from coordinator.model.policies.retry import RetryLater
from coordinator.model.run import Counters, Failure, HeldRun, Note, OpenChild, RunView, Status, Waiting, WaitingChildren
from coordinator.model.run_id import made_at
from coordinator.model.story import read_story
from coordinator.store.replies import pairs, text
from coordinator.views.ending import read_failure, unreadable_run
from coordinator.views.status_reason import QueuePosition, explain_child, explain_status


def run_view(id: str, reply: Sequence[Any]) -> RunView:
    """Return the view from the reply of view.lua, without the reply's first word.

    Damaged inputs and a damaged checkpoint are left out and named in the view's field `unreadable`.

    Raises:
        Unreadable: The run's other fields can't be read.
    """
    try:
        return _build(id, reply)
    except (ValueError, LookupError, TypeError, OverflowError, OSError) as error:
        raise unreadable_run(id, error) from error


def unreadable_view(id: str, status: Status, error: Unreadable) -> RunView:
    """Return a view with only the id, the status and the error of a run that can't be read, so that lists can show it."""
    return RunView(
        id=id, kind="?", queue="?", status=status, inputs={}, meta={}, cancelling=False, why=str(error), counters=Counters(),
        schema=0, iteration=0, phases=(), note=None, error=None, owner=None, cause=None, created=_moment(made_at(id)),
        due=None, started=None, ended=None, checkpointed=None, parent=None, key=None, unreadable=str(error),
    )  # fmt: skip


def read_counters(id: str, data: bytes | None) -> Counters:
    """Return the counters of a run from their stored form.

    Raises:
        Unreadable: The stored counters can't be parsed.
    """
    try:
        return Counters.parse(text(data or b""))
    except (ValueError, TypeError) as error:
        raise unreadable_run(id, error) from error


def read_note(data: bytes | None) -> Note | None:
    """Return the note from its stored form; None if there is none or it is damaged."""
    if not data:
        return None
    try:
        return Note(*decode(data, "note"))
    except (Unreadable, TypeError):
        return None


def phase_label(field: str) -> str:
    """Return a phase's name for display, from the checkpoint field in which the phase is stored.

    `outline` is the first phase of that name, `outline#1` the second. `turn 3: search` belongs to a turn of a loop.
    """
    turn, _, name = field.removeprefix("phase:").partition(":")
    short = name.removesuffix("#0")
    return short if turn == "-" else f"turn {turn}: {short}"


def _build(id: str, reply: Sequence[Any]) -> RunView:
    flat, head, phases, before, able, paused, due, known, signals, children, effects, held = reply
    of: dict[str, Any] = pairs(flat)
    queue, kind, schema = parse_route(text(of.get("route", b"?:?@0")))
    inputs, meta, extra, damaged_spec = _read_spec(join_spec(of))
    saved, damaged_head = _read_head(head)
    spent = Spent.parse(text(of.get("spent", b"")))
    group = _escaped(of["group"]).partition(":")[2] if "group" in of else None
    position = QueuePosition(
        queue, kind, schema, int(before), int(able), text(paused), bool(head), int(known), group, _read_held(held)
    )  # fmt: skip
    cause, _, woken = text(of.get("cause", b"")).partition(" ")  # "wake signal approval": the cause, and what woke it
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
        iteration=saved.iteration,
        phases=tuple(phase_label(text(phase)) for phase in phases),
        note=read_note(of.get("note")),
        error=_last_error(of),
        owner=_owner(of.get("token")),
        cause=cause or None,
        created=_moment(text(of["counters"]).split()[-1]),
        due=_moment(text(due)) if due else None,
        started=_moment(text(of["started"])) if "started" in of else None,
        ended=_moment(text(of["ended"])) if "ended" in of else None,
        checkpointed=_moment(saved.updated) if saved.updated else None,
        parent=extra.get("parent"),
        key=extra.get("key"),
        messages=saved.length,
        ended_by=_owner(of.get("last", b"").partition(b" ")[0]) if of["status"] == b"completed" else None,
        code=_optional_text(of.get("code")),
        story=read_story(of.get("story")),
        killed=read_failure(of.get("kill") or of.get("killed")),
        used=spent.used,
        extensions=spent.extensions,
        extended=spent.extended,
        unreadable=" and ".join(filter(None, (damaged_spec, damaged_head))),
        waiting=_read_wait(of.get("wait"), children) if of["status"] == b"waiting" else None,
        woken=woken or None,
        signals=dict(sorted((_escaped(signals[i]), int(signals[i + 1])) for i in range(0, len(signals), 2))),
        effects=_read_effects(effects),
        spent=_read_spent(of.get("spend")),
        budget=_read_budget(extra.get("budget"), of.get("budget")),
        group=group,
        held=position.held,
    )
    failed_loads = int(text(of["loading"])) if "loading" in of else None
    why = explain_status(
        view, position, _escaped(of.get("reason")), killing="kill" in of, failed_loads=failed_loads,
        limited=_escaped(of.get("limited")),
    )  # fmt: skip
    return replace(view, why=why)


def _last_error(of: dict[str, Any]) -> Failure | None:
    """Return the last error of a run; None if there is none. RetryLater does not count as an error of a completed run."""
    error = read_failure(of.get("error"))
    asked = error is not None and error.type == RetryLater.__name__
    return None if asked and of["status"] == b"completed" else error


def _read_spec(data: bytes | None) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]:
    """Return the inputs, the meta and the extra values of a stored spec, and a text about damage.

    The text is empty if the spec can be read. Otherwise the other three are empty: the run is still shown, because its other fields
    can be read.
    """
    try:
        return (*read_spec(data), "") if data is not None else ({}, {}, {}, "")
    except Unreadable as error:
        return {}, {}, {}, f"its inputs are damaged ({error})"


def _read_head(data: Any) -> tuple[CheckpointHead, str]:
    """Return the head of the checkpoint, and a text about its damage; the text is empty if the head is valid."""
    try:
        head = CheckpointHead.parse(data) if data else NO_CHECKPOINT
        _moment(head.updated)
        return head, ""
    except (Unreadable, ValueError, OverflowError, OSError):
        return NO_CHECKPOINT, f"its checkpoint is damaged (the head is {_escaped(data)[:80]!r})"


def _read_wait(data: bytes | None, children: Sequence[Any]) -> Waiting | None:
    """Return the condition that a run waits for; None if it can't be read. lua/shared/waiting.lua describes the stored form."""
    try:
        since, deadline, *parts = text(data or b"").split()
        topics = tuple(part.split(":")[1] for part in parts if part.startswith("s:"))
        until = None if deadline == "-" else _moment(deadline)
        return Waiting(topics, _moment(since), until, _read_children(children))
    except (ValueError, LookupError, OverflowError, OSError):
        return None


def _read_children(reply: Sequence[Any]) -> WaitingChildren | None:
    if not reply:
        return None
    count, ended, needed, due, rows = reply
    at = _moment(text(due)) if due and float(text(due)) < FAR_FUTURE else None
    return WaitingChildren(int(count), int(ended), int(needed), at, tuple(_read_child(*row) for row in rows))


def _read_spent(data: bytes | None) -> Spending | None:
    return spending(sum_spend(_escaped(data))) if data else None


def _read_budget(own: Any, published: bytes | None) -> Budget | None:
    """Return the budget with which a run was enqueued, or else the budget of its handler; None if neither exists or can be read.

    Args:
        own: The stored form of the budget with which the run was enqueued.
        published: The budget that workers have published for the kind of the run.
    """
    try:
        return Budget.load(own) if own else Budget.parse(_escaped(published)) if published else None
    except (BadOption, ValueError, TypeError, ArithmeticError):
        return None


def _read_group(held: Sequence[Any]) -> str | None:
    return _escaped(held[3]).partition(":")[2] if held else None


def _read_held(reply: Sequence[Any]) -> HeldRun | None:
    """Return the position of a run in the line of its group; None if it is in no line.

    A group without a limit is shown with MOST_AT_ONCE places.
    """
    if not reply:
        return None
    before, taken, limit = int(reply[0]), int(reply[1]), text(reply[2])
    places = MOST_AT_ONCE if limit == NO_LIMIT else int(limit) if limit else None
    rate, _ = decode_starts(text(reply[4]))
    start = text(reply[5])
    return HeldRun(before, taken, places, rate, int(start) / 1000 if start else None, int(reply[6]) / 1000)


def _read_effects(fields: Sequence[Any]) -> dict[str, str]:
    """Return the state of each effect by its name. Begun effects come first; effects of the same state are sorted by name."""
    states = sorted(_escaped(field).partition(":")[::2] for field in fields)
    return {name: state for state, name in states}


def _read_child(
    id: bytes, status: bytes, route: bytes, before: Any, able: Any, paused: bytes, due: bytes, known: Any, held: Any
) -> OpenChild:
    queue, kind, schema = parse_route(text(route) or "?:?@0")
    position = QueuePosition(
        queue,
        kind,
        schema,
        int(before),
        int(able),
        text(paused),
        False,
        int(known),
        _read_group(held),
        _read_held(held),
    )
    why = explain_child(Status(text(status)), position, _moment(text(due)) if due else None)
    return OpenChild(text(id), kind, Status(text(status)), why)


def _escaped(data: Any) -> str:
    """Return the data as text for display. Bytes that are not UTF-8 become backslash escapes."""
    return data.decode(errors="backslashreplace") if isinstance(data, bytes) else str(data or "")


def _optional_text(value: bytes | None) -> str | None:
    return text(value) if value else None


def _owner(token: bytes | None) -> str | None:
    return text(token).split("-", 2)[2] if token else None


def _moment(ms: str | int) -> datetime:
    return datetime.fromtimestamp(float(ms) / 1000, UTC)
