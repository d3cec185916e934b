"""The changes that the page makes: cancel, revive and discard runs, by id or by a filter, and cancel a whole tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coordinator.client.async_client import AsyncClient
from coordinator.client.handles import CANCEL_GRACE
from coordinator.client.operations import lists as list_operations
from coordinator.client.operations import runs as run_operations
from coordinator.client.operations.open_namespace import OpenNamespace
from coordinator.client.reading.scan import Walk
from coordinator.errors import BadOption, CoordinatorError
from coordinator.model.run import ENDED, Status
from coordinator.model.run_id import ids_from, is_run_id
from coordinator.store.plans.merge import Plan
from coordinator.web.page.run_filter import RunFilter, read_filter
from coordinator.web.page.run_pages import keep_matching

MOST_RUNS = 100_000  # the most runs that one request changes
BATCH = 500
LATEST = 10**11  # the latest valid Unix time, in seconds: in the year 5138; a later time is a mistake
MOST_EXAMINED = 200_000  # runs whose fields are read for a filter by group, key or meta
TEXTS = ("status", "kind", "queue", "group", "key", "meta")  # what a filter may have, besides a time
MOST_SHOWN = 20  # runs that a dry run names

Change = Callable[[OpenNamespace, str], Plan[Any]]


def _cancel(namespace: OpenNamespace, id: str) -> Plan[Status]:
    return run_operations.cancel(namespace, id, CANCEL_GRACE)


def _revive(namespace: OpenNamespace, id: str) -> Plan[None]:
    return run_operations.revive(namespace, id, False)


def _revive_from_start(namespace: OpenNamespace, id: str) -> Plan[None]:
    return run_operations.revive(namespace, id, True)


def _revive_without_effects(namespace: OpenNamespace, id: str) -> Plan[None]:
    return run_operations.revive(namespace, id, False, forget_effects=True)


TREE = "cancel_tree"  # the change of a run and all runs below it

# Each change of runs, with the statuses of the runs that it may change.
CHANGES: Mapping[str, tuple[Change, frozenset[Status]]] = {
    "cancel": (_cancel, frozenset({Status.QUEUED, Status.DELAYED, Status.WAITING, Status.RUNNING})),
    "revive": (_revive, frozenset({Status.FAILED, Status.DEAD, Status.CANCELLED})),
    "revive_from_start": (_revive_from_start, frozenset({Status.FAILED, Status.DEAD, Status.CANCELLED})),
    "revive_without_effects": (_revive_without_effects, frozenset({Status.FAILED, Status.DEAD, Status.CANCELLED})),
    "discard": (run_operations.discard, frozenset(ENDED)),
}


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """A change that a caller asks for.

    Attributes:
        action: The name of the change: a key of CHANGES, or the value of TREE.
        ids: The ids of the runs to change; empty for all runs that match the filter.
        wanted: The filter; None if ids are given.
        dry_run: True if the runs are only counted, and not changed.
        expected: The number of runs that a dry run has counted. If more runs match now, the request is refused and changes no run.
    """

    action: str
    ids: tuple[str, ...]
    wanted: RunFilter | None
    dry_run: bool
    expected: int | None

    @classmethod
    def of(cls, body: Any) -> ChangeRequest:
        """Return the request from its JSON data.

        Raises:
            BadOption: A field is missing or not valid, or runs are selected by a filter without `dry_run` and `expected`.
        """
        if not isinstance(body, dict) or body.get("action") not in (*CHANGES, TREE):
            raise BadOption(f"action must be one of {', '.join((*CHANGES, TREE))}")
        ids, wanted = body.get("ids", []), body.get("filter")
        if not isinstance(ids, list) or not all(isinstance(id, str) and is_run_id(id) for id in ids):
            raise BadOption("ids must be a list of run ids")
        if bool(ids) == bool(wanted):
            raise BadOption("give ids or a filter, and not both")
        if body["action"] == TREE and len(ids) != 1:
            raise BadOption("give the id of one run, whose tree is cancelled")
        expected = body.get("expected")
        dry_run = body.get("dry_run") is True
        if wanted and not dry_run and not _is_count(expected):
            raise BadOption("a filter needs a dry run first: give the number of runs that it counted as `expected`")
        found = _read_filter(body["action"], wanted) if wanted else None
        return cls(body["action"], tuple(ids), found, dry_run, expected if _is_count(expected) else None)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or _is_count(value)


def _read_filter(action: str, wanted: Any) -> RunFilter:
    if not isinstance(wanted, dict) or not isinstance(wanted.get("status"), str):
        raise BadOption("a filter needs a status")
    allowed = CHANGES[action][1]
    if wanted["status"] not in allowed:
        raise BadOption(f"can't {action} runs that are {wanted['status']}")
    unknown = wanted.keys() - {*TEXTS, "since"}
    if unknown:
        raise BadOption(f"a change can't be filtered by {', '.join(sorted(map(str, unknown)))}")
    texts, since = {name: wanted.get(name) or "" for name in TEXTS}, wanted.get("since") or 0
    wrong = [name for name, value in texts.items() if not isinstance(value, str)]
    if wrong:
        raise BadOption(f"{wrong[0]} must be a text")
    if not _is_number(since) or not 0 <= since <= LATEST:
        raise BadOption("since must be a Unix time")
    return replace(read_filter(texts), since=float(since))


def _find_ids(namespace: OpenNamespace, wanted: RunFilter) -> Plan[list[str]]:
    """Return the ids of all runs that match a filter.

    Raises:
        BadOption: Too many runs would have to be examined.
    """
    assert wanted.status is not None
    walk = Walk(
        wanted.status, wanted.kind or None, wanted.queue or None, ids_from(wanted.since) if wanted.since else ""
    )
    ids: list[str] = yield from list_operations.list_ids(namespace, walk)
    if not (wanted.group or wanted.key or wanted.meta):
        return ids
    if len(ids) > MOST_EXAMINED:
        raise BadOption(f"{len(ids):,} runs would have to be examined: filter by kind, queue or time as well")
    return (yield from keep_matching(namespace, ids, wanted))


async def carry_out(client: AsyncClient, request: ChangeRequest) -> dict[str, Any]:
    """Carry out a change, or count the runs that it would change.

    Returns:
        A dict with the number of runs as `matched`. A dry run adds the first ids as `sample`. A change adds the numbers of
        `changed` and `failed` runs, and the first `errors`.

    Raises:
        BadOption: More runs match than the dry run had counted, or more than one request may change.
    """
    if request.action == TREE:
        return await _cancel_tree(client, request.ids[0], dry_run=request.dry_run)
    ids: Sequence[str] = request.ids
    if request.wanted is not None:
        ids = await client._do(_find_ids, request.wanted)
    if len(ids) > MOST_RUNS:
        raise BadOption(f"{len(ids):,} runs match: use the command line for more than {MOST_RUNS:,}")
    if request.dry_run:
        return {"matched": len(ids), "sample": list(ids[:MOST_SHOWN])}
    if request.expected is not None and len(ids) > request.expected:
        raise BadOption(f"{len(ids):,} runs match now, more than the {request.expected:,} of the dry run: try again")
    change, _ = CHANGES[request.action]
    changed, errors = 0, []
    for start in range(0, len(ids), BATCH):
        part = ids[start : start + BATCH]
        outcomes = await client._do(run_operations.for_each, part, change)
        for id, outcome in zip(part, outcomes, strict=True):
            if isinstance(outcome, CoordinatorError):
                errors.append({"id": id, "error": type(outcome).__name__, "detail": str(outcome)[:300]})
            else:
                changed += 1
    return {"matched": len(ids), "changed": changed, "failed": len(errors), "errors": errors[:MOST_SHOWN]}


async def _cancel_tree(client: AsyncClient, id: str, *, dry_run: bool) -> dict[str, Any]:
    """Cancel a run and all runs below it, or with `dry_run` only count them. Return the same dict as `carry_out`."""
    if dry_run:
        below = await client._do(run_operations.list_below, [id])
        return {"matched": 1 + len(below), "sample": [id, *below][:MOST_SHOWN]}
    statuses = await client._do(run_operations.cancel_tree, id, CANCEL_GRACE)
    ended = sum(status in ENDED and status is not Status.CANCELLED for status in statuses.values())
    return {"matched": len(statuses), "changed": len(statuses) - ended, "ended": ended, "failed": 0, "errors": []}
