"""What is done to processes and to the network while a seed has faults."""

from __future__ import annotations

import asyncio

from tests.faults.simulation.ground import Ground
from tests.faults.simulation.loop import Process
from tests.faults.simulation.people import People
from tests.faults.simulation.pods import Coordinators, Pods


class Deeds:
    """One method for each of `scene.DEEDS`."""

    def __init__(self, ground: Ground, pods: Pods, coordinators: Coordinators, people: People) -> None:
        self._ground, self._dice, self._lease = ground, ground.dice, ground.scene.lease
        self._pods, self._coordinators, self._people = pods, coordinators, people

    async def run(self) -> None:
        """Until the time of the faults is over."""
        ground, scene = self._ground, self._ground.scene
        until = ground.loop.time() + scene.seconds
        while ground.loop.time() < until:
            await asyncio.sleep(scene.pace * self._dice.random())
            ground.check()
            if scene.deeds:
                deed = self._dice.choice(scene.deeds)
                ground.trace.say(ground.loop.time(), "-", "fault", deed)
                ground.weather.counts[deed] += 1
                getattr(self, deed.replace(" ", "_"))()

    def calm(self) -> None:
        """The faults are over; who stood still goes on, and nobody is missing."""
        self._ground.weather.calm = True
        for pod in self._pods.all:
            self._ground.go_on(pod.child)
            self._ground.go_on(pod.supervisor)
        for process, _ in self._coordinators.all:
            self._ground.go_on(process)

    def crash_worker(self) -> None:
        self._pods.kill_child(self._pods.some())

    def pause_worker(self) -> None:
        pod = self._pods.some()
        processes = [pod.child] if self._dice.random() < 0.7 else [pod.child, pod.supervisor]
        for process in processes:
            self._ground.pause(process, self._lease * self._dice.choice([0.3, 1.1, 2.0, 3.0]))

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
            self._ground.pause(process, self._dice.choice([1.0, 3.0, 6.0]))

    def cut_off(self) -> None:
        pod = self._pods.some()
        until = self._ground.loop.time() + self._lease * self._dice.choice([0.5, 1.5, 3.0])
        self._ground.weather.cut_off[pod.child.name] = until

    def outage(self) -> None:
        seconds = self._dice.choice([0.5, 3.0, self._lease * 1.5])
        self._ground.weather.outage_until = self._ground.loop.time() + seconds

    def crash_producer(self) -> None:
        self._people.lose_one()

    def give_up_the_living(self) -> None:
        """Somebody takes a worker for dead that is not: it may do harm to nobody. Often it stands still meanwhile."""
        pod = self._pods.some()
        if self._dice.random() < 0.6:
            self._ground.pause(pod.child, self._dice.random() * 3)
        for partition, worker in pod.ids:
            self._ground.go(Process("sx"), self._pods.abandon(partition, worker, whole=self._dice.random() < 0.4))
