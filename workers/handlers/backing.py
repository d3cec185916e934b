"""The protocol through which a run uses its worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from coordinator.model.run import Note
from workers.handlers.checkpoint.draft import Cut
from workers.handlers.facts import Stopped
from workers.handlers.operations.budgets import BudgetBacking
from workers.handlers.operations.children import ChildBacking
from workers.handlers.operations.effects import EffectBacking
from workers.handlers.operations.enqueues import EnqueueBacking
from workers.handlers.operations.limits import LimitBacking
from workers.handlers.operations.waits import WaitBacking


class Backing(WaitBacking, ChildBacking, EnqueueBacking, EffectBacking, BudgetBacking, LimitBacking, Protocol):
    """The object behind a run that saves its cuts and requests its stop: the attempt in a worker, or a stand-in in a test."""

    @property
    def stopping(self) -> Stopped | None:
        """The stop that was requested, or None."""
        ...

    @property
    def delivered(self) -> bool:
        """Return True if the requested stop was raised in the handler."""
        ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The worker's event loop."""
        ...

    @property
    def threads(self) -> Executor | None:
        """The threads in which plain phase functions of an async handler run."""
        ...

    def raise_stop(self, may_drain: Callable[[], bool]) -> None:
        """Raise the requested stop, unless it has been raised before. The handler's thread calls this method.

        Args:
            may_drain: Returns False where a drain must not stop the handler yet. Other stops are raised in any case.
        """
        ...

    def offer(self, cut: Cut) -> None:
        """Offer a cut to be saved, without blocking and without network errors. The handler's thread calls this method."""
        ...

    async def flush(self, cut: Cut, may_drain: Callable[[], bool]) -> None:
        """Save a cut, and return when it is saved. This coroutine runs on the worker's event loop.

        Args:
            cut: The cut.
            may_drain: As for `raise_stop`. The handler does not change the draft meanwhile.

        Raises:
            Stopped: If the cut can no longer be saved, or a stop was requested.
        """
        ...

    async def wait_until_confirmed(self, may_drain: Callable[[], bool]) -> None:
        """Wait until the worker has confirmed its lease, or until a stop was requested.

        This coroutine runs on the worker's event loop.

        Args:
            may_drain: As for `raise_stop`.

        Raises:
            Stopped: If a stop was requested.
        """
        ...

    def set_note(self, note: Note) -> None:
        """Keep a note for the next save or heartbeat."""
        ...

    def emit(self, letter: bytes, data: bytes) -> int:
        """Send an event soon, and return its number, without blocking and without network errors. Any thread may call this.

        Args:
            letter: `e` for an event, `n` for a note.
            data: The encoded value.
        """
        ...
