"""Findings of the doctor that a crash leaves, and that the product cleans up by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from coordinator.doctor.findings import Finding


def without_calls_of_lost_workers(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Leave out calls to the outside whose worker is gone: they do not count, and the next call that needs a place removes them."""
    return (one for one in findings if not (one.fault == "abandoned" and one.where in ("holders", "turns")))
