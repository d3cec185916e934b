"""Wait until the rate of an external call allows its start, and report the end of the call to the server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.clock import Clock
from coordinator.errors import BadCall, BadOption, CoordinatorError, NotConfigured, Unconfirmed, Unreachable, Unreadable
from coordinator.model.run_id import partition_for
from coordinator.store.keys import Keys, Namespace
from coordinator.store.plans import rates as rate_plans
from coordinator.store.transport.wire import AsyncWire, Plan, drive_async
from workers.attempt.waits.waiter import ServerWaiter
from workers.attempt.waits.waiting import WaitingAttempt
from workers.handlers.operations.limits import OpenCall
from workers.liveness.lease import Lease
from workers.metrics.worker_metrics import WorkerMetrics

logger = logging.getLogger(__name__)

PATIENCE = 2.0  # seconds for which a call still waits after a stop was requested that may not be raised at this point
SLICE = 1.0  # seconds after which a waiting call checks whether a stop was requested
REJOIN_PAUSE = 0.1  # seconds before a call asks again whether the worker has joined the partition of the limit
REPEAT_PAUSE = 1.0  # seconds before the end of a call is sent again


@dataclass(slots=True)
class ServerLimits:
    """The calls of a worker process that wait for a rate or are under way.

    A request belongs to the worker's lease in the partition of the limit, which may differ from the partition of the run. If the
    worker is lost, the server frees its places.

    Attributes:
        wire: The connection to the server.
        clock: The time source.
        namespace: The namespace of the worker.
        waiter: Repeats requests while the server cannot be reached.
        leases: Returns the present leases of the worker by partition.
        metrics: Measures the waits; None to measure nothing.
    """

    wire: AsyncWire
    clock: Clock
    namespace: Namespace
    waiter: ServerWaiter
    leases: Callable[[], Mapping[int, Lease]]
    metrics: WorkerMetrics | None = None
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _waiting: dict[int, OpenCall] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)  # the numbers of all requests until the server has answered their end
    _sending: set[asyncio.Task[str]] = field(default_factory=set)

    def hint(self, number: int) -> None:
        """Make the call with this number ask the server immediately, because it may get a place."""
        if (call := self._waiting.get(number)) is not None:
            call.hint.set()

    def check(self, partition: int, name: str, numbers: Sequence[int]) -> None:
        """End calls again that have ended here. The server asks because it may have lost their ends, for example in a failover.

        Args:
            partition: The partition of the limit.
            name: The name of the limit.
            numbers: The numbers of the requests that are open on the server.
        """
        lease = self.leases().get(partition)
        if lease is None or partition != self._keys(name).partition:
            return
        for number in numbers:
            if number not in self._open:
                self._open.add(number)
                task = self._send_end(OpenCall(name, 0, lease.worker, number), None)
                task.add_done_callback(lambda task: _log_lost_end(name, task))

    async def acquire(self, attempt: WaitingAttempt, call: OpenCall) -> None:
        """Wait until a call may start. If this method raises or is cancelled, the caller must call `give_back`.

        Raises:
            Stopped: If a stop was requested, and the wait would last longer than PATIENCE.
            NotConfigured: If the name has no rate.
            BadOption: If the cost is above the burst.
            Unreadable: If a key of the rate is damaged.
            Unreachable: If a stop was requested while the server could not be reached.
        """
        keys = self._keys(call.name)
        try:
            while True:
                call.hint.clear()
                found = await self._ask(attempt, call, keys)
                match found.word:
                    case "ok":
                        return
                    case "wait":
                        self._show_wait(attempt, call)
                        await self._pause(attempt, call, found.wait_ms / 1000)
                    case "old":
                        self._number_again(call)
                    case "gone":
                        # The worker can't reach the partition of the limit, or has not joined it yet.
                        call.worker = ""
                        self._show_wait(attempt, call)
                        await self._pause(attempt, call, REJOIN_PAUSE)
                    case _:
                        raise _refusal(call, found)
        finally:
            self._waiting.pop(call.number, None)
            if attempt.limited is not None:
                self._end_wait(attempt, attempt.limited.pop(call, ""))

    def _show_wait(self, attempt: WaitingAttempt, call: OpenCall) -> None:
        """Make the next heartbeat report to the server that the run waits, for status displays."""
        if attempt.limited is None:
            attempt.limited = {}
        attempt.limited.setdefault(call, f"{call.name}:{round(self.clock.now() * 1000)}")

    def _end_wait(self, attempt: WaitingAttempt, shown: str) -> None:
        """Measure a wait that has ended.

        Args:
            attempt: The attempt that waited.
            shown: The text that `_show_wait` made, with the time at which the wait began; empty if the call did not wait.
        """
        if shown and self.metrics is not None:
            began = int(shown.rpartition(":")[2]) / 1000
            self.metrics.limit_waited(attempt.handler.kind, max(0.0, self.clock.now() - began))

    async def _ask(self, attempt: WaitingAttempt, call: OpenCall, keys: Keys) -> rate_plans.Acquired:
        lease = self.leases().get(keys.partition)
        if lease is None or lease.gone:
            return rate_plans.Acquired("gone")
        if call.worker != lease.worker:
            call.worker = lease.worker
            self._number_again(call)
        request = (keys, call.worker, call.name, call.number, call.reserved)
        return await self.waiter.carry_out(attempt, lambda: rate_plans.acquire(*request))

    def _number_again(self, call: OpenCall) -> None:
        self._waiting.pop(call.number, None)
        self._open.discard(call.number)
        call.number = next(self._numbers)
        self._open.add(call.number)
        self._waiting[call.number] = call

    async def _pause(self, attempt: WaitingAttempt, call: OpenCall, seconds: float) -> None:
        """Wait for a number of seconds, or until the server hints that the call may get a place.

        A stop that may be raised here ends the wait from outside: see `WaitingAttempt.acquire`. Any other stop ends a wait that
        would last longer than PATIENCE, so that a drain does not wait for a rate.

        Raises:
            Stopped: If a stop was requested.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (left := until - loop.time()) > 0 and not call.hint.is_set():
            if attempt.stopping is not None:
                call.patience = min(call.patience, loop.time() + PATIENCE)
                if attempt.delivered or until > call.patience:
                    attempt.deliver_stop()
                    raise attempt.stopping
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, SLICE)):
                    await call.hint.wait()

    # -- the end of a call

    def finish(self, call: OpenCall, cost: int | None) -> None:
        """End a call on the server, in the background. The request is repeated until the server has answered.

        Args:
            call: The call.
            cost: The tokens that the call has cost; None for the tokens that it reserved.
        """
        if call.worker:
            self._send_end(call, cost)
        else:  # the server does not know the call
            self._open.discard(call.number)

    def _send_end(self, call: OpenCall, cost: int | None) -> asyncio.Task[str]:
        """Return the task that sends the end of a call, with the server's answer as its result."""
        keys = self._keys(call.name)
        task = self._send(
            call, lambda: rate_plans.finish(keys, call.worker, call.name, call.number, cost), tuple(call.sending)
        )
        task.add_done_callback(lambda _: self._open.discard(call.number))
        return task

    def give_back(self, call: OpenCall) -> None:
        """Free the place and the tokens that a call has reserved, because the call did not start."""
        self.finish(call, 0)

    def back_off(self, call: OpenCall, seconds: float) -> None:
        """Prevent calls of this name from starting for a number of seconds.

        The request is sent in the background, before the request that ends the call.
        """
        keys, pause = self._keys(call.name), round(seconds * 1000)
        task = self._send(call, lambda: rate_plans.back_off(keys, call.worker, call.name, call.number, pause))
        call.sending.append(task)

    async def settle(self, seconds: float) -> None:
        """Wait until the server knows the ends of all calls, or until this time has passed."""
        if self._sending:
            await asyncio.wait(set(self._sending), timeout=seconds)

    def _send(
        self, call: OpenCall, make_plan: Callable[[], Plan[str]], after: tuple[asyncio.Task[str], ...] = ()
    ) -> asyncio.Task[str]:
        task = asyncio.get_running_loop().create_task(self._repeat(call, make_plan, after))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return task

    async def _repeat(
        self, call: OpenCall, make_plan: Callable[[], Plan[str]], after: tuple[asyncio.Task[str], ...]
    ) -> str:
        """Repeat a request until the server has answered, or until the worker is gone. Return the answer, or an empty string.

        The server itself frees the places of a worker that is gone.

        Args:
            call: The call that the request is about.
            make_plan: Returns the plan of the request.
            after: The requests that must have ended before this one is sent.
        """
        if after:
            await asyncio.wait(after)

        def is_gone() -> bool:
            return all(lease.worker != call.worker or lease.gone for lease in self.leases().values())

        while True:
            try:
                return await drive_async(self.wire, make_plan(), give_up=is_gone)
            except (NotConfigured, Unconfirmed, Unreachable):
                if is_gone():
                    return ""
            except CoordinatorError as error:
                logger.warning("limit %s: the end of a call could not be stored: %s", call.name, error)
                return ""
            await self.clock.asleep(REPEAT_PAUSE)

    def _keys(self, name: str) -> Keys:
        return self.namespace.keys(partition_for(name, self.namespace.partitions))


def _log_lost_end(name: str, task: asyncio.Task[str]) -> None:
    """Log that the server had lost the end of a call. The server may also have learned of the end while it asked."""
    if not task.cancelled() and task.exception() is None and task.result() in ("ok", "left"):
        logger.info(
            "limit %s: the server had lost the end of a call, for example in a failover; it was sent again", name
        )


def _refusal(call: OpenCall, found: rate_plans.Acquired) -> CoordinatorError:
    """Return the error for an answer that ends the wait of a call."""
    match found.word:
        case "unknown":
            return NotConfigured(
                f"limit {call.name!r} has no rate, so no call may start: set one, for example with "
                f"'coordinator rate set {call.name} --rate 100/min --burst 10'"
            )
        case "large":
            return BadOption(
                f"cost {call.reserved:,} of limit {call.name!r} is above its burst of {found.burst:,}, so it could never start: "
                f"raise the burst with 'coordinator rate set {call.name} --rate … --burst …'"
            )
        case "unreadable":
            return Unreadable(rate_plans.describe_damage(call.name))
        case word:
            return BadCall(f"the server refused a call of limit {call.name!r}: {word}")
