"""The judge's rules about records, the checkpoints of programs that use `workers.durable`. Pure code without I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.faults.judge.evidence import Evidence
from tests.faults.judge.history import Operation


def records_fresh(see: Evidence) -> Iterator[str]:
    """A load returns at least the newest acknowledged save, or nothing if the record may have been deleted."""
    saves, deletes = _by_run(see, "record_save"), _by_run(see, "record_delete")
    for op in see.history.of("record_load"):
        newest = max((_seq(save) for save in saves[op.id] if save.word == "ok" and save.ended < op.invoked), default=0)
        if op.given.get("page") != "head" or not newest:
            continue
        deleted = any(delete.invoked < op.ended for delete in deletes[op.id])
        if op.word == "missing" and not deleted:
            yield f"record {op.id} was saved as {newest} but was not found"
        if op.word == "ok" and int(op.answer[1].split()[0]) < newest:
            yield f"record {op.id} was loaded as {op.answer[1].split()[0]} although {newest} was acknowledged"


def records_owned(see: Evidence) -> Iterator[str]:
    """A process that lost a record to another owner neither saves nor deletes it, and only one process takes it over.

    A record that its owner deleted may be deleted again by any process.
    """
    writes = _by_run(see, "record_save", "record_delete")
    for id, claims in _by_run(see, "record_claim").items():
        taken = [claim for claim in claims if claim.word == "ok"]
        for claim in taken:
            owner, seen = claim.given["owner"], claim.given.get("seen", "")
            if owner == seen:
                continue
            for op in writes[id]:
                if (
                    op.word == "ok"
                    and op.given["owner"] == seen
                    and op.invoked > claim.ended
                    and not _gone(op, writes[id])
                ):
                    yield f"record {id} was taken over by {owner}, but {op.script} of {seen} was accepted"
            for other in taken:
                if other.given["owner"] != owner and other.given.get("seen", "") == seen and other is not claim:
                    yield f"record {id} was taken from {seen!r} by {owner} and by {other.given['owner']}"


def _gone(op: Operation, writes: list[Operation]) -> bool:
    """Return whether a delete may have found nothing, because an earlier delete removed the record."""
    deletes = (other for other in writes if other.script == "record_delete" and other.word in ("ok", ""))
    return op.script == "record_delete" and any(
        other.invoked < op.ended and other.given["owner"] != op.given["owner"] for other in deletes
    )


def records_kept(see: Evidence) -> Iterator[str]:
    """At the end, the newest acknowledged save of each record is stored, and no deleted record is."""
    deletes = _by_run(see, "record_delete")
    for id, saves in _by_run(see, "record_save").items():
        newest = max((_seq(save) for save in saves if save.word == "ok"), default=0)
        there = see.final.records.get(id, 0)
        if newest > there and not any(delete.word == "ok" or delete.outcome == "unknown" for delete in deletes[id]):
            yield f"record {id} was saved as {newest}, but {there or 'nothing'} is stored"
    for id, gone in deletes.items():
        if id in see.final.records and any(delete.word == "ok" for delete in gone):
            yield f"record {id} was deleted but still exists"
    for id in set(see.final.records) - {op.id for op in see.history.of("record_save")}:
        yield f"record {id} exists although no process saved it"


def _by_run(see: Evidence, *scripts: str) -> dict[str, list[Operation]]:
    found: dict[str, list[Operation]] = defaultdict(list)
    for op in see.history.of(*scripts):
        found[op.id].append(op)
    return found


def _seq(save: Operation) -> int:
    return int(save.given["seq"])
