"""Set and list the limits of groups, and check that the version of every live process supports groups."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.client.operations.open_namespace import OpenNamespace, new_mark, reading
from coordinator.errors import BadOption, NotConfigured
from coordinator.model.features import GROUPS, STARTS
from coordinator.model.names import name
from coordinator.model.policies.groups import (
    KEEP,
    NO_LIMIT,
    UNCHANGED,
    GroupLimit,
    Unchanged,
    check_at_once,
    check_group,
    encode_starts,
)
from coordinator.model.run_id import partition_for
from coordinator.store.keys import Keys, Namespace
from coordinator.store.plans import groups as group_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.plans.merge import Plan

# Seconds after a check for which the client assumes that all processes of the partition support groups.
TRUSTED_SECONDS = 10.0


def set_limit(
    namespace: OpenNamespace,
    kind: str,
    group: str | None,
    at_once: int | Unchanged | None,
    rate: str | Unchanged | None,
    burst: int | None,
) -> Plan[bool]:
    """Set the limits of a kind or of a group. Return False if the limits already had these values.

    For the arguments see `Client.set_limit`.

    Raises:
        BadOption: A limit or the group is not valid, or no limit is given.
        NotConfigured: A rate is given, but a live process has an older version that does not count starts.
    """
    if burst is not None and (rate is UNCHANGED or rate is None):
        raise BadOption(f"burst {burst} needs a rate")
    if at_once is UNCHANGED and rate is UNCHANGED:
        raise BadOption("give a limit (at_once), a rate, or both")
    places = KEEP if isinstance(at_once, Unchanged) else NO_LIMIT if at_once is None else str(check_at_once(at_once))
    starts = KEEP if isinstance(rate, Unchanged) else encode_starts(rate, burst)
    return (yield from _change(namespace, kind, group, places, starts, paced=starts not in (KEEP, NO_LIMIT)))


def remove_limit(namespace: OpenNamespace, kind: str, group: str | None) -> Plan[bool]:
    """Remove the limits that `set_limit` has set for a kind or a group. Return False if there was none."""
    return (yield from _change(namespace, kind, group, "", ""))


def _change(
    namespace: OpenNamespace, kind: str, group: str | None, at_once: str, rate: str, *, paced: bool = False
) -> Plan[bool]:
    name(kind, "kind")
    if group is not None:
        check_group(group)
    space, operation = (yield from namespace.space()), new_mark()
    changed, partitions = False, _partitions_of(space, group)
    if paced:
        for keys in partitions:
            old = yield from reading(worker_plans.find_process_without(keys, STARTS))
            if old is not None:
                raise NotConfigured(describe_uncounted_starts(old))
    for keys in partitions:
        changed |= yield from group_plans.set_limit(keys, kind, group, at_once, operation, rate)
    return changed


def _partitions_of(space: Namespace, group: str | None) -> list[Keys]:
    """Return the keys of the group's partition, or of all partitions if the limit applies to each group of a kind."""
    return space.everywhere() if group is None else [space.keys(partition_for(group, space.partitions))]


def list_limits(namespace: OpenNamespace) -> Plan[tuple[GroupLimit, ...]]:
    """Return all limits, sorted by kind and group."""
    space = yield from namespace.space()
    found: dict[tuple[str, str], GroupLimit] = {}
    for keys in space.everywhere():
        for limit in (yield from reading(group_plans.read_limits(keys))):
            found[limit.kind, limit.group or ""] = limit
    return tuple(found[place] for place in sorted(found))


def check_groups_known(namespace: OpenNamespace, space: Namespace, partitions: Iterable[int]) -> Plan[None]:
    """Check that every live worker and coordinator of these partitions has a version that supports groups.

    Raises:
        NotConfigured: A process has an older version. When its scripts end a run, they would not give the run's place in its group
            to the next run.
    """
    now = namespace.clock.monotonic()
    for partition in set(partitions):
        if now < namespace.trusted.get(partition, 0.0):
            continue
        old = yield from reading(worker_plans.find_process_without(space.keys(partition), GROUPS))
        if old is not None:
            raise NotConfigured(describe_old_process(old))
        namespace.trusted[partition] = now + TRUSTED_SECONDS


def describe_old_process(old: str) -> str:
    """Return the error message for an enqueue with a group that is refused because a live process has an older version.

    Args:
        old: A phrase that names the process.
    """
    return (
        f"no run with a group was enqueued: {old} was started with an older version that does not support groups; "
        "restart that process with the new version"
    )


def describe_uncounted_starts(old: str) -> str:
    """Return the error message for a rate of starts that is refused because a live process has an older version.

    Args:
        old: A phrase that names the process.
    """
    return (
        f"no rate of starts was set: {old} was started with an older version that does not count starts; "
        "restart that process with the new version"
    )
