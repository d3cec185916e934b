"""The parent of runs that a handler enqueues: the run that the handler performs.

The worker sets `current_parent` around an attempt. Clients read it when the caller gives no parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Parent:
    """The run whose handler is executing, and the meta that it passes on to its children."""

    run: str
    meta: Mapping[str, Any]


current_parent: ContextVar[Parent | None] = ContextVar("coordinator.client.parent.current", default=None)
