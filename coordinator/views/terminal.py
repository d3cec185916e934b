"""How runs, workers and namespaces look on a terminal, and as plain data for machines. Pure, no I/O.

Ids are never cut. What users wrote is shown as text: no markup, no control characters.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coordinator.model import story
from coordinator.model.run import Failure, Note, RunView, Status, parse_route
from coordinator.views.build import Overview, WorkerView

STYLES = {
    Status.QUEUED: "cyan",
    Status.DELAYED: "blue",
    Status.RUNNING: "bold green",
    Status.WAITING: "blue",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.CANCELLED: "yellow",
    Status.DEAD: "bold red",
}
_WORKER_NUMBERS = ("pid", "running", "lease age", "memory")
SEEN_LATELY = 5.0  # a coordinator is seen once a second


# ---- for machines ----------------------------------------------------------------------------------------------------


def as_plain(value: Any) -> Any:
    """What JSON can say of a value: times in ISO 8601, bytes in base64."""
    if isinstance(value, RunView):
        return _without_nothing({**_fields(value), "attempt": value.attempt})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [as_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: as_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def _without_nothing(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


# ---- words -----------------------------------------------------------------------------------------------------------


def clean(text: str) -> str:
    """Without control characters, which could rewrite the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def count(number: int, noun: str) -> str:
    """1 run, 1,200 runs"""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def below(statuses: Iterable[Status]) -> str:
    """What became of the runs below one that was cancelled with its tree; empty where there are none."""
    of = Counter(statuses)
    parts = {"cancelled": of[Status.CANCELLED], "asked to stop": of[Status.RUNNING]}
    parts["ended before"] = of.total() - sum(parts.values())
    said = ", ".join(f"{number:,} {what}" for what, number in parts.items() if number)
    return f"; below it {said}" if said else ""


def span(seconds: float) -> str:
    """A length of time, in two digits or so."""
    seconds = max(0.0, seconds)
    if seconds < 0.095:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def size(count: int) -> str:
    """A number of bytes, in two digits or so; nothing where it is not known."""
    if not count:
        return ""
    mebibytes = count / 2**20
    return f"{mebibytes:.0f} MiB" if mebibytes < 1000 else f"{mebibytes / 1024:.1f} GiB"


def age(moment: datetime, now: float) -> str:
    return span(now - moment.timestamp())


def moment_and_age(moment: datetime, now: float) -> str:
    """2026-01-31 12:00:00 (5 min ago)"""
    local = moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    ahead = moment.timestamp() - now
    return f"{local} (in {span(ahead)})" if ahead > 0 else f"{local} ({span(-ahead)} ago)"


def as_text(value: Any) -> str:
    """A result or an input: text as it is, all else as JSON."""
    return clean(value) if isinstance(value, str) else json.dumps(as_plain(value), indent=2, ensure_ascii=False)


def _status(status: Status) -> Text:
    return Text(str(status), STYLES[status])


def _note(note: Note) -> str:
    if note.done is None:
        return clean(note.text)
    return (
        f"{clean(note.text)} ({note.done:g} of {note.total:g})" if note.total else f"{clean(note.text)} ({note.done:g})"
    )


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Where it gets narrow everything gives way, the longest first, but the first column: the ids."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        side = "right" if column in right else "left"
        table.add_column(column, justify=side, no_wrap=column == columns[0], overflow="fold")  # type: ignore[arg-type]
    return table


# ---- runs ------------------------------------------------------------------------------------------------------------


def runs_table(views: Iterable[RunView], now: float) -> Table:
    table = _table("run", "kind", "queue", "status", "attempt", "age", "why", right=("attempt", "age"))
    for view in views:
        table.add_row(
            view.id, Text(view.kind), Text(view.queue), _status(view.status), str(view.attempt), age(view.created, now),
            Text(_in_short(view, now), overflow="ellipsis", no_wrap=True),
        )  # fmt: skip
    return table


def _in_short(view: RunView, now: float) -> str:
    """One line on what a run is about now."""
    if view.status is Status.COMPLETED and view.started and view.ended:
        return f"took {span(_used(view, now))}"
    if view.status is Status.DELAYED and view.due:
        _, after, cause = clean(view.why).partition(", after ")
        return f"due in {span(view.due.timestamp() - now)}{after}{cause}".partition("\n")[0]
    note = _note(view.note) if view.note and view.status is Status.RUNNING else ""
    return (note or clean(view.why)).partition("\n")[0]


