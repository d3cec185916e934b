"""Enqueue runs: one, or many in batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from coordinator.client.operations.groups import check_groups_known
from coordinator.client.operations.open_namespace import OpenNamespace
from coordinator.client.parent import current_parent, remember_child
from coordinator.client.run_builder import (
    KeyOf,
    RunBuilder,
    RunRequest,
    as_inputs,
    batches,
    check_given_ids,
    check_key_ttl,
    inputs_of_item,
    without,
)
from coordinator.errors import (
    BadCall,
    BadOption,
    IdExpired,
    KeyConflict,
    NotConfigured,
    TreeCancelled,
    Unconfirmed,
    Unreachable,
    Unreadable,
)
from coordinator.middleware import current_middleware
from coordinator.model.enqueue import HandlerOf, Inputs
from coordinator.model.limits import TOMBSTONE_MS
from coordinator.model.names import parse_route
from coordinator.model.policies.groups import describe_ungrouped, has_limit
from coordinator.model.run_id import partition_of
from coordinator.store.keys import Namespace
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans.clients import NewRun
from coordinator.store.plans.merge import Plan

H = TypeVar("H")
MakeHandle = Callable[[str, bool, object], H]

# Seconds after an id was made, for which the server certainly remembers the run of this id, even if the run ended immediately.
SURELY_KNOWN = TOMBSTONE_MS / 1000 - 5

_WITHOUT_OPTIONS = RunBuilder({})  # most calls give no options: their builder is made once


def enqueue(
    namespace: OpenNamespace,
    what: Inputs[Any] | HandlerOf[Any] | str,
    values: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    make_handle: MakeHandle[H],
) -> Plan[H]:
    """Enqueue one run and return its handle.

    Args:
        namespace: The namespace to enqueue in.
        what: `handler.inputs(…)`, a handler, or the kind of the run.
        values: The inputs, where `what` is a handler or a kind.
        options: The options of `Client.enqueue`.
        make_handle: Makes the handle from three arguments: the run's id, True if the run is new, and the handler that reads its
            result.
    """
    inputs = as_inputs(what, values)
    check_key_ttl(options)
    parent = current_parent.get()
    middleware = namespace.middleware or current_middleware.get()
    plain = parent is None and not middleware and options.keys() <= {"key", "group"}
    builder = _WITHOUT_OPTIONS if plain else RunBuilder(without(options, "key", "group", "id"), parent, middleware)
    _check_limited(inputs.kind, inputs.handler, options.get("group"))
    requests = [builder.request(inputs.kind, inputs.values, options.get("key"), inputs.handler, options.get("group"))]
    given = options.get("id")
    runs, answers = yield from _send(namespace, builder, requests, () if given is None else (given,))
    handles = [make_handle(id, created, inputs.handler) for id, created, _ in _acknowledged(requests, answers)]
    if not handles:
        raise _failure(answers, runs, (), ())
    if parent is not None:
        remember_child(answers[0][1])
    return handles[0]


def enqueue_many(
    namespace: OpenNamespace, items: Iterable[Any], options: Mapping[str, Any], make_handle: MakeHandle[H]
) -> Plan[list[H]]:
    """Enqueue many runs, batch by batch, and return their handles in the order of the items.

    The items are read as they are sent, so an iterable of any length needs the memory of one batch. For the arguments and errors
    see `Client.enqueue_many`.
    """
    check_key_ttl(options)
    middleware = namespace.middleware or current_middleware.get()
    builder = RunBuilder(without(options, "key", "group", "ids"), current_parent.get(), middleware)
    key_of, group = options.get("key"), options.get("group")
    given: Sequence[str] = tuple(options.get("ids", ()))
    handles: list[H] = []
    sent: list[str] = []
    acknowledged: list[str] = []
    try:
        for requests in batches(_requests(items, builder, key_of, group)):
            runs, answers = yield from _send(namespace, builder, requests, given[len(sent) : len(sent) + len(requests)])
            sent += [run.id for run in runs]
            for id, created, handler in _acknowledged(requests, answers):
                acknowledged.append(id)
                remember_child(id)
                handles.append(make_handle(id, created, handler))
            if len(handles) < len(sent):
                raise _failure(answers, runs, sent, acknowledged)
    except Exception as error:
        if acknowledged and not isinstance(error, Unconfirmed):
            error.add_note(f"{len(acknowledged):,} runs of this call were enqueued before it")
        raise
    return handles


def _requests(
    items: Iterable[Any], builder: RunBuilder, key_of: KeyOf | None, group: str | KeyOf | None
) -> Generator[RunRequest, None, None]:
    for item in items:
        inputs = inputs_of_item(item)
        key = None if key_of is None else key_of(inputs.values)
        _check_limited(inputs.kind, inputs.handler, group)
        yield builder.request(inputs.kind, inputs.values, key, inputs.handler, group)


def _check_limited(kind: str, handler: object, group: object) -> None:
    """Check that a run of a handler with a limit gets a group.

    The server refuses the run too, but only after a worker with the handler has published the limit. A handler that is resumed does
    not check this, because its children may have been enqueued before their handler got a limit.

    Raises:
        BadOption: The handler has a limit, and the run has no group.
    """
    if handler is not None and group is None and has_limit(handler) and getattr(handler, "group_by", None) is None:
        raise BadOption(f"the run of kind {kind} was not enqueued: {describe_ungrouped(kind)}")


# ---- sending -----------------------------------------------------------------------------------------------------------


def _send(
    namespace: OpenNamespace, builder: RunBuilder, requests: Sequence[RunRequest], given: Sequence[str]
) -> Plan[tuple[list[NewRun], list[Any]]]:
    """Make runs with ids from the requests, and send them. Return the runs, and for each run the server's answer or the error.

    `given` are ids for the first requests, from an earlier call that was not confirmed; the other runs get new ids.
    """
    space = namespace.facts or (yield from namespace.space())
    ids = check_given_ids(given, requests, space.partitions) if given else ()
    began = namespace.clock.monotonic()
    runs = builder.runs(requests, namespace.ids, namespace.now(), space.partitions, ids)
    if grouped := [partition_of(run.id, space.partitions) for run in runs if run.group]:
        yield from check_groups_known(namespace, space, grouped)
    if ids:
        return runs, (yield from _call(namespace, space, runs))
    answers = yield from _send_new(namespace, space, runs)
    untimely = [i for i, answer in enumerate(answers) if not isinstance(answer, Exception) and answer[0] == "untimely"]
    if untimely and namespace.clock.monotonic() - began < SURELY_KNOWN:
        # Had the server executed an earlier transmission, it would still know the run. So these runs do not exist, and the clock of
        # this machine is wrong.
        namespace.follow_clock(int(answers[untimely[0]][1]) / 1000)
        renewed = [_with_new_id(namespace, space, runs[i]) for i in untimely]
        others = yield from _send_new(namespace, space, renewed)
        for i, run, answer in zip(untimely, renewed, others, strict=True):
            runs[i], answers[i] = run, answer
    return runs, answers


def _with_new_id(namespace: OpenNamespace, space: Namespace, run: NewRun) -> NewRun:
    return run._replace(id=namespace.ids.make(namespace.now(), partition_of(run.id, space.partitions)))


def _send_new(namespace: OpenNamespace, space: Namespace, runs: list[NewRun]) -> Plan[list[Any]]:
    """Send runs that have new ids. Return the answer or the error for each. A run that gets another id is replaced in `runs`."""
    if space.partitions > 1:
        return (yield from _send_to_reachable(namespace, space, runs))
    return (yield from _call(namespace, space, runs))


def _send_to_reachable(namespace: OpenNamespace, space: Namespace, runs: list[NewRun]) -> Plan[list[Any]]:
    """Send each run to its partition, and to another partition if the first can't be reached. Return the answer or error for each.

    A run is moved to another partition only if it has neither a key nor a group, and was certainly not sent. It gets a new id, and
    is replaced in `runs`.
    """
    answers = yield from _call(namespace, space, runs, fail_fast=True)
    unreachable: set[int] = set()
    while not_sent := [i for i, answer in enumerate(answers) if isinstance(answer, Unreachable)]:
        unreachable |= {partition_of(runs[i].id, space.partitions) for i in not_sent}
        reachable = [partition for partition in range(space.partitions) if partition not in unreachable]
        movable = [i for i in not_sent if reachable and not (runs[i].once or runs[i].group)]
        for i in movable:
            runs[i] = runs[i]._replace(id=namespace.ids.make(namespace.now(), random.choice(reachable)))
        others = yield from _call(namespace, space, [runs[i] for i in not_sent], fail_fast=bool(movable))
        for i, answer in zip(not_sent, others, strict=True):
            answers[i] = answer
        if not movable:  # the last call has waited for the partitions that the other runs are bound to
            break
    return answers


def _call(
    namespace: OpenNamespace, space: Namespace, runs: Sequence[NewRun], *, fail_fast: bool = False
) -> Plan[list[Any]]:
    answers = yield from client_plans.enqueue(space, runs, fail_fast=fail_fast)
    if any(answer == ("mismatch", "") for answer in answers):
        space = yield from namespace.recreate(space)
        answers = yield from client_plans.enqueue(space, runs, fail_fast=fail_fast)
    return answers


# ---- answers -----------------------------------------------------------------------------------------------------------


def _acknowledged(requests: Sequence[RunRequest], answers: Sequence[Any]) -> list[tuple[str, bool, object]]:
    """Return each run that the server confirmed, as (id, True if the run is new, handler)."""
    return [
        (answer[1], answer[0] == "created", request.handler)
        for request, answer in zip(requests, answers, strict=True)
        if not isinstance(answer, Exception) and answer[0] in ("created", "found")
    ]


def _failure(
    answers: Sequence[Any], runs: Sequence[NewRun], sent: Sequence[str], acknowledged: Sequence[str]
) -> Exception:
    """Return the error to raise if the server did not acknowledge all runs.

    If it acknowledged some runs and can't be reached for the others, the error is Unconfirmed.

    Args:
        answers: The answer or the error for each run.
        runs: The runs of the batch that failed.
        sent: The ids of all runs that the call has sent; empty means the ids of `runs`.
        acknowledged: The ids of the runs that the server has acknowledged.
    """
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    doubts = (Unconfirmed, Unreachable) if acknowledged else Unconfirmed
    for error in errors:
        if isinstance(error, doubts):
            return Unconfirmed(str(error), sent or [run.id for run in runs], acknowledged)
    if errors:
        return errors[0]
    for run, (answer, other) in zip(runs, answers, strict=True):
        if answer == "conflict":
            key = run.once[len(run.group) + 1 :] if run.group else run.once
            return KeyConflict(f"key {key!r} belongs to run {other}, which has other inputs")
        if answer == "ungrouped":
            kind = parse_route(run.route)[1]
            return BadOption(f"run {run.id} was not enqueued: {describe_ungrouped(kind)}")
        if answer == "unreadable":
            return Unreadable(
                f"run {run.id} was not enqueued: a Redis key that it needs holds a value of another type; "
                "'coordinator doctor' finds it"
            )
        if answer == "blocked":
            return TreeCancelled(
                f"run {other} was cancelled with all runs below it: no more runs can be enqueued below it", parent=other
            )
        if answer == "untimely":
            return IdExpired(
                f"run {run.id} was not enqueued: its id is too old, and the server can't tell whether the run was executed "
                "before; find out whether it took effect, and if not, enqueue it without this id",
                run=run.id,
            )
        if answer == "mismatch":
            return NotConfigured(
                "the server is being flushed or restored from a backup; nothing was enqueued: call again"
            )
    return BadCall(f"enqueue answered {answers!r:.200}")


def read_answer(run: NewRun, answer: tuple[str, str]) -> tuple[str, bool]:
    """Read the server's answer for one run.

    Returns:
        The id of the run, and False if an idempotency key belonged to a run that already existed.

    Raises:
        CoordinatorError: The run was not enqueued.
    """
    word, id = answer
    if word not in ("created", "found"):
        raise _failure([answer], [run], (), ())
    return id, word == "created"
