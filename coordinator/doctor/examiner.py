"""Verify and repair a namespace: each run must be in exactly one collection, and each entry must belong to a run that exists.

The examination walks through the keys page by page, so that it does not block the server. Each fault is examined a second time
before it is reported. A repair is a script that checks the fault once more before it changes anything.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

from coordinator.doctor.page_examiner import PageExaminer, Steps
from coordinator.doctor.report import DoctorReport, WalkResult, make_report
from coordinator.store.keys import Keys, Namespace
from coordinator.store.nodes import one_for_each_node
from coordinator.store.plans import doctor as doctor_plans

MAX_WALKS = 5  # a repair may uncover another fault, which the next walk finds


def examine(space: Namespace, *, repair: bool = False, now: str = "") -> Generator[Any, Any, DoctorReport]:
    """Examine all keys of a namespace, and repair their faults if requested.

    Args:
        space: The namespace.
        repair: Repair each fault, and walk again until a walk finds nothing.
        now: The time in a namespace with a test clock; empty for the server's time.

    Returns:
        The report of all findings and repairs.
    """
    walks: list[WalkResult] = [(yield from _walk(space, repair, now))]
    while repair and walks[-1].total and len(walks) < MAX_WALKS:
        walks.append((yield from _walk(space, repair, now)))
    return make_report(space.name, space.partitions, walks)


def _walk(space: Namespace, repair: bool, now: str) -> Steps:
    """Examine each key once, page by page on each node, and return the result of the walk."""
    result, examined = WalkResult(), set[str]()
    parts: dict[str, Keys] = {keys.at: keys for keys in space.everywhere()}
    for node in (yield from one_for_each_node(space)):
        cursor = None
        while cursor != 0:
            cursor, page = yield from doctor_plans.scan_keys(node.at, space.name, cursor or 0)
            for at, names in _by_partition(page).items():
                if at in parts:
                    fresh = [name for name in names if f"{at}:{name}" not in examined]
                    yield from PageExaminer(parts[at], result, repair, now).examine(fresh, examined)
    return result


def _by_partition(page: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of keys by hash tag, without the tag and without duplicates."""
    found: dict[str, dict[str, None]] = {}
    for key in page:
        at, _, name = key.partition("}:")
        found.setdefault(at + "}", {})[name] = None
    return {at: list(names) for at, names in found.items()}
