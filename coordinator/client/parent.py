"""What a run that is enqueued inside a handler takes over from the run that enqueues it.

The worker sets `current` around an attempt; clients read it where no parent is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Parent:
    """The run whose handler is at work, and its attribution."""

    run: str
    meta: Mapping[str, Any]


current: ContextVar[Parent | None] = ContextVar("coordinator.client.parent.current", default=None)
