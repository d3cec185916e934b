"""Set, pause, remove and list schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.client.operations.open_namespace import OpenNamespace, new_mark, reading
from coordinator.client.schedules import When, build_schedule, schedule_view
from coordinator.errors import BadOption, NotFound, Unreadable
from coordinator.model.enqueue import HandlerOf, Inputs
from coordinator.model.names import parse_route
from coordinator.model.policies.groups import describe_ungrouped_schedule
from coordinator.model.policies.schedule import ScheduleView
from coordinator.model.run_id import partition_for
from coordinator.store.keys import Keys, Namespace
from coordinator.store.plans import schedules as schedule_plans
from coordinator.store.plans.merge import Plan


def set_schedule(
    namespace: OpenNamespace,
    name: str,
    when: When,
    what: Inputs[Any] | HandlerOf[Any] | str,
    values: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> Plan[None]:
    """Create or replace a schedule. For the arguments and errors see `Client.schedule`."""
    new, generation = build_schedule(name, when, what, values, options), new_mark()
    space = yield from namespace.space()
    answer = yield from schedule_plans.replace(_keys_of(space, name), space.birth, new, generation)
    if answer == "mismatch":
        space = yield from namespace.recreate(space)
        answer = yield from schedule_plans.replace(_keys_of(space, name), space.birth, new, generation)
    if answer == "ungrouped":
        raise BadOption(describe_ungrouped_schedule(name, parse_route(new.route)[1]))
    if answer != "ok":
        raise Unreadable(
            f"schedule {name} was not set: a Redis key that it needs holds a value of another type; "
            "'coordinator doctor' finds it"
        )


def pause_schedule(namespace: OpenNamespace, name: str, paused: bool) -> Plan[None]:
    """Pause a schedule, or unpause it.

    Raises:
        NotFound: There is no schedule of this name.
    """
    space = yield from namespace.space()
    if (yield from schedule_plans.pause(_keys_of(space, name), name, new_mark(), paused=paused)) != "ok":
        raise _no_schedule(name)


def unschedule(namespace: OpenNamespace, name: str) -> Plan[None]:
    """Remove a schedule.

    Raises:
        NotFound: There is no schedule of this name.
    """
    space = yield from namespace.space()
    if (yield from schedule_plans.remove(_keys_of(space, name), name, new_mark())) != "ok":
        raise _no_schedule(name)


def list_schedules(namespace: OpenNamespace) -> Plan[list[ScheduleView]]:
    """Return all schedules, sorted by name."""
    space = yield from namespace.space()
    found: list[ScheduleView] = []
    for keys in space.everywhere():
        rows = yield from reading(schedule_plans.list_schedules(keys))
        found += [schedule_view(name, fields) for name, fields in rows]
    return sorted(found, key=lambda view: view.name)


def _keys_of(space: Namespace, schedule: str) -> Keys:
    """Return the keys of a schedule's partition, which is computed from its name. The schedule's runs are in the same partition."""
    return space.keys(partition_for(schedule, space.partitions))


def _no_schedule(name: str) -> NotFound:
    return NotFound(f"there is no schedule {name}: 'coordinator schedule list' shows all schedules")
