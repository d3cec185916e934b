"""What must hold after the faults: all runs end, all workers leave, the structure is sound, and finally no key is left."""

from __future__ import annotations

import asyncio

from coordinator.doctor.examiner import examine
from coordinator.encoding.codec import decode
from coordinator.model.run import ENDED, Status
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import schedules as schedule_plans
from tests.faults.simulation.environment import Environment
from tests.faults.simulation.laws.step import Broken
from tests.faults.simulation.pods import Coordinators, Pods
from tests.faults.simulation.users import Users

PATIENCE = 1200.0  # virtual seconds after the faults within which all runs must end
RETENTION_MS = 16 * 86400 * 1000
KEPT = ("namespace", "watch", "coordinators", "limits", "rates")


class FinalChecks:
    """The checks at the end of a seed. Each method raises Broken."""

    def __init__(self, environment: Environment, pods: Pods, coordinators: Coordinators, users: Users) -> None:
        self._environment, self._pods, self._coordinators, self._users = environment, pods, coordinators, users

    async def all_end(self) -> None:
        environment = self._environment
        until, calm_since = environment.loop.time() + PATIENCE, environment.server_side.now_ms
        while self._open() or self._something_is_on_its_way():
            environment.check()
            if environment.loop.time() > until:
                raise Broken(f"runs {[(id, environment.watchers.now(id)) for id in self._open()]} did not end")
            environment.watchers.check_wake_ups(environment.server_side.now_ms, calm_since)
            await asyncio.sleep(0.5)
        environment.check()
        environment.watchers.check_totals()
        await self._all_readers_end()
        for id, turns in self._users.acknowledged.items():
            self._ended_well(id, turns)

    async def _all_readers_end(self) -> None:
        """Wait for the readers: each must learn that its run has ended. A reader that missed the end asks after a minute."""
        if self._users.readers:
            _, waiting = await asyncio.wait(self._users.readers, timeout=PATIENCE)
            self._environment.check()
            if waiting:
                raise Broken(f"{len(waiting)} readers still read {PATIENCE} s after all runs have ended")

    def _open(self) -> list[str]:
        """Return the runs that have not ended, including those whose producer died before the reply."""
        watchers = self._environment.watchers
        for id in self._users.acknowledged:
            if watchers.now(id) is None and not watchers.has_ended(id):
                raise Broken(f"run {id} was acknowledged but is lost")
        return [id for id, seen in watchers.all() if seen is not None and seen.status not in ENDED]

    def _something_is_on_its_way(self) -> bool:
        """Return whether a producer is not done, or a late call of a dead one may still revive a run."""
        return self._users.busy or self._environment.loop.time() < self._environment.network_faults.last_arrival

    def _ended_well(self, id: str, turns: int) -> None:
        seen = self._environment.watchers.now(id)
        if seen is not None and seen.status is Status.COMPLETED:
            if id in self._users.poison:
                raise Broken(f"run {id} kills every process but has completed")
            if seen.result and decode(seen.result, "result") != turns:
                raise Broken(f"run {id} has the result {seen.result!r} instead of {turns}")

    async def all_leave(self) -> None:
        """Let all workers leave. Those that cannot are swept, and then no worker is left."""
        environment, asked, quiet = self._environment, set[int](), 0
        until = environment.loop.time() + PATIENCE
        while quiet < 2:  # A join that was on its way when its process died is swept too, and so is a late one.
            environment.check()
            here = self._workers_left() or environment.loop.time() < environment.network_faults.last_arrival
            quiet = 0 if here else quiet + 1
            for pod in self._pods.all:
                pod.stopping = True
                if pod.worker is not None and id(pod.worker) not in asked:
                    asked.add(id(pod.worker))
                    pod.worker.stop()
            if environment.loop.time() > until:
                raise Broken(f"workers {self._workers_left()} have not left")
            await asyncio.sleep(0.3)
        for _, coordinator in self._coordinators.all:
            coordinator.stop()
        await asyncio.sleep(0.5)
        environment.check()

    def _workers_left(self) -> list[str]:
        here = [pod.child.name for pod in self._pods.all if pod.child.alive and not pod.ended.is_set()]
        if here:  # The server need not be asked.
            return here
        asked = [[b"ZRANGE", keys.workers().encode(), b"0", b"-1"] for keys in self._environment.namespace.everywhere()]
        return [entry.decode() for entries in self._environment.server_side.server.ask(asked) for entry in entries]

    def structure(self) -> None:
        for keys in self._environment.namespace.everywhere():
            self._environment.ask(coordinator_plans.ring(keys))
        report = self._environment.ask(examine(self._environment.namespace))
        if found := [str(finding) for finding in report.findings]:
            raise Broken(f"the structure is inconsistent: {found}")

    def nothing_is_left(self) -> None:
        """After the retention, no key of a run, a worker, a waiting client or a lock is left."""
        self._environment.loop.leap(RETENTION_MS / 1000)
        left: set[str] = set()
        for keys in self._environment.namespace.everywhere():
            # The last coordinator may have been stopped before it repeated a lost request.
            self._environment.ask(coordinator_plans.due(keys))
            self._environment.ask(coordinator_plans.trim(keys))
            self._environment.ask(coordinator_plans.ring(keys))
            self._environment.ask(coordinator_plans.trim_children(self._environment.namespace, keys, most=1000))
            self._environment.ask(
                schedule_plans.upcoming(keys, batch=10)
            )  # The mark of a removed schedule is gone by then.
            found = self._environment.server_side.server.ask([[b"KEYS", keys.at.encode() + b":*"]])[0]
            left |= {key.decode().removeprefix(keys.at + ":") for key in found}
        if more := sorted(left - set(KEPT)):
            raise Broken(f"after the retention these keys are left: {more}")