def run_details(view: RunView, now: float, advice: str = "") -> RenderableType:
    """Everything about one run."""
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _details(view, now, advice):
        if value:
            grid.add_row(name, Text(value) if isinstance(value, str) else value)
    parts: list[RenderableType] = [grid]
    if view.error is not None and view.error.traceback:
        parts += [Text(), Text(clean(view.error.traceback).rstrip(), "red")]
    return Group(*parts)


def _details(view: RunView, now: float, advice: str) -> Iterable[tuple[str, RenderableType | str | None]]:
    yield "run", view.id
    yield "kind", f"{view.kind} (queue {view.queue}" + (f", schema {view.schema})" if view.schema else ")")
    yield "status", _status(view.status).append(f"  {clean(view.why)}" if view.why else "", "default")
    yield "", Text(advice, "yellow") if advice else ""
    yield "damaged", Text(clean(view.unreadable), "red") if view.unreadable and view.unreadable != view.why else ""
    yield "attempt", _counts(view)
    for name, moment in (
        ("created", view.created),
        ("due", view.due),
        ("started", view.started),
        ("ended", view.ended),
    ):
        yield name, moment_and_age(moment, now) if moment else None
    yield "time used", _time_used(view, now)
    if view.checkpointed:
        what = f"iteration {view.iteration}" + (f", {count(view.messages, 'message')}" if view.messages else "")
        yield "checkpoint", f"{what}, saved {moment_and_age(view.checkpointed, now)}"
    yield "phases", ", ".join(clean(phase) for phase in view.phases)
    yield "story", "\n".join(clean(line) for line in story.lines(view, span))
    yield "note", _progress(view.note) if view.note else None
    yield "parent", view.parent
    yield "key", view.key and clean(view.key)
    yield "meta", as_text(view.meta) if view.meta else None
    yield "inputs", as_text(view.inputs)
    if view.error and view.status is not Status.FAILED:  # a failed one's is in its status
        yield "last error", _failure(view.error)


def _time_used(view: RunView, now: float) -> str:
    """The run's own time, by which deadlines go; said where it is more than its one attempt tells."""
    if not (view.used or view.extensions):
        return ""
    more = f"; its deadline was extended {_times(view.extensions)}, by {span(view.extended)}" if view.extensions else ""
    return f"{span(_used(view, now))} of its own{more}"


def _used(view: RunView, now: float) -> float:
    """Seconds of its own time: a completion adds nothing to what the run's hash has of the attempts before."""
    if view.started is None or view.status not in (Status.RUNNING, Status.COMPLETED):
        return view.used
    until = view.ended.timestamp() if view.ended else now
    return view.used + max(0.0, until - view.started.timestamp())


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _counts(view: RunView) -> str:
    c = view.counters
    more = {"release": c.releases, "recovery": c.recoveries, "strike": c.strikes, "failure": c.failures}
    plural = {"recovery": "recoveries"}
    said = [f"{n} {word if n == 1 else plural.get(word, word + 's')}" for word, n in more.items() if n]
    life = [f"life {c.life}"] if c.life > 1 else []
    return ", ".join([str(view.attempt), *life, *said])


def _progress(note: Note) -> RenderableType:
    if note.done is None or not note.total:
        return Text(_note(note))
    return Group(Text(_note(note)), ProgressBar(total=note.total, completed=min(note.done, note.total), width=40))


def _failure(error: Failure) -> Text:
    return Text(clean(f"{error.type}: {error.message}" if error.type else error.message), "red")


def advice(view: RunView, workers: Iterable[WorkerView]) -> str:
    """Where nobody knows the kind: which known one is spelt like it."""
    known = {kind for worker in workers if not worker.expired for _, kind, _ in map(parse_route, worker.routes)}
    if view.status is not Status.QUEUED or view.kind in known:
        return ""
    close = get_close_matches(view.kind, known, n=1)
    return f"did you mean {close[0]!r}? Live workers know {', '.join(sorted(known))}" if close else ""


# ---- workers and the whole -------------------------------------------------------------------------------------------


