"""View, cancel, revive and discard one run, and collect the endings of many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from coordinator.client.operations.open_namespace import (
    OpenNamespace,
    as_reading_error,
    new_mark,
    reading,
    run_not_found,
)
from coordinator.client.reading import overview
from coordinator.encoding.spec import SPEC_FIELDS, digest_inputs, join_spec, read_spec
from coordinator.errors import BadCall, BadOption, Changed, CoordinatorError, KeyConflict, NotFound, Unreadable
from coordinator.model.run import Counters, RunView, Status
from coordinator.store.keys import Keys
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import trees as tree_plans
from coordinator.store.plans.merge import Plan, merge_plans
from coordinator.store.plans.trees import CancelledNode
from coordinator.store.replies import text
from coordinator.views.ending import Ending
from coordinator.views.run_view import read_counters, run_view

T = TypeVar("T")

WAITS_PER_TRIP = 500


def view(namespace: OpenNamespace, id: str) -> Plan[RunView]:
    """Read a run from the server, and return a view of it.

    Raises:
        NotFound: The run does not exist.
        Unreadable: The stored run is damaged.
    """
    keys = yield from namespace.keys(id)
    reply = yield from reading(client_plans.view(keys, id))
    if reply is None:
        raise run_not_found(id)
    return run_view(id, reply)


def cancel(namespace: OpenNamespace, id: str, grace: float) -> Plan[Status]:
    """Cancel a run.

    Args:
        namespace: The namespace of the run.
        id: The run.
        grace: Seconds that the handler of a running run has to stop.

    Returns:
        CANCELLED; RUNNING if its worker was asked to stop it; or the status in which the run had ended before.
    """
    status, _, _ = yield from _cancel(namespace, id, grace)
    return status


def _cancel(namespace: OpenNamespace, id: str, grace: float) -> Plan[tuple[Status, Counters, int | None]]:
    """Cancel a run. Return its status, its counters in the life that was cancelled, and its own retention in ms.

    Raises:
        Changed: The run was revived meanwhile.
        NotFound: The run does not exist.
    """
    keys = yield from namespace.keys(id)
    counters, retention = yield from namespace.fields(keys, id, "counters", "retention")
    known = read_counters(id, counters)
    answer = yield from client_plans.cancel(keys, id, operation=new_mark(), grace=grace, life=known.life)
    status = client_plans.status_after_cancel(answer)
    if status is not None:
        return status, known, tree_plans.read_retention(retention)
    match answer[0]:
        case "changed":
            raise Changed(f"run {id} was revived meanwhile; it was not cancelled")
        case "missing":
            raise run_not_found(id)
        case other:
            raise BadCall(f"cancel answered {other!r}")


def cancel_tree(namespace: OpenNamespace, id: str, grace: float) -> Plan[dict[str, Status]]:
    """Cancel a run and every run below it. Return the status of each run by its id, as `cancel` returns it."""
    status, known, retention = yield from _cancel(namespace, id, grace)
    space, root = (yield from namespace.space()), CancelledNode(id, known.life, status, known.attempt > 0, retention)
    below = yield from tree_plans.cancel_below(space, root, operation=new_mark(), grace=grace)
    return {id: status, **below}


def list_below(namespace: OpenNamespace, ids: Sequence[str]) -> Plan[list[str]]:
    """Return the ids of all descendants of the given runs: the runs that `cancel_tree` would cancel in addition to them."""
    for id in ids:
        yield from namespace.keys(id)
    space = yield from namespace.space()
    return (yield from tree_plans.list_below(space, ids))


def revive(
    namespace: OpenNamespace, id: str, from_start: bool, forget_effects: bool | Sequence[str] = False
) -> Plan[None]:
    """Queue a failed, dead or cancelled run again.

    Args:
        namespace: The namespace of the run.
        id: The run.
        from_start: Drop the checkpoint, so that the handler starts from the beginning.
        forget_effects: True to forget all effects of `run.once`, or the names of the effects to forget.

    Raises:
        Changed: The run has not ended, has completed, or was revived by another call.
        KeyConflict: The run's idempotency key belongs to another run by now.
        NotFound: The run does not exist, or its inputs were not kept.
        Unreadable: The run's checkpoint is damaged.
        BadOption: `forget_effects` is a text, or names an effect that the run does not have.
    """
    if isinstance(forget_effects, str):
        raise BadOption(f"forget_effects={forget_effects!r} must be True or a list of names")
    keys = yield from namespace.keys(id)
    names = ("counters", "once", "cancel", "ended", "retention")
    fields = yield from namespace.fields(keys, id, *names, *SPEC_FIELDS)
    counters, once, cancel, ended, retention = fields[: len(names)]
    spec = join_spec(dict(zip(SPEC_FIELDS, fields[len(names) :], strict=True)))
    if not spec:
        raise NotFound(f"run {id} can't be revived: its inputs were not kept (retention=0)")
    digest = digest_inputs(read_spec(spec, f"the spec of run {id}")[0]) if once else ""
    life = read_counters(id, counters).life
    if cancel and ended:
        # Children are allowed before the revive: the run may be claimed immediately, and the server would refuse its children.
        space = yield from namespace.space()
        kept = tree_plans.read_retention(retention)
        yield from tree_plans.unblock_children(space, CancelledNode(id, life, retention=kept))
    answer = yield from client_plans.revive(
        keys, id, operation=new_mark(), life=life, from_start=from_start, digest=digest, forget_effects=forget_effects
    )
    answer, _, unknown = answer.partition(" ")
    match answer:
        case "queued":
            return
        case "unknown":
            raise BadOption(
                f"run {id} was not revived: it has no effect {unknown!r}; 'coordinator show {id}' lists its effects"
            )
        case "changed":
            raise Changed(f"run {id} was revived by another call meanwhile")
        case "running":
            raise Changed(f"run {id} has not ended; only a failed, dead or cancelled run can be revived")
        case "completed":
            raise Changed(f"run {id} has completed; only a failed, dead or cancelled run can be revived")
        case "conflict":
            raise KeyConflict(f"run {id} can't be revived: its key belongs to another run by now")
        case "unreadable":
            raise Unreadable(f"the checkpoint of run {id} can't be read: revive the run from the start")
        case "missing":
            raise run_not_found(id)
        case _:
            raise BadCall(f"revive answered {answer!r}")


def discard(namespace: OpenNamespace, id: str) -> Plan[Status]:
    """Remove an ended run and its checkpoint. Return the status in which the run had ended.

    Raises:
        Changed: The run has not ended, or was revived meanwhile.
        NotFound: The run does not exist.
    """
    keys = yield from namespace.keys(id)
    (counters,) = yield from namespace.fields(keys, id, "counters")
    answer, *rest = yield from client_plans.discard(keys, id, read_counters(id, counters).life)
    match answer:
        case "discarded":
            return Status(rest[0])
        case "open":
            raise Changed(f"run {id} has not ended (it is {rest[0]}); only an ended run can be discarded")
        case "changed":
            raise Changed(f"run {id} was revived meanwhile; it was not discarded")
        case "missing":
            raise run_not_found(id)
        case _:
            raise BadCall(f"discard answered {answer!r}")


def position(namespace: OpenNamespace, id: str) -> Plan[int | None]:
    """Return the number of runs of the same queue and kind that workers take before this run, in all partitions and schemas.

    Return None if the run is not queued.
    """
    keys = yield from namespace.keys(id)
    status, route, counters = yield from namespace.fields(keys, id, "status", "route", "counters")
    if status != b"queued":
        return None
    space = yield from namespace.space()
    score = read_counters(id, counters).score
    return (yield from reading(overview.count_before(space, keys, id, text(route), score)))


# ---- many runs ---------------------------------------------------------------------------------------------------------


def collect_endings(namespace: OpenNamespace, ids: Sequence[str], client: str) -> Plan[list[Ending]]:
    """Return the endings of the runs that have ended, in the order in which they ended.

    For each other run the server registers the client, and wakes it when the run ends.

    Raises:
        NotFound: One of the runs does not exist.
    """
    endings: list[Ending] = []
    for start in range(0, len(ids), WAITS_PER_TRIP):
        part = ids[start : start + WAITS_PER_TRIP]
        waits = []
        for id in part:
            keys = yield from namespace.keys(id)
            waits.append(client_plans.wait(keys, id, client))
        answers = yield from merge_plans(waits)
        for id, answer in zip(part, answers, strict=True):
            if isinstance(answer, CoordinatorError):
                raise as_reading_error(answer)
            if (ending := _read_ending(id, answer)) is not None:
                endings.append(ending)
    return sorted(endings, key=lambda ending: ending.at)


def read_ending(keys: Keys, id: str, client: str) -> Plan[Ending | None]:
    """Return the ending of a run, in one request. If the run has not ended, register the client and return None.

    Raises:
        NotFound: The run does not exist.
    """
    return _read_ending(id, (yield from reading(client_plans.wait(keys, id, client))))


def _read_ending(id: str, answer: Sequence[Any]) -> Ending | None:
    if answer[0] == "missing":
        raise run_not_found(id)
    return Ending.of(id, answer[1:]) if answer[0] == "ended" else None


def forget_hints(keys: Keys, client: str) -> Plan[None]:
    """Remove the hints from the wake list of a client."""
    yield from reading(client_plans.take_hints(keys, client))


def wake_lists(namespace: OpenNamespace, client: str) -> Plan[dict[str, Keys]]:
    """Return the keys of each partition by the name of its wake list.

    On this list the server tells the client that a run has ended.
    """
    space = yield from namespace.space()
    return {keys.wake(client): keys for keys in space.everywhere()}


def for_each(
    namespace: OpenNamespace, ids: Iterable[str], operation: Callable[[OpenNamespace, str], Plan[T]]
) -> Plan[list[T | CoordinatorError]]:
    """Carry out an operation for all runs at the same time. Return the result or the error for each run."""
    yield from namespace.space()  # read once, and not once for each run
    return (yield from merge_plans(operation(namespace, id) for id in ids))
