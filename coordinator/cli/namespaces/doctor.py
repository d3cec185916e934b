"""The command doctor: verify the stored structure of a namespace, and repair it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.text import Text

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.exits import DONE, PROBLEM
from coordinator.doctor.examiner import examine
from coordinator.doctor.findings import Finding
from coordinator.doctor.report import DoctorReport
from coordinator.store import server_checks as checks
from coordinator.store.transport.wire import Wire, drive
from coordinator.views.formatting import clean, format_count


def doctor(
    context: CommandContext,
    repair: Annotated[bool, typer.Option("--repair", help="Repair the faults that are found.")] = False,
) -> int:
    """Verify that each run is stored in exactly one place, and that no data is left over.

    The command exits with 1 if a fault was found and not repaired.
    """
    settings = context.settings
    wire = Wire(settings.address, settings.timeout)
    try:
        report = drive(wire, examine(drive(wire, checks.enter(settings)), repair=repair))
    finally:
        wire.close()
    context.answer(_to_json(report), *_lines(report, repair))
    return DONE if report.healthy else PROBLEM


def _to_json(report: DoctorReport) -> dict[str, Any]:
    rows = [
        {
            "subject": finding.subject,
            "partition": finding.partition,
            "what": clean(finding.what),
            "where": clean(f"{finding.where}:{finding.name}".strip(":")),
            "fault": finding.fault,
            "sentence": clean(finding.sentence),
            "repaired": finding.repaired,
        }
        for finding in report.findings
    ]
    return {
        "namespace": report.namespace,
        "partitions": report.partitions,
        "runs": report.runs,
        "keys": report.keys,
        "healthy": report.healthy,
        "found": report.found,
        "repaired": report.repaired,
        "counts": report.counts,
        "findings": rows,
    }


def _lines(report: DoctorReport, repair: bool) -> Iterator[Text]:
    for finding in report.findings:
        yield _line(finding)
    if report.found > len(report.findings):
        yield Text(f"and {report.found - len(report.findings):,} more", "dim")
    yield _summary(report, repair)


def _summary(report: DoctorReport, repair: bool) -> Text:
    examined = (
        f"namespace {report.namespace}: examined {format_count(report.runs, 'run')} "
        f"in {format_count(report.partitions, 'partition')}"
    )
    problems = format_count(report.found, "problem")
    if not report.found:
        return Text(f"{examined}, no problems", "green")
    if not repair:
        return Text(f"{examined}, {problems}: 'coordinator doctor --repair' repairs them", "yellow")
    if report.healthy:
        return Text(f"{examined}, {problems}, all repaired", "green")
    return Text(f"{examined}, {problems}, {report.repaired:,} repaired: run 'coordinator doctor --repair' again", "red")


def _line(finding: Finding) -> Text:
    text = Text(clean(finding.sentence), "" if finding.repaired else "red")
    return text.append(f"  ({clean(finding.remedy)})", "dim") if finding.remedy else text
