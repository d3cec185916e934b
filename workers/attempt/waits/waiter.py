"""Send requests to the server for attempts that wait, run children or enqueue runs."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from coordinator.client.operations.enqueue import read_answer
from coordinator.client.operations.groups import describe_old_process
from coordinator.clock import Clock
from coordinator.errors import CoordinatorError, NotConfigured, Refused, TreeCancelled, Unconfirmed, Unreachable
from coordinator.model.features import GROUPS, WAITS
from coordinator.model.policies.budget import Amount
from coordinator.model.run_id import RunIds, child_base, partition_for, partition_of
from coordinator.store.keys import Namespace
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.plans.attempts import Collected, Condition, Received
from coordinator.store.plans.clients import NewRun
from coordinator.store.transport.wire import AsyncWire, Plan, drive_async
from workers.attempt.base import BaseAttempt
from workers.handlers.operations.enqueues import Enqueued

logger = logging.getLogger(__name__)

T = TypeVar("T")

REFUSED_PAUSE = 1.0  # seconds before a request is sent again to a server that refused it
TRUSTED_SECONDS = 10.0  # seconds after a check for which all processes of a partition are assumed to know waiting runs


@dataclass(slots=True)
class ServerWaiter:
    """Send the requests of attempts for their waits, children and enqueues, and check whether runs may be suspended.

    Attributes:
        wire: The connection to the server.
        clock: The time source.
        namespace: The namespace of the worker.
    """

    wire: AsyncWire
    clock: Clock
    namespace: Namespace
    _ids: RunIds = field(default_factory=RunIds)
    _orders: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # of calls of join_children.lua
    _skew: float = 0.0  # seconds that are added to the clock for new ids, after the server refused an id
    # by feature and partition: until when the processes of the partition need no check
    _trusted: dict[tuple[str, int], float] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)

    async def look(self, attempt: BaseAttempt, condition: Condition, timeout_ms: int | None) -> Received:
        """Ask the server for the next signal of a run. Wait while the server cannot be reached."""
        owner = (attempt.lease.keys, attempt.id, attempt.token)
        return await self.carry_out(attempt, lambda: attempt_plans.receive(*owner, condition, timeout_ms=timeout_ms))

    def make_child_base(self, attempt: BaseAttempt) -> str:
        """Return a new id for the first child of a step, in the partition of an attempt's run."""
        return child_base(self.clock.now(), attempt.lease.keys.partition)

    async def carry_out(self, attempt: BaseAttempt, make_plan: Callable[[], Plan[T]]) -> T:
        """Run a plan on the server. Wait while the server cannot be reached, or refuses the rights or the password of the worker.

        While passwords are rotated or ACL rules are loaded, a right may be missing for a moment. A wait must not fail then.

        Raises:
            Unreachable: If a stop was requested meanwhile.
        """

        def give_up() -> bool:
            return attempt.stopping is not None

        while True:
            try:
                return await drive_async(self.wire, make_plan(), give_up=give_up)
            except NotConfigured as error:
                if give_up():
                    raise Unreachable(str(error)) from error
                await self.clock.asleep(REFUSED_PAUSE)

    def make_id(self, attempt: BaseAttempt, key: str = "") -> str:
        """Return a new run id: in the partition of a group or an idempotency key, or of the attempt's run if `key` is empty."""
        partition = partition_for(key, self.namespace.partitions) if key else attempt.lease.keys.partition
        return self._ids.make(self.clock.now() + self._skew, partition)

    async def enqueue(self, attempt: BaseAttempt, run: NewRun) -> Enqueued | None:
        """Enqueue a run that the attempt does not wait for.

        Returns:
            The enqueued run; None if the server refuses the id because of its age. From then on new ids follow the server's
            clock.

        Raises:
            CoordinatorError: If the run was not enqueued, for example TreeCancelled or KeyConflict.
        """
        await self._check_groups([run])
        (answer,) = await self._send(attempt, [run])
        if answer[0] == "untimely":
            self._skew = int(answer[1]) / 1000 - self.clock.now()
            self._ids = RunIds()  # the old RunIds never makes an id with an earlier time
            logger.warning(
                "run %s did not enqueue run %s: its id is too old or too new; the handler enqueues a run with a new id",
                attempt.id, run.id, extra={"run": attempt.id},
            )  # fmt: skip
            return None
        return Enqueued(*read_answer(run, answer))

    async def join_children(self, attempt: BaseAttempt, base: str, count: int, old: str) -> str:
        """Announce the children of a step to the server, and return the answer word of join_children.lua."""
        owner = (attempt.lease.keys, attempt.id, attempt.token)

        def announce(order: int) -> Plan[tuple[str, int]]:
            return attempt_plans.join_children(*owner, order=order, base=base, count=count, old=old)

        return (await self._call_in_order(attempt, announce, lambda answer: answer[0] == "late"))[0]

    async def drop_steps(self, attempt: BaseAttempt, bases: Sequence[str]) -> str:
        """Drop steps, and return the answer word of join_children.lua."""
        owner = (attempt.lease.keys, attempt.id, attempt.token)

        def leave(order: int) -> Plan[str]:
            return attempt_plans.drop_steps(*owner, bases, order=order)

        return await self._call_in_order(attempt, leave, lambda answer: answer == "late")

    async def _call_in_order(
        self, attempt: BaseAttempt, make_plan: Callable[[int], Plan[T]], is_late: Callable[[T], bool]
    ) -> T:
        """Run a plan with a number that is higher than the numbers of earlier calls.

        The server refuses a call that arrives after a later one, because its caller may have given it up. A caller that still
        waits for the answer, beside another task of the handler, calls again with a new number.
        """
        while True:
            order = next(self._orders)
            answer = await self.carry_out(attempt, lambda: make_plan(order))  # noqa: B023
            if not is_late(answer):
                return answer

    async def spawn(self, attempt: BaseAttempt, runs: Sequence[NewRun]) -> str:
        """Enqueue children. A call that is repeated after an outage creates no child twice.

        Returns:
            `ok` if every child exists; otherwise the first answer word of enqueue.lua that is not `created`.

        Raises:
            TreeCancelled: If the parent was cancelled together with its tree.
            Refused: If a child has a group and the namespace has several partitions, or if its kind needs a group.
        """
        if self.namespace.partitions > 1 and any(run.group for run in runs):
            raise Refused(
                "children that a run waits for can't have a group in a namespace with several partitions, because they live in "
                "the partition of their parent: enqueue them with run.enqueue, which does not wait"
            )
        await self._check_groups(runs)
        for run, (answer, other) in zip(runs, await self._send(attempt, runs), strict=True):
            if answer == "blocked":
                raise TreeCancelled(f"run {other} was cancelled with all runs below it", parent=other)
            if answer == "ungrouped":
                read_answer(run, (answer, other))
            if answer != "created":
                return str(answer)
        return "ok"

    async def _check_groups(self, runs: Sequence[NewRun]) -> None:
        """Check that every process in the partitions of runs with groups supports groups.

        Raises:
            NotConfigured: If a process runs an older version.
        """
        for partition in {partition_of(run.id, self.namespace.partitions) for run in runs if run.group}:
            keys, now = self.namespace.keys(partition), self.clock.monotonic()
            if now < self._trusted.get((GROUPS, partition), 0.0):
                continue
            if (old := await drive_async(self.wire, worker_plans.find_process_without(keys, GROUPS))) is not None:
                raise NotConfigured(describe_old_process(old))
            self._trusted[GROUPS, partition] = now + TRUSTED_SECONDS

    async def _send(self, attempt: BaseAttempt, runs: Sequence[NewRun]) -> list[Any]:
        """Send runs until the server has answered for each of them, and return its answers."""
        while True:
            plan = client_plans.enqueue(self.namespace, runs)
            answers = await drive_async(self.wire, plan, give_up=lambda: attempt.stopping is not None)
            errors = [answer for answer in answers if isinstance(answer, Exception)]
            if not errors:
                return answers
            if not isinstance(errors[0], (Unconfirmed, Unreachable)) or attempt.stopping is not None:
                raise errors[0]

    async def collect(self, attempt: BaseAttempt, base: str, by: str, start: int) -> Collected:
        """Return a page of the endings of a step's children."""
        owner = (attempt.lease.keys, attempt.id, attempt.token)
        return await self.carry_out(attempt, lambda: attempt_plans.collect(*owner, base=base, by=by, start=start))

    async def spend(self, attempt: BaseAttempt, amount: Amount) -> tuple[str, Amount]:
        """Store the total that an attempt has spent. A request that is repeated after an outage counts once.

        Returns:
            The answer word of spend.lua, and the amount that earlier attempts and the children of the run have spent.
        """
        owner = (attempt.lease.keys, attempt.id, attempt.token)
        return await self.carry_out(attempt, lambda: attempt_plans.spend(*owner, amount))

    async def may_suspend(self, attempt: BaseAttempt) -> bool:
        """Return False if a live process runs an older version without waiting runs, or if the server cannot be asked now.

        The handler then continues to linger, and the attempt asks again. Each old process is logged once.
        """
        keys, now = attempt.lease.keys, self.clock.monotonic()
        if now < self._trusted.get((WAITS, keys.partition), 0.0):
            return True
        try:
            old = await drive_async(self.wire, worker_plans.find_process_without(keys, WAITS), give_up=lambda: True)
        except CoordinatorError:
            return False
        if old is None:
            self._trusted[WAITS, keys.partition] = now + TRUSTED_SECONDS
            return True
        if old not in self._warned:
            self._warned.add(old)
            logger.warning(
                "run %s waits and keeps its slot, because %s was started with an older version that does not know waiting runs: "
                "restart that process with the new version", attempt.id, old,
            )  # fmt: skip
        return False
