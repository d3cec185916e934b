"""List runs and workers, read the overview of a namespace, and pause queues and kinds."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.client.operations.open_namespace import OpenNamespace, new_mark, reading
from coordinator.client.reading import overview
from coordinator.client.reading.listing import Listing
from coordinator.client.reading.pages import Cursor, Page, Pager
from coordinator.client.reading.scan import Walk
from coordinator.errors import BadOption
from coordinator.model.names import name
from coordinator.model.run import RunView, Status
from coordinator.store.keys import Keys
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans.merge import Plan
from coordinator.views.namespace_view import Overview, WorkerView


def list_runs(
    namespace: OpenNamespace, status: Status | str | None, kind: str | None, queue: str | None, limit: int
) -> Plan[list[RunView]]:
    """Return the views of at most `limit` runs with this status, kind and queue. None matches every value."""
    listing = Listing.of(status, kind, queue, limit)
    space = yield from namespace.space()
    return (yield from reading(listing.views(space)))


def list_page(
    namespace: OpenNamespace, filters: Listing, takes: Callable[[RunView], bool], cursor: Cursor | None
) -> Plan[Page]:
    """Return a page of runs.

    Args:
        namespace: The namespace of the runs.
        filters: The status, the kind and the queue of the runs, and the size of the page.
        takes: Returns True if a run belongs on the page.
        cursor: The cursor of the page before; None for the first page.

    Raises:
        BadOption: The cursor belongs to another status.
    """
    space = yield from namespace.space()
    return (yield from reading(Pager(filters, takes).page(space, cursor)))


def list_ids(namespace: OpenNamespace, walk: Walk) -> Plan[list[str]]:
    """Return the ids of all runs that a walk finds."""
    space = yield from namespace.space()
    return (yield from reading(walk.ids(space)))


def list_workers(namespace: OpenNamespace) -> Plan[list[WorkerView]]:
    """Return the live workers, and lost workers whose runs have not been recovered yet."""
    space = yield from namespace.space()
    return (yield from reading(overview.workers(space)))


def count(namespace: OpenNamespace) -> Plan[Overview]:
    """Return an overview of the namespace: the counts of runs, the queues, the workers and the coordinators."""
    space = yield from namespace.space()
    return (yield from reading(overview.read_overview(space)))


def pause(namespace: OpenNamespace, queue: str | None, kind: str | None) -> Plan[bool]:
    """Make workers stop claiming runs of a queue or a kind. Return False if it was already paused in every partition."""
    return (yield from _in_every_partition(namespace, client_plans.pause, _paused_name(queue, kind)))


def unpause(namespace: OpenNamespace, queue: str | None, kind: str | None) -> Plan[bool]:
    """Let workers claim runs of a queue or a kind again. Return False if it was not paused in any partition."""
    return (yield from _in_every_partition(namespace, client_plans.unpause, _paused_name(queue, kind)))


def _in_every_partition(
    namespace: OpenNamespace, plan: Callable[[Keys, str, str], Plan[bool]], paused: str
) -> Plan[bool]:
    space, operation = (yield from namespace.space()), new_mark()
    changed = False
    for keys in space.everywhere():
        changed |= yield from plan(keys, paused, operation)
    return changed


def _paused_name(queue: str | None, kind: str | None) -> str:
    """Return the name under which the server stores a paused queue or kind (see claim.lua).

    Raises:
        BadOption: Neither a queue nor a kind is given, or both are.
    """
    if (queue is None) == (kind is None):
        raise BadOption("name what to pause or unpause: a queue or a kind, and not both")
    return f"queue:{name(queue, 'queue')}" if queue is not None else f"kind:{name(str(kind), 'kind')}"
