"""The disturbances of processes and network during the faults of a seed."""

from __future__ import annotations

import asyncio

from tests.faults.simulation.environment import Environment
from tests.faults.simulation.loop import Process
from tests.faults.simulation.pods import Coordinators, Pods
from tests.faults.simulation.users import Users


class Disturbances:
    """One method for each of `scenario.DISTURBANCES` and `scenario.MORE_DISTURBANCES`."""

    def __init__(self, environment: Environment, pods: Pods, coordinators: Coordinators, users: Users) -> None:
        self._environment, self._dice, self._lease = environment, environment.dice, environment.scenario.lease
        self._pods, self._coordinators, self._users = pods, coordinators, users
        self._stuttering: set[str] = set()

    async def run(self) -> None:
        """Cause disturbances until the time of the faults is over."""
        environment, scenario = self._environment, self._environment.scenario
        until = environment.loop.time() + scenario.seconds
        while environment.loop.time() < until:
            await asyncio.sleep(scenario.pace * self._dice.random())
            environment.check()
            if scenario.disturbances:
                disturbance = self._dice.choice(scenario.disturbances)
                environment.trace.say(environment.loop.time(), "-", "fault", disturbance)
                environment.network_faults.counts[disturbance] += 1
                getattr(self, disturbance.replace(" ", "_"))()

    def calm(self) -> None:
        """End the faults: paused processes continue, and missing ones are started."""
        self._environment.network_faults.calm = True
        for pod in self._pods.all:
            self._environment.go_on(pod.child)
            self._environment.go_on(pod.supervisor)
        for process, _ in self._coordinators.all:
            self._environment.go_on(process)

    def crash_worker(self) -> None:
        self._pods.kill_child(self._pods.some())

    def pause_worker(self) -> None:
        pod = self._pods.some()
        processes = [pod.child] if self._dice.random() < 0.7 else [pod.child, pod.supervisor]
        for process in processes:
            self._environment.pause(process, self._lease * self._dice.choice([0.3, 1.1, 2.0, 3.0]))

    def drain_worker(self) -> None:
        pod = self._pods.some()
        if pod.worker is not None:
            pod.worker.stop()

    def lose_host(self) -> None:
        self._pods.lose(self._pods.some())

    def crash_coordinator(self) -> None:
        if (process := self._coordinators.some()) is not None:
            process.alive = False
            self._coordinators.start()

    def pause_coordinator(self) -> None:
        if (process := self._coordinators.some()) is not None:
            self._environment.pause(process, self._dice.choice([1.0, 3.0, 6.0]))

    def stutter_coordinator(self) -> None:
        """Let a coordinator run for 0.6 s in every 4 s until the seed ends, as on a host that is short of processor time."""
        if (process := self._coordinators.some()) is not None and process.name not in self._stuttering:
            self._stuttering.add(process.name)
            self._stutter(process)

    def _stutter(self, process: Process) -> None:
        if process.alive:
            self._environment.pause(process, 3.4)
            self._environment.loop.call_later(4.0, self._stutter, process, context=self._environment.loop.outside)

    def cut_off(self) -> None:
        pod = self._pods.some()
        until = self._environment.loop.time() + self._lease * self._dice.choice([0.5, 1.5, 3.0])
        self._environment.network_faults.cut_off[pod.child.name] = until

    def outage(self) -> None:
        self._start_outage(self._dice.choice([0.5, 3.0, self._lease * 1.5]))

    def two_outages(self) -> None:
        """Let the server be away twice in a row. In between, some workers can renew their leases and some can't."""
        first, gap = self._lease * self._dice.choice([0.5, 1.2]), self._dice.choice([0.1, 0.5, self._lease * 0.4])
        self._start_outage(first)
        self._environment.loop.call_later(
            first + gap,
            self._start_outage,
            self._lease * self._dice.choice([0.5, 1.2]),
            context=self._environment.loop.outside,
        )

    def _start_outage(self, seconds: float) -> None:
        self._environment.network_faults.outage_until = self._environment.loop.time() + seconds

    def crash_producer(self) -> None:
        self._users.lose_one()

    def abandon_a_live_worker(self) -> None:
        """Abandon a live worker, as if it were dead. It must not do any harm. Often it stands still meanwhile."""
        pod = self._pods.some()
        if self._dice.random() < 0.6:
            self._environment.pause(pod.child, self._dice.random() * 3)
        for partition, worker in pod.ids:
            self._environment.go(Process("sx"), self._pods.abandon(partition, worker, whole=self._dice.random() < 0.4))
