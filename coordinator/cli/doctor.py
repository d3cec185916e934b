"""The commands of who looks after a namespace: doctor, pause, unpause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.text import Text

from coordinator.cli.options import BADLY, DONE, Here
from coordinator.client.client import Client
from coordinator.doctor import examiner as doctor
from coordinator.doctor.examiner import Report
from coordinator.doctor.findings import Finding
from coordinator.store import server_checks as checks
from coordinator.store.transport.wire import Wire, drive
from coordinator.views.formatting import clean, format_count

OneQueue = Annotated[str | None, typer.Option("--queue", help="The queue.")]
OneKind = Annotated[str | None, typer.Option("--kind", help="The kind.")]


# ---- doctor ------------------------------------------------------------------------------------------------------------


def examine(
    here: Here,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what is wrong.")] = False,
) -> int:
    """Prove that every run is in exactly one place and that nothing is left over; exit code 1 where something is wrong."""
    settings = here.settings
    wire = Wire(settings.address, settings.timeout)
    try:
        report = drive(wire, doctor.examine(drive(wire, checks.enter(settings)), repair=repair))
    finally:
        wire.close()
    here.answer(_plain(report), *_shown(report, repair))
    return DONE if report.healthy else BADLY


def _plain(report: Report) -> dict[str, Any]:
    rows = [
        {
            "subject": finding.subject,
            "partition": finding.partition,
            "what": clean(finding.what),
            "where": clean(f"{finding.where}:{finding.name}".strip(":")),
            "fault": finding.fault,
            "sentence": clean(finding.sentence),
            "mended": finding.mended,
        }
        for finding in report.findings
    ]
    facts = ("namespace", "partitions", "runs", "keys", "healthy", "found", "mended", "counts")
    return {**{fact: getattr(report, fact) for fact in facts}, "findings": rows}


def _shown(report: Report, repair: bool) -> Iterator[Text]:
    for finding in report.findings:
        yield _line(finding)
    if report.found > len(report.findings):
        yield Text(f"and {report.found - len(report.findings):,} more", "dim")
    where = f"{format_count(report.runs, 'run')} in {format_count(report.partitions, 'partition')}"
    if not report.found:
        yield Text(f"namespace {report.namespace}, {where}: nothing is wrong", "green")
    elif not repair:
        found = f"{format_count(report.found, 'thing')} {'is' if report.found == 1 else 'are'} wrong"
        yield Text(f"{where}, {found}: 'coordinator doctor --repair' mends what it can", "yellow")
    elif report.healthy:
        were = "was" if report.found == 1 else "were"
        yield Text(f"{where}, {format_count(report.found, 'thing')} {were} wrong: nothing is any more", "green")
    else:
        found = f"{format_count(report.found, 'thing')} wrong"
        yield Text(f"{where}, {found}, {report.mended:,} mended: run it again", "red")


def _line(finding: Finding) -> Text:
    said = Text(clean(finding.sentence), "red" if not finding.mended else "")
    return said.append(f"  ({clean(finding.remedy)})", "dim") if finding.remedy else said


# ---- pause and unpause ---------------------------------------------------------------------------------------------------


def pause(here: Here, queue: OneQueue = None, kind: OneKind = None) -> None:
    """Let no worker take runs of a queue or a kind; what runs goes on."""
    with _client(here) as client:
        new = client.pause(queue=queue, kind=kind)
    _say(here, queue, kind, paused=True, new=new)


def unpause(here: Here, queue: OneQueue = None, kind: OneKind = None) -> None:
    """Let workers take runs of a queue or a kind again."""
    with _client(here) as client:
        new = client.unpause(queue=queue, kind=kind)
    _say(here, queue, kind, paused=False, new=new)


def _client(here: Here) -> Client:
    settings = here.settings
    return Client(settings.url, settings.namespace, settings.timeout)


def _say(here: Here, queue: str | None, kind: str | None, *, paused: bool, new: bool) -> None:
    what = f"queue {queue}" if queue is not None else f"kind {kind}"
    if paused:
        said = f"{what} is paused" if new else f"{what} was paused already"
    else:
        said = f"{what} goes on" if new else f"{what} was not paused"
    facts = {"queue": queue} if queue is not None else {"kind": kind}
    here.answer({**facts, "paused": paused, "changed": new}, Text(said))
