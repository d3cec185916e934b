"""The environment of a seed: its random numbers, clock, network, server and watchers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import coordinator.tracing  # noqa: F401  # Its import draws random numbers, so it must not happen inside a seed.
from coordinator.config import Settings
from coordinator.model.address import address
from coordinator.model.run_id import partition_for
from coordinator.store import server_checks as checks
from coordinator.store.keys import Namespace
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans import rates as rate_plans
from coordinator.store.script import Call, Command
from coordinator.store.transport.packets import Packet
from tests.faults.simulation.app import Memory
from tests.faults.simulation.facts import BURST, CALLS_AT_ONCE, PER, RATE, Facts
from tests.faults.simulation.loop import Process, VirtualClock, VirtualLoop
from tests.faults.simulation.network import Bell, Line, NetworkFaults
from tests.faults.simulation.scenario import Scenario
from tests.faults.simulation.server import RealServer
from tests.faults.simulation.server_side import ServerSide, Trace
from tests.faults.simulation.watcher import Watchers
from workers.liveness.heartbeat import BeatResult, Heartbeat

URL, NAMESPACE = "redis://simulated:6379/0", "sim"


# Pure, and the same for every process of every seed, so it is computed once.
address_once, lines_once = functools.cache(address), functools.cache(checks._lines)


async def nothing_blocks(self: Any) -> None:
    """Replace the watchdog thread. A simulation has no threads, and its loop always moves."""
    await asyncio.get_running_loop().create_future()


class InLoop(Heartbeat):
    """The real heartbeat, as a task of the simulated process, because a simulation has no threads."""

    def start(self, report: Callable[[BeatResult], None]) -> None:
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._loop.create_task(self._main())

    def stop(self) -> None:
        assert self._loop is not None
        self._loop.call_soon(self._stopped.set)


class Environment:
    """What the processes of one seed share. `go` starts something in one of them."""

    def __init__(self, seed: int, server: RealServer) -> None:
        self.seed, self.dice = seed, random.Random(seed)
        self.scenario = Scenario.drawn(self.dice)
        self.namespace = Namespace(NAMESPACE, self.scenario.partitions)
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.network_faults = NetworkFaults(self.dice, self.scenario.chances, self.scenario.focus, self.scenario.latest)
        self.trace, self.memory, self.facts = Trace(), Memory(), Facts()
        tags = [keys.at for keys in self.namespace.everywhere()]
        self.watchers = Watchers(tags, self.memory.restarted, self.facts)
        self.server_side = ServerSide(server, self.loop, self.network_faults, self.watchers, self.trace)
        self._broken: Exception | None = None

    # -- what went wrong

    def complain(self, broken: Exception) -> None:
        """Keep the first complaint, and end the trace with it."""
        self._broken = self._broken or broken
        self.trace.closed = True

    def escaped(self, loop: Any, context: dict[str, Any]) -> None:
        """Keep an error that a callback raised, such as a watcher's. A normal loop would only log it."""
        error = context.get("exception")
        if isinstance(error, (AssertionError, TypeError, AttributeError, LookupError, ValueError)):
            self.complain(error)

    def check(self) -> None:
        if self._broken is not None:
            raise self._broken

    # -- processes

    def go(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        async def guarded() -> Any:
            try:
                return await work
            except (AssertionError, TypeError, AttributeError, LookupError) as error:
                self.complain(error)
                raise

        return self.loop.start(process, guarded())

    def settings(self) -> Settings:
        return Settings(URL, NAMESPACE, timeout=self.dice.choice([5.0, 30.0]))

    def pause(self, process: Process, seconds: float) -> None:
        if process.alive and not process.paused:
            process.paused = True
            self.loop.call_later(seconds, self.go_on, process, context=self.loop.outside)

    def go_on(self, process: Process) -> None:
        if process.alive and process.paused:
            self.loop.resume(process)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Replace network, time and randomness by the simulated ones."""
        bell = lambda address: Bell(self.server_side)  # noqa: E731  # It replaces a class.
        state = random.getstate()
        random.seed(self.seed)
        with contextlib.ExitStack() as stack:
            for target, name, value in (
                (
                    "coordinator.store.transport.async_wire",
                    "make_async_pool",
                    lambda address, node: Line(self.server_side),
                ),
                ("workers.process.claiming.claimer", "AsyncBell", bell),
                ("coordinator.services.daemon", "AsyncBell", bell),
                ("coordinator.client.waiting.hints", "AsyncBell", bell),
                ("coordinator.client.output.async_feed", "AsyncBell", bell),
                (
                    "coordinator.services.daemon",
                    "version",
                    lambda package: "simulated",
                ),  # It would be read from a file for each worker.
                ("workers.process.worker", "Heartbeat", InLoop),
                ("workers.liveness.loop_watchdog", "LoopWatchdog.watch", nothing_blocks),
                ("coordinator.config", "address", address_once),
                ("coordinator.store.server_checks", "_lines", lines_once),
                ("workers.liveness.heartbeat", "resident_bytes", lambda: 0),
                ("tenacity", "time", SimpleNamespace(monotonic=self.loop.time)),
                ("os", "urandom", self.dice.randbytes),
                ("os", "getpid", lambda: 1),
                ("socket", "gethostname", lambda: "host"),
            ):
                stack.enter_context(mock.patch(f"{target}.{name}", value))
            logging.disable(logging.CRITICAL)
            try:
                yield
            finally:
                logging.disable(logging.NOTSET)
                random.setstate(state)

    # -- directly to the server, outside of any process

    def found(self) -> None:
        birth = "simulated"
        self.ask(namespace_plans.create(NAMESPACE, birth=birth, durability="none", partitions=self.scenario.partitions))
        if self.scenario.family == "rates":
            keys = self.namespace.keys(partition_for("api", self.scenario.partitions))
            self.ask(rate_plans.set_rate(keys, "api", f"{RATE} {PER} {BURST} {CALLS_AT_ONCE}", "first"))

    def ask(self, plan: Any) -> Any:
        """Execute a plan."""
        try:
            yielded = next(plan)
            while True:
                requests = yielded if isinstance(yielded, list) else [yielded]
                replies = [self._request(request) for request in requests]
                yielded = plan.send(replies if isinstance(yielded, list) else replies[0])
        except StopIteration as done:
            return done.value

    def _request(self, request: Call | Command) -> Any:
        words = Packet(request, [0], list(request.items) if isinstance(request, Call) else []).command(
            bare=False, whole=False
        )
        command = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        if command[0] == b"EVALSHA":
            self.server_side.know(command[1])
        (reply,) = self.server_side.execute(None, [command])
        return reply
