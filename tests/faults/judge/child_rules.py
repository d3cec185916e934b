"""The judge's rules about children that a run waits for. Pure code without I/O.

That the result of a parent is the sum of its children is judged with the results of all other runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from tests.faults.judge.evidence import Evidence
from tests.faults.judge.history import Operation


def children_end_once(see: Evidence) -> Iterator[str]:
    """A child of a step has one ending, whichever attempt of the parent collects it."""
    endings: dict[tuple[str, str, str], set[tuple[str, str]]] = defaultdict(set)
    for op in _collected(see):
        rows = op.answer[3]
        for index, status, payload in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
            endings[op.id, str(op.given["base"]), str(index)].add((str(status), str(payload)))
    for (id, base, index), found in endings.items():
        if len(found) > 1:
            yield f"run {id}: child {index} of step {base} was collected as {sorted(found)}"


def endings_only_grow(see: Evidence) -> Iterator[str]:
    """A step never has more endings than children, and an ending that was counted stays counted."""
    most: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for op in _collected(see):
        spawned, ended = int(op.answer[1]), int(op.answer[2])
        base = str(op.given["base"])
        if ended > spawned:
            yield f"run {op.id}: {ended} of {spawned} children of step {base} have ended"
        if any(before > ended and answered < op.invoked for answered, before in most[op.id, base]):
            yield f"run {op.id}: fewer children of step {base} have ended than before: {ended}"
        most[op.id, base].append((op.ended, ended))


def dropped(see: Evidence, asked: Collection[str]) -> set[str]:
    """Return the children that a coordinator may cancel, because their parent was cancelled or is dead."""
    found = set[str]()
    for op in see.history.of("enqueue"):
        parent, joined, _ = str(op.given.get("parent", "")).partition(" ")
        run = see.final.runs.get(parent)
        if joined and (parent in asked or run is None or run.status == "dead"):
            found.add(op.id)
    return found


def _collected(see: Evidence) -> Iterator[Operation]:
    for op in see.history.of("collect"):
        if op.word == "ok" and op.id not in see.excused:
            yield op