def workers_table(workers: Iterable[WorkerView]) -> Table:
    """A row for each process: it has a lease, with an id of its own, in each partition."""
    columns = ("worker", "host", "pid", "fleet", "code", "running", "lease age", "memory", "state")
    table = _table(*columns, right=_WORKER_NUMBERS)
    for one, *others in processes(workers):
        running = one.running + sum(other.running for other in others)
        oldest = max(leased.lease_age for leased in (one, *others))
        table.add_row(
            f"{one.id} and {len(others)} more" if others else one.id, Text(clean(one.host)), str(one.pid), Text(one.fleet),
            Text(clean(one.code)), f"{running}/{one.slots}", span(oldest),
            size(max(leased.memory for leased in (one, *others))), _state(one),
        )  # fmt: skip
    return table


def processes(workers: Iterable[WorkerView]) -> list[list[WorkerView]]:
    """The workers of each process together; a lease that is over stands apart from those that hold."""
    found: dict[tuple[object, ...], list[WorkerView]] = {}
    for one in workers:
        found.setdefault((one.host, one.pid, one.fleet, one.code, str(_state(one))), []).append(one)
    return list(found.values())


def _state(worker: WorkerView) -> Text:
    if worker.condemned:
        return Text("gone", "bold red")
    if worker.expired:
        return Text("lease expired", "red")
    return Text("draining", "yellow") if worker.draining else Text("working", "green")


def status_shown(overview: Overview, address: str) -> RenderableType:
    """A namespace at a glance: counts, lines, who is there, and what needs somebody."""
    head = Text(f"namespace {overview.namespace}", "bold").append(
        f" on {address}, {count(overview.partitions, 'partition')}, durability {overview.durability}", "not bold"
    )
    parts: list[RenderableType] = [head, Text(), _counts_line(overview)]
    if overview.queues:
        parts += [Text(), _lines(overview)]
    parts += [Text(), _who(overview)]
    parts += [Text(sentence, "yellow") for sentence in _needs(overview)]
    return Group(*parts)


def _counts_line(overview: Overview) -> Table:
    shown = [status for status in Status if status is not Status.WAITING or overview.counts.get(status)]
    table = _table(*shown, right=shown)
    row = []
    for status in shown:
        number = overview.counts.get(status, 0)
        row.append(Text(f"{number:,}", STYLES[status] if number else "dim"))
    table.add_row(*row)
    return table


def _lines(overview: Overview) -> Table:
    table = _table("queue", "kind", "schema", "waiting", "workers", right=("schema", "waiting", "workers"))
    for route, waiting in overview.queues.items():
        queue, kind, schema = parse_route(route)
        able = len(processes(w for w in overview.workers if route in w.routes and not w.expired))
        paused = f"queue:{queue}" in overview.paused or f"kind:{kind}" in overview.paused
        who = (
            Text("paused", "yellow") if paused else Text(str(able) if able else "none knows it", "" if able else "red")
        )
        table.add_row(queue, kind, str(schema or "any"), f"{waiting:,}", who)
    return table


def _who(overview: Overview) -> Text:
    working = processes(worker for worker in overview.workers if not worker.expired)
    slots = sum(one.slots for one, *_ in working)
    there = sum(one.age < SEEN_LATELY for one in overview.coordinators)
    return Text(f"{count(len(working), 'worker')} with {count(slots, 'slot')}, {count(there, 'coordinator')}")


def _needs(overview: Overview) -> Iterable[str]:
    if not any(one.age < SEEN_LATELY for one in overview.coordinators):
        yield "no coordinator is running: delayed runs don't start and lost workers are not recovered; run 'coordinator start'"
    if lost := [worker for worker in overview.workers if worker.expired]:
        yield f"{count(len(lost), 'worker')} with an expired lease, holding {count(sum(w.running for w in lost), 'run')}"
    if dead := overview.counts.get(Status.DEAD):
        yield f"{count(dead, 'run')} set aside as dead: 'coordinator runs --status dead' shows why"
    if overview.aside:
        yield (
            f"{count(overview.aside, 'entry')} could not be read and was set aside"
            if overview.aside == 1
            else (f"{overview.aside:,} entries could not be read and were set aside")
        )
    if overview.paused:
        yield f"paused: {', '.join(one.replace(':', ' ') for one in overview.paused)}"
