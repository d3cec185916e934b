"""Format runs for a terminal: a table of many runs, or the details of one. This module does no I/O.

Ids are never cut. Users' text is shown as plain text, without markup and control characters.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coordinator.model import story
from coordinator.model.policies.budget import Budget, Spending
from coordinator.model.run import Failure, Note, RunView, Status, Waiting
from coordinator.views.formatting import (
    clean,
    format_age,
    format_count,
    format_duration,
    format_time_and_age,
    format_value,
    most_similar,
)
from coordinator.views.namespace_view import WorkerView
from coordinator.views.status_reason import CALL_WAITS, describe_child, describe_wait, describe_wake
from coordinator.views.table import new_table

MAX_EFFECTS = 50  # the largest number of effects in the details of a run

STATUS_STYLES = {
    Status.QUEUED: "cyan",
    Status.DELAYED: "blue",
    Status.RUNNING: "bold green",
    Status.WAITING: "blue",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.CANCELLED: "yellow",
    Status.DEAD: "bold red",
}


def runs_table(views: Iterable[RunView], now: float) -> Table:
    """Return a table with one line for each run."""
    table = new_table("run", "kind", "queue", "status", "attempt", "age", "why", right=("attempt", "age"))
    for view in views:
        table.add_row(
            view.id, Text(view.kind), Text(view.queue), _status(view.status), str(view.attempt),
            format_age(view.created, now), Text(_summary(view, now), overflow="ellipsis", no_wrap=True),
        )  # fmt: skip
    return table


def run_details(view: RunView, now: float, hint: str = "") -> RenderableType:
    """Return the details of one run. A hint, if there is one, is shown below the status."""
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _details(view, now, hint):
        if value:
            grid.add_row(name, Text(clean(value)) if isinstance(value, str) else value)
    parts: list[RenderableType] = [grid]
    if view.error is not None and view.error.traceback:
        parts += [Text(), Text(clean(view.error.traceback).rstrip(), "red")]
    return Group(*parts)


def suggest_kind(kind: str, workers: Iterable[WorkerView]) -> str:
    """Return a hint if no live worker handles a kind, but one handles a similar kind; otherwise an empty text."""
    routes = {route for worker in workers if not worker.expired for route in worker.routes}
    known = {route.partition(":")[2].rpartition("@")[0] for route in routes}
    if kind in known:
        return ""
    close = most_similar(kind, known)
    return f"did you mean {close!r}? Live workers handle {clean(', '.join(sorted(known)))}" if close else ""


def _status(status: Status) -> Text:
    return Text(str(status), STATUS_STYLES[status])


def _summary(view: RunView, now: float) -> str:
    """Return one line on the state of a run: how long it took, when it is due, what it waits for, its note, or its `why`."""
    if view.status is Status.COMPLETED and view.started and view.ended:
        return f"took {format_duration(_seconds_used(view, now))}"
    if view.status is Status.DELAYED and view.due:
        _, after, cause = clean(view.why).partition(", after ")
        return f"{_format_due(view.due.timestamp() - now)}{after}{cause}".partition("\n")[0]
    if view.status is Status.WAITING and view.waiting and not _is_overdue(view.waiting, now):
        return _summarise_wait(view.waiting, now)
    note = _format_note(view.note) if view.note and view.status is Status.RUNNING else ""
    _, waits, limit = clean(view.why).partition(CALL_WAITS)
    if note and waits:  # The wait explains why the note does not change.
        return f"{waits.removeprefix('; ')}{limit}; {note}".partition("\n")[0]
    return (note or clean(view.why)).partition("\n")[0]


def _is_overdue(wait: Waiting, now: float) -> bool:
    return wait.until is not None and wait.until.timestamp() <= now


def _summarise_wait(wait: Waiting, now: float) -> str:
    """Return a line on a wait: the signals or children, the time since the wait began, and the longest time that is left.

    The topics come first, because a narrow terminal cuts the end of the line. The status column of the table says `waiting`.
    """
    left = f", {format_duration(wait.until.timestamp() - now)} left" if wait.until else ""
    if not wait.topics and wait.children is None:
        return f"sleeps{left}"
    what = describe_wait(wait).removeprefix("waits for ")
    return clean(f"{what}, waited {format_duration(now - wait.since.timestamp())}{left}")


def _format_due(ahead: float) -> str:
    if ahead > 0:
        return f"due in {format_duration(ahead)}"
    return f"overdue for {format_duration(-ahead)}" if ahead <= -1 else "due now"


def _details(view: RunView, now: float, hint: str) -> Iterable[tuple[str, RenderableType | str | None]]:
    yield "run", view.id
    yield "kind", f"{view.kind} (queue {view.queue}" + (f", schema {view.schema})" if view.schema else ")")
    # The lines below the status of a waiting run say since when and until when it waits, and for which children.
    why = describe_wait(view.waiting) if view.waiting else view.why
    yield "status", _status(view.status).append(f"  {clean(why)}" if why else "", "default")
    yield "", Text(hint, "yellow") if hint else ""
    yield "damaged", Text(clean(view.unreadable), "red") if view.unreadable and view.unreadable != view.why else ""
    yield "attempt", _attempt_counts(view)
    for name, moment in (
        ("created", view.created),
        ("due", view.due),
        ("started", view.started),
        ("waits since", view.waiting and view.waiting.since),
        ("waits until", view.waiting and view.waiting.until),
        ("ended", view.ended),
    ):
        yield name, format_time_and_age(moment, now) if moment else None
    yield "woken", describe_wake(view.woken).removeprefix("woken ") if view.woken else None
    if view.waiting and view.waiting.children:
        yield "open children", "\n".join(describe_child(child) for child in view.waiting.children.open)
    yield "signals", _unreceived(view)
    yield "time used", _time_used(view, now)
    if view.checkpointed:
        what = f"iteration {view.iteration}" + (f", {format_count(view.messages, 'message')}" if view.messages else "")
        yield "checkpoint", f"{what}, saved {format_time_and_age(view.checkpointed, now)}"
    yield "phases", ", ".join(clean(phase) for phase in view.phases)
    yield "effects", _effects(view)
    yield "budget", _budget(view.budget) if view.budget else None
    yield "spent", str(view.spent) if view.spent else None
    yield "story", "\n".join(clean(line) for line in story.describe_story(view, format_duration))
    yield "note", _progress(view.note) if view.note else None
    yield "parent", view.parent
    yield "key", view.key and clean(view.key)
    yield "group", view.group and clean(view.group)
    yield "meta", format_value(view.meta) if view.meta else None
    yield "inputs", format_value(view.inputs)
    if view.error and view.status is not Status.FAILED:  # the status line of a failed run shows the error already
        yield "last error", _failure(view.error)


def _attempt_counts(view: RunView) -> str:
    c = view.counters
    recovered, rejected = (
        sum(one.how == how and one.life == c.life for one in view.story) for how in ("recovered", "rejected")
    )
    # Older workers have counted rejected attempts, which lost no worker, as recoveries.
    recoveries = max(recovered, c.recoveries - rejected)
    more = {
        "release": c.releases,
        "recovery": recoveries,
        "rejection": rejected,
        "strike": c.strikes,
        "failure": c.failures,
    }
    plural = {"recovery": "recoveries"}
    counts = [f"{n} {word if n == 1 else plural.get(word, word + 's')}" for word, n in more.items() if n]
    life = [f"life {c.life}"] if c.life > 1 else []
    return ", ".join([str(view.attempt), *life, *counts])


def _unreceived(view: RunView) -> str:
    """Return the numbers of signals that the run has not received, by topic, as text; empty if there are none."""
    counts = [f"{number:,} {topic}" for topic, number in view.signals.items()]
    return f"not received yet: {', '.join(counts)}" if counts else ""


def _effects(view: RunView) -> Text | str:
    """Return the effects of a run with their states; empty if there are none. The line is yellow if an effect is only begun."""
    if not view.effects:
        return ""
    shown = [f"{clean(name)} ({state})" for name, state in [*view.effects.items()][:MAX_EFFECTS]]
    more = len(view.effects) - len(shown)
    line = Text(", ".join(shown) + (f", and {more:,} more" if more else ""))
    if "begun" in view.effects.values():
        line.stylize("yellow")
    return line


def _budget(budget: Budget) -> str:
    """Return the limits of a budget and its `then` as text, such as `5 USD, then fail`."""
    limits = Spending(None if budget.usd is None else float(budget.usd), budget.tokens, budget.requests)
    return f"{limits}, then {budget.then}"


def _time_used(view: RunView, now: float) -> str:
    """Return the time of all attempts, which counts towards deadlines, as text; empty if no time of earlier attempts is stored."""
    if not (view.used or view.extensions):
        return ""
    times = "once" if view.extensions == 1 else f"{view.extensions} times"
    extended = f"; deadline extended {times}, by {format_duration(view.extended)}" if view.extensions else ""
    return f"{format_duration(_seconds_used(view, now))} in all attempts{extended}"


def _seconds_used(view: RunView, now: float) -> float:
    """Return the seconds of all attempts: the stored time of earlier attempts, plus the time of a running or completed attempt."""
    if view.started is None or view.status not in (Status.RUNNING, Status.COMPLETED):
        return view.used
    until = view.ended.timestamp() if view.ended else now
    return view.used + max(0.0, until - view.started.timestamp())


def _format_note(note: Note) -> str:
    if note.done is None:
        return clean(note.text)
    done = f"{note.done:g} of {note.total:g}" if note.total else f"{note.done:g}"
    return f"{clean(note.text)} ({done})"


def _progress(note: Note) -> RenderableType:
    text = Text(_format_note(note))
    if note.done is None or not note.total:
        return text
    return Group(text, ProgressBar(total=note.total, completed=min(note.done, note.total), width=40))


def _failure(error: Failure) -> Text:
    return Text(clean(f"{error.type}: {error.message}" if error.type else error.message), "red")
