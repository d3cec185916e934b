"""What must hold when the faults are over: all ends, everybody leaves, the structure is whole, and in the end nothing is left."""

from __future__ import annotations

import asyncio

from coordinator.doctor import examiner as doctor
from coordinator.encoding.codec import decode
from coordinator.model.run import ENDED, Status
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import schedules as schedule_plans
from tests.faults.simulation.ground import Ground
from tests.faults.simulation.people import People
from tests.faults.simulation.pods import Coordinators, Pods
from tests.faults.simulation.watcher import Broken

PATIENCE = 1200.0  # virtual seconds in which all must end once the faults are over
RETENTION_MS = 16 * 86400 * 1000
KEPT = ("namespace", "watch", "coordinators")


class Proof:
    """The end of a seed; each method raises Broken."""

    def __init__(self, ground: Ground, pods: Pods, coordinators: Coordinators, people: People) -> None:
        self._ground, self._pods, self._coordinators, self._people = ground, pods, coordinators, people

    async def all_end(self) -> None:
        ground = self._ground
        until = ground.loop.time() + PATIENCE
        while self._open() or self._something_is_on_its_way():
            ground.check()
            if ground.loop.time() > until:
                raise Broken(f"runs {[(id, ground.watchers.now(id)) for id in self._open()]} did not end")
            await asyncio.sleep(0.5)
        ground.check()
        for id, turns in self._people.acknowledged.items():
            self._ended_well(id, turns)

    def _open(self) -> list[str]:
        """What has not ended: also what a producer did not live to hear of."""
        watchers = self._ground.watchers
        for id in self._people.acknowledged:
            if watchers.now(id) is None and not watchers.has_ended(id):
                raise Broken(f"run {id} was acknowledged, and is lost")
        return [id for id, seen in watchers.all() if seen is not None and seen.status not in ENDED]

    def _something_is_on_its_way(self) -> bool:
        """A producer that is not done, or a late call of one that is gone: it may still revive a run."""
        return self._people.busy or self._ground.loop.time() < self._ground.weather.last_arrival

    def _ended_well(self, id: str, turns: int) -> None:
        seen = self._ground.watchers.now(id)
        if seen is not None and seen.status is Status.COMPLETED:
            if id in self._people.poison:
                raise Broken(f"run {id} kills every process, and has completed")
            if seen.result and decode(seen.result, "result") != turns:
                raise Broken(f"run {id} has the result {seen.result!r}, and not {turns}")

    async def all_leave(self) -> None:
        """Workers leave, and those that could not are swept; then nobody is left."""
        ground, asked, quiet = self._ground, set[int](), 0
        until = ground.loop.time() + PATIENCE
        while quiet < 2:  # a join that was on its way when its process ended is swept, too, and a late one
            ground.check()
            here = self._workers_left() or ground.loop.time() < ground.weather.last_arrival
            quiet = 0 if here else quiet + 1
            for pod in self._pods.all:
                pod.stopping = True
                if pod.worker is not None and id(pod.worker) not in asked:
                    asked.add(id(pod.worker))
                    pod.worker.stop()
            if ground.loop.time() > until:
                raise Broken(f"workers {self._workers_left()} are still there")
            await asyncio.sleep(0.3)
        for _, coordinator in self._coordinators.all:
            coordinator.stop()
        await asyncio.sleep(0.5)
        ground.check()

    def _workers_left(self) -> list[str]:
        here = [pod.child.name for pod in self._pods.all if pod.child.alive and not pod.ended.is_set()]
        if here:  # the server need not be asked
            return here
        asked = [[b"ZRANGE", keys.workers().encode(), b"0", b"-1"] for keys in self._ground.namespace.everywhere()]
        return [entry.decode() for entries in self._ground.site.server.ask(asked) for entry in entries]

    def structure(self) -> None:
        for keys in self._ground.namespace.everywhere():
            self._ground.ask(coordinator_plans.ring(keys))
        report = self._ground.ask(doctor.examine(self._ground.namespace))
        if not report.healthy:
            raise Broken(f"the structure is broken: {[str(finding) for finding in report.findings]}")

    def nothing_is_left(self) -> None:
        """After the retention an ended run leaves not one byte; nor does a worker, a waiter or a lock."""
        self._ground.loop.leap(RETENTION_MS / 1000)
        left: set[str] = set()
        for keys in self._ground.namespace.everywhere():
            self._ground.ask(coordinator_plans.trim(keys))
            self._ground.ask(coordinator_plans.ring(keys))
            self._ground.ask(schedule_plans.upcoming(keys, batch=10))  # a schedule that was removed is forgotten then
            found = self._ground.site.server.ask([[b"KEYS", keys.at.encode() + b":*"]])[0]
            left |= {key.decode().removeprefix(keys.at + ":") for key in found}
        if more := sorted(left - set(KEPT)):
            raise Broken(f"after the retention there is still {more}")
