"""The report of the doctor, and the findings of its walks. This module does no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coordinator.doctor.findings import Finding

MAX_FINDINGS = 1000  # findings that a report lists; all of them are counted, and repaired


@dataclass(slots=True)
class WalkResult:
    """The findings of one walk through all keys of a namespace.

    Attributes:
        runs: The number of runs that were examined.
        keys: The number of keys that were examined.
        total: The number of findings.
        repaired: The number of findings that were repaired.
        findings: The first findings, at most MAX_FINDINGS.
        counts: The number of findings by subject and fault.
    """

    runs: int = 0
    keys: int = 0
    total: int = 0
    repaired: int = 0
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, finding: Finding) -> None:
        """Count a finding, and append it to `findings` unless the list already has MAX_FINDINGS entries."""
        self.total += 1
        self.repaired += finding.repaired
        self.counts[f"{finding.subject}: {finding.fault}"] += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The findings and repairs of the doctor in a namespace.

    Attributes:
        runs: Number of runs that the last walk examined.
        keys: Number of keys that the last walk examined.
        healthy: True if the last walk found no fault.
        found: Number of findings in all walks.
        repaired: Number of repairs in all walks.
        counts: Number of findings by subject and fault.
        findings: The first findings, each with the outcome of its last repair.
    """

    namespace: str
    partitions: int
    runs: int
    keys: int
    healthy: bool
    found: int
    repaired: int
    counts: Mapping[str, int]
    findings: tuple[Finding, ...]


def make_report(namespace: str, partitions: int, walks: Sequence[WalkResult]) -> DoctorReport:
    """Return the report of an examination from the results of its walks.

    `runs`, `keys` and `healthy` of the report describe the last walk only.
    """
    last = walks[-1]
    counts = sum((walk.counts for walk in walks), Counter[str]())
    findings = [finding for walk in walks for finding in walk.findings]
    return DoctorReport(
        namespace=namespace,
        partitions=partitions,
        runs=last.runs,
        keys=last.keys,
        healthy=not last.total,
        found=counts.total(),
        repaired=sum(walk.repaired for walk in walks),
        counts=dict(counts),
        findings=tuple(_last_outcomes(findings))[:MAX_FINDINGS],
    )


def _last_outcomes(findings: Iterable[Finding]) -> Iterable[Finding]:
    """Return each finding once, with its last outcome. Several walks may find the same fault."""
    last: dict[Finding, Finding] = {}
    for finding in findings:
        last[replace(finding, outcome="", detail="")] = finding
    return last.values()
