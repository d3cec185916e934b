"""The fleet and the coordinators of a seed: simulated supervisors, with the real worker and coordinator below them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from typing import Any

from coordinator.errors import CoordinatorError
from coordinator.services.daemon import Coordinator
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from tests.faults.simulation.app import registry
from tests.faults.simulation.environment import Environment
from tests.faults.simulation.feature_app import features
from tests.faults.simulation.loop import Process, current
from workers.handlers.registry import Registry
from workers.process.options import WorkerOptions
from workers.process.worker import Worker


class Pod:
    """A supervisor with one worker process. It replaces a dead child and abandons the child's runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.supervisor = Process(f"s{name}")
        self.child = Process("")
        self.child.alive = False  # until the first worker is ready
        self.worker: Worker | None = None
        self.ids: list[tuple[int, str]] = []
        self.ended = asyncio.Event()
        self.starts = 0
        self.stopping = False

    @property
    def has_left(self) -> bool:
        """Return whether the last worker said that it left before it ended."""
        return self.worker is not None and self.worker.has_left


class Pods:
    """All pods of a seed."""

    def __init__(self, environment: Environment) -> None:
        self._environment, self._dice = environment, environment.dice
        self._registry = registry(environment.dice, environment.memory, self._poisoned, environment.complain)
        if environment.scenario.family:
            more = features(environment.dice, environment.facts, environment.watchers, environment.complain)
            self._registry = Registry.merged(self._registry, more)
        self.all: list[Pod] = []

    def start(self, name: str) -> Pod:
        pod = Pod(name)
        self._environment.go(pod.supervisor, self._supervise(pod))
        return pod

    async def _supervise(self, pod: Pod) -> None:
        while not pod.stopping:
            pod.starts += 1
            pod.child, pod.ids, pod.ended = Process(f"w{pod.name}.{pod.starts}"), [], asyncio.Event()
            self._environment.go(pod.child, self._work(pod))
            await pod.ended.wait()
            await asyncio.sleep(0.01 + self._dice.random() * 0.5)
            if not pod.has_left:
                for partition, worker in pod.ids:
                    await self.abandon(partition, worker)

    async def _work(self, pod: Pod) -> None:
        options = WorkerOptions(
            self._environment.settings(),
            concurrency=self._dice.choice([1, 2, 4]),
            grace=self._dice.choice([0.0, 0.5, 2.0]),
            lease=self._environment.scenario.lease,
        )
        announce = lambda partition, id: pod.ids.append((partition, id))  # noqa: E731  # It is a single expression.
        pod.worker = Worker(self._registry, options, self._environment.clock, announce)
        with contextlib.suppress(CoordinatorError):
            await pod.worker.run()
        self.kill_child(pod)  # The tasks of an ended process end with it.

    def _poisoned(self) -> None:
        for pod in self.all:
            if pod.child is current.get():
                self.kill_child(pod)

    def kill_child(self, pod: Pod) -> None:
        pod.child.alive = False
        self._environment.loop.call_soon(pod.ended.set, context=self._environment.loop.outside)

    def lose(self, pod: Pod) -> None:
        """Kill supervisor and worker at the same time: no process learns of it, and the lease must expire."""
        pod.child.alive = pod.supervisor.alive = False
        self.all[self.all.index(pod)] = self.start(pod.name + "x")

    def some(self) -> Pod:
        """Return a pod, mostly one that owns runs, where a fault has the largest effect."""
        busy = [pod for pod in self.all if pod.child.alive and pod.worker is not None and pod.worker.attempts]
        return self._dice.choice(busy if busy and self._dice.random() < 0.8 else self.all)

    async def abandon(self, partition: int, worker: str, whole: bool = True) -> None:
        """Abandon the runs of a worker.

        Without `whole`, the caller dies after the first run, and a coordinator must do the rest.
        """
        wire, keys = AsyncWire(self._environment.settings().address), self._environment.namespace.keys(partition)
        plan = coordinator_plans.abandon(keys, worker, batch=self._dice.choice([1, 200]) if whole else 1)
        with contextlib.suppress(CoordinatorError):
            await drive_async(wire, plan if whole else _only_first(plan), timeout=30)


def _only_first(plan: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    return (yield next(plan))


class Coordinators:
    """All coordinators of a seed."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._started = 0
        self.all: list[tuple[Process, Coordinator]] = []

    def start(self) -> None:
        process = Process(f"c{self._started}")
        self._started += 1

        async def run() -> Any:
            coordinator = Coordinator(self._environment.settings(), self._environment.clock)
            self.all.append((process, coordinator))
            while True:
                try:
                    return await coordinator.run()
                except CoordinatorError:  # It could not connect. Its supervisor starts it again.
                    await asyncio.sleep(1.0)

        self.all = [pair for pair in self.all if pair[0].alive]
        self._environment.go(process, run())

    def some(self) -> Process | None:
        return self._environment.dice.choice(self.all)[0] if self.all else None
