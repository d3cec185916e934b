"""The next fire times of a schedule, and the runs of its last ones.

The server does not store these fire times. They are computed from the rules of the schedule, and the id of each run from its fire
time.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from coordinator.client.async_client import AsyncClient
from coordinator.client.operations.open_namespace import OpenNamespace
from coordinator.errors import CoordinatorError, NotFound
from coordinator.feed.looks import look_at
from coordinator.model.policies.schedule import Rules, ScheduleView, rules_for, run_id
from coordinator.model.run_id import partition_for
from coordinator.store.plans.merge import Plan

MOST_NEXT, MOST_LAST = 5, 12
LONGEST_BACK = 90 * 86_400_000  # ms; older fire times are not shown


async def read_fires(client: AsyncClient, name: str) -> dict[str, Any]:
    """Return the next fire times of a schedule, and its last fire times with their runs, newest first.

    `run` is None for a fire time without a run: it was skipped or missed, or the retention of its run is over.

    Args:
        client: The client that reads the schedule.
        name: The name of the schedule.

    Raises:
        NotFound: There is no such schedule.
    """
    view = next((one for one in await client.schedules() if one.name == name), None)
    if view is None:
        raise NotFound(f"there is no schedule {name!r:.80}")
    rules = _rules(view)
    if rules is None:
        return {"next": [], "last": []}
    _, now = await client._do(look_at, [])
    coming = [] if view.paused else [*islice(rules.times(int(now * 1000)), MOST_NEXT)]
    until = int(now * 1000) + 1
    past = rules.newest(until - LONGEST_BACK, until, MOST_LAST)[::-1]
    partition = await client._do(_partition, name)
    ids = {time: run_id(name, time, partition) for time in past}
    looks, _ = await client._do(look_at, [*ids.values()])
    last = []
    for time, id in ids.items():
        look = looks.get(id)
        run = {"id": id, "status": str(look.status), "started": look.started, "ended": look.ended} if look else None
        last.append({"at": time / 1000, "run": run})
    return {"next": [rules.due(name, time) / 1000 for time in coming], "last": last}


def _rules(view: ScheduleView) -> Rules | None:
    """Return the rules of a schedule; None if they can't be read here."""
    try:
        return rules_for(view.when, tz=view.tz, jitter=view.jitter)
    except CoordinatorError:
        return None


def _partition(namespace: OpenNamespace, name: str) -> Plan[int]:
    space = yield from namespace.space()
    return partition_for(name, space.partitions)
