"""The parent of a run that a handler enqueues: the run that the handler is executing.

The worker sets `current_parent` around an attempt. Clients read it when the caller gives no parent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger(__name__)

MOST_REMEMBERED = 10_000  # children of one attempt whose ids are remembered for the warning


@dataclass(slots=True)
class ChildWatch:
    """The runs that one attempt has enqueued, and whether a warning about waiting for them was logged."""

    ids: set[str] = field(default_factory=set)
    warned: bool = False


@dataclass(frozen=True, slots=True)
class Parent:
    """The run whose handler is executing, and the meta that it passes on to its children."""

    run: str
    meta: Mapping[str, Any]
    watch: ChildWatch = field(default_factory=ChildWatch, compare=False, repr=False)


current_parent: ContextVar[Parent | None] = ContextVar("coordinator.client.parent.current", default=None)


def remember_child(id: str) -> None:
    """Remember a run that the current attempt has enqueued, so that `warn_of_waiting` knows it. Outside a handler, do nothing."""
    parent = current_parent.get()
    if parent is not None and len(parent.watch.ids) < MOST_REMEMBERED:
        parent.watch.ids.add(id)


def warn_of_waiting(ids: Iterable[str]) -> None:
    """Log a warning if a handler waits for a run that it has enqueued. At most one warning is logged for each attempt.

    Args:
        ids: The runs that the caller waits for.
    """
    parent = current_parent.get()
    if parent is None or parent.watch.warned or not parent.watch.ids:
        return
    for id in ids:
        if id in parent.watch.ids:
            parent.watch.warned = True
            logger.warning(
                "run %s holds its slot while it waits for its child %s: if such parents take all slots, no child can start; "
                "use run.gather or run.as_completed, which hold no slot", parent.run, id, extra={"run": parent.run},
            )  # fmt: skip
            return
