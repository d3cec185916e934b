"""Format a namespace and its workers for a terminal. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coordinator.model.names import parse_route
from coordinator.model.policies.rates import RateLimit, describe_rate
from coordinator.model.run import Status
from coordinator.model.slots import SlotUse
from coordinator.views.formatting import clean, format_count, format_duration, format_size
from coordinator.views.namespace_view import GroupView, Overview, WorkerView
from coordinator.views.run_display import STATUS_STYLES
from coordinator.views.table import new_table

COORDINATOR_SILENCE = 5.0  # seconds after which a coordinator counts as gone; a live one writes once a second


def has_coordinator(overview: Overview) -> bool:
    """Return True if a live coordinator serves the namespace."""
    return any(one.age < COORDINATOR_SILENCE for one in overview.coordinators)


def status_summary(overview: Overview, address: str) -> RenderableType:
    """Return the summary of a namespace: run counts, ready queues, workers, and problems that need attention."""
    head = Text(f"namespace {overview.namespace}", "bold").append(
        f" on {clean(address)}, {format_count(overview.partitions, 'partition')}, durability {overview.durability}",
        "not bold",
    )
    parts: list[RenderableType] = [head, Text(), _counts_table(overview)]
    if overview.queues:
        parts += [Text(), _queues_table(overview)]
    if overview.groups:
        parts += [Text(), *(Text(clean(sentence)) for sentence in _describe_lines(overview.groups))]
    if sentences := [*describe_calls(overview.rates)]:
        parts += [Text(), *(Text(clean(sentence)) for sentence in sentences)]
    parts += [Text(), _processes_line(overview)]
    parts += [Text(clean(sentence), "yellow") for sentence in describe_attention(overview)]
    return Group(*parts)


def workers_overview(workers: Iterable[WorkerView]) -> RenderableType:
    """Return the table of the workers, and a line for each handler that does not stop."""
    known = list(workers)
    return Group(workers_table(known), *(Text(clean(sentence), "yellow") for sentence in describe_stuck(known)))


def describe_stuck(workers: Iterable[WorkerView]) -> Iterable[str]:
    """Return a sentence for each handler that did not stop when its worker asked it to, and that still occupies a slot."""
    for worker in workers:
        for run in worker.stuck:
            yield (
                f"worker process {worker.pid} on {worker.host}: the handler of run {run} does not stop; it occupies a slot "
                "until the process is replaced"
            )


def workers_table(workers: Iterable[WorkerView]) -> Table:
    """Return a table with one line for each worker process. A process has one worker id in each partition."""
    columns = ("worker", "host", "pid", "fleet", "code", "slots", "lease age", "memory", "state")
    table = new_table(*columns, right=("pid", "slots", "lease age", "memory"))
    for one, *others in group_by_process(workers):
        use = use_of_slots([one, *others])
        state = _state(one).append(f", {use.remark}" if use.remark else "", "dim")
        oldest = max(worker.lease_age for worker in (one, *others))
        table.add_row(
            f"{one.id} and {len(others)} more" if others else one.id, Text(clean(one.host)), str(one.pid), Text(one.fleet),
            Text(clean(one.code)), f"{use.busy}/{use.slots}", format_duration(oldest),
            format_size(max(worker.memory for worker in (one, *others))), state,
        )  # fmt: skip
    return table


def use_of_slots(process: Sequence[WorkerView]) -> SlotUse:
    """Return the numbers of busy slots and of finishing runs of a process, from its workers in all partitions."""
    return SlotUse.of(sum(worker.running for worker in process), process[0].slots)


def group_by_process(workers: Iterable[WorkerView]) -> list[list[WorkerView]]:
    """Return the workers grouped by process. Workers of one process that have different states are in different groups."""
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


def _counts_table(overview: Overview) -> Table:
    table = new_table(*Status, right=tuple(Status))
    row = []
    for status in Status:
        number = overview.counts.get(status, 0)
        row.append(Text(f"{number:,}", STATUS_STYLES[status] if number else "dim"))
    table.add_row(*row)
    return table


def _queues_table(overview: Overview) -> Table:
    table = new_table("queue", "kind", "schema", "queued", "workers", right=("schema", "queued", "workers"))
    for route, queued in overview.queues.items():
        queue, kind, schema = parse_route(route)
        able = len(group_by_process(w for w in overview.workers if route in w.routes and not w.expired))
        if f"queue:{queue}" in overview.paused or f"kind:{kind}" in overview.paused:
            workers = Text("paused", "yellow")
        else:
            workers = Text(str(able)) if able else Text("no worker", "red")
        table.add_row(queue, kind, str(schema or "any"), f"{queued:,}", workers)
    return table


def _describe_lines(groups: Iterable[GroupView]) -> Iterable[str]:
    """Return a sentence for each kind whose runs wait for a place in their groups."""
    by_kind: dict[str, list[GroupView]] = {}
    for one in groups:
        by_kind.setdefault(one.kind, []).append(one)
    for kind, those in by_kind.items():
        runs, named = sum(one.held for one in those), max(those, key=lambda one: one.held)
        paced = {one.waits_for_rate for one in those}
        what = "a place or a start" if len(paced) == 2 else "a start" if paced == {True} else "a place"
        wait = f"waits for {what} in its group" if runs == 1 else f"wait for {what} in their groups"
        longest = f"; the longest line is in group {named.group!r}, with {named.held:,}" if len(those) > 1 else ""
        since = f", the first for {format_duration(max(one.waited for one in those))}"
        yield f"{format_count(runs, 'queued run')} of kind {kind} {wait} ({format_count(len(those), 'group')}{longest}){since}"


def describe_calls(rates: Iterable[RateLimit]) -> Iterable[str]:
    """Return a sentence for each rate for which calls wait."""
    for rate in rates:
        if rate.waiting:
            calls = "1 call waits" if rate.waiting == 1 else f"{rate.waiting:,} calls wait"
            later = f"; a new call waits about {format_duration(rate.wait)}" if rate.wait else ""
            yield f"{calls} for limit {rate.name!r} ({describe_rate(rate)}), {rate.held:,} under way{later}"


def _processes_line(overview: Overview) -> Text:
    live = group_by_process(worker for worker in overview.workers if not worker.expired)
    use = sum(map(use_of_slots, live), SlotUse(0, 0, 0))
    remark = f", {use.remark}" if use.remark else ""
    coordinators = sum(one.age < COORDINATOR_SILENCE for one in overview.coordinators)
    return Text(
        f"{format_count(len(live), 'worker')} with {format_count(use.slots, 'slot')} ({use.busy:,} busy{remark}), "
        f"{format_count(coordinators, 'coordinator')}"
    )


def describe_attention(overview: Overview) -> Iterable[str]:
    """Return a sentence for each problem of the namespace that an operator should look at."""
    if not has_coordinator(overview):
        yield (
            "no coordinator is running: delayed runs do not start, waiting runs are not woken at their time, and the runs of lost "
            "workers are not recovered; "
            "start one with 'coordinator start'"
        )
    if lost := [worker for worker in overview.workers if worker.expired]:
        have = "worker has an expired lease and owns" if len(lost) == 1 else "workers have expired leases and own"
        yield f"{len(lost):,} {have} {format_count(sum(w.running for w in lost), 'run')}"
    yield from describe_stuck(overview.workers)
    for closed, why in ((0, "a limit of 0"), (None, "no limit yet")):
        if groups := [one for one in overview.groups if one.at_once == closed]:
            names = ", ".join(f"{one.group} of {one.kind}" for one in groups[:3]) + (", …" if len(groups) > 3 else "")
            verb = "admits" if len(groups) == 1 else "admit"
            yield f"{format_count(len(groups), 'group')} with {why} {verb} no run: {names}; see 'coordinator limit set'"
    if dead := overview.counts.get(Status.DEAD):
        yield f"{format_count(dead, 'run')} set aside as dead: 'coordinator runs --status dead' shows why"
    if overview.aside:
        entries = "1 entry was" if overview.aside == 1 else f"{overview.aside:,} entries were"
        yield f"{entries} unreadable and set aside: 'coordinator doctor' shows more"
    if overview.paused:
        yield f"paused: {', '.join(one.replace(':', ' ') for one in overview.paused)}"
