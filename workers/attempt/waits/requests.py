"""The requests to the server that an attempt makes while its handler waits. waiter.py and limits.py send them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from coordinator.model.policies.budget import Amount
from coordinator.store.plans.attempts import Collected, Condition, Received
from coordinator.store.plans.clients import NewRun
from coordinator.store.transport.drivers import Plan
from workers.attempt.base import BaseAttempt
from workers.handlers.operations.enqueues import Enqueued
from workers.handlers.operations.limits import OpenCall

if TYPE_CHECKING:
    from workers.attempt.waits.waiting import WaitingAttempt

T = TypeVar("T")


class Waiter(Protocol):
    """The requests to the server that an attempt makes for its waits, its children and its enqueues."""

    async def look(self, attempt: BaseAttempt, condition: Condition, timeout_ms: int | None) -> Received:
        """Ask the server for the next signal of a run. Wait while the server cannot be reached.

        Args:
            attempt: The attempt that waits.
            condition: The topics that the handler waits for, and the deadline if it is known already.
            timeout_ms: The time from now to the deadline, if the deadline is not known yet.
        """
        ...

    async def carry_out(self, attempt: BaseAttempt, make_plan: Callable[[], Plan[T]]) -> T:
        """Run a plan on the server. Wait while the server cannot be reached."""
        ...

    def make_child_base(self, attempt: BaseAttempt) -> str:
        """Return a new id for the first child of a step, in the partition of an attempt's run."""
        ...

    def make_id(self, attempt: BaseAttempt, key: str = "") -> str:
        """Return a new run id: in the partition of a group or an idempotency key, or of the attempt's run if `key` is empty."""
        ...

    async def enqueue(self, attempt: BaseAttempt, run: NewRun) -> Enqueued | None:
        """Enqueue a run that the attempt does not wait for. Return None if the server refuses the id because of its age."""
        ...

    async def join_children(self, attempt: BaseAttempt, base: str, count: int, old: str) -> str:
        """Announce the children of a step to the server, and return the answer word of join_children.lua.

        For the parameters see `join_children` in coordinator/store/plans/attempts.py.
        """
        ...

    async def drop_steps(self, attempt: BaseAttempt, bases: Sequence[str]) -> str:
        """Drop steps, and return the answer word of join_children.lua."""
        ...

    async def spawn(self, attempt: BaseAttempt, runs: Sequence[NewRun]) -> str:
        """Enqueue children. Return `ok`, or `stale` if the parent does not wait for these children any more."""
        ...

    async def collect(self, attempt: BaseAttempt, base: str, by: str, start: int) -> Collected:
        """Return a page of the endings of a step's children."""
        ...

    async def spend(self, attempt: BaseAttempt, amount: Amount) -> tuple[str, Amount]:
        """Store the total that an attempt has spent. See `spend` in coordinator/store/plans/attempts.py."""
        ...

    async def may_suspend(self, attempt: BaseAttempt) -> bool:
        """Return False if a live worker or coordinator runs an older version that does not know waiting runs. Log this process."""
        ...


class Limits(Protocol):
    """The requests to the server that an attempt makes for external calls. See `ServerLimits`."""

    async def acquire(self, attempt: WaitingAttempt, call: OpenCall) -> None:
        """Wait until a call may start."""

    def finish(self, call: OpenCall, cost: int | None) -> None:
        """End a call on the server, in the background. See `ServerLimits`."""

    def give_back(self, call: OpenCall) -> None:
        """Free the place and the tokens that a call has reserved, because the call did not start."""

    def back_off(self, call: OpenCall, seconds: float) -> None:
        """Prevent calls of this name from starting for a number of seconds."""
