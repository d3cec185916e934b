"""The users of a seed: producers that enqueue and wait, an operator that cancels and revives, a schedule."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from coordinator.client import AsyncClient, AsyncHandle
from coordinator.errors import BadCall, CoordinatorError, NotFound, Unconfirmed
from coordinator.model.policies.budget import TOPIC
from coordinator.model.run import ENDED, Status
from tests.faults.simulation.environment import NAMESPACE, URL, Environment
from tests.faults.simulation.facts import GRANTED
from tests.faults.simulation.laws.step import Broken
from tests.faults.simulation.loop import Process
from tests.faults.simulation.readers import Reader
from tests.faults.simulation.scenario import new_run

NAME = "often"


class Users:
    """All users of a seed. Only acknowledged runs count: `acknowledged`."""

    def __init__(self, environment: Environment) -> None:
        self._environment, self._dice = environment, environment.dice
        self.acknowledged: dict[str, int] = {}  # run -> number of turns
        self.poison: set[str] = set()
        self.all: list[tuple[Process, asyncio.Task[Any]]] = []
        self.readers: list[asyncio.Task[Any]] = []
        self._reading: AsyncClient | None = None  # the client that all readers share
        self._sent: dict[
            tuple[str, str], int
        ] = {}  # run and topic -> number of signals that a sender knows to be stored

    def start(self) -> None:
        for number, count in enumerate(self._environment.scenario.producers):
            self._go(f"p{number}", self._produce(count))
        if self._environment.scenario.operator:
            self._go("op", self._operate())
        if self._environment.scenario.schedule:
            self._go("sch", self._schedule())
        if "chat" in self._environment.scenario.kinds:
            for number in range(2):
                self._go(f"post{number}", self._post())
        if "begging" in self._environment.scenario.kinds:
            self._go("post0", self._grant())
        if self._environment.scenario.family == "groups":
            self._go("lim", self._limit())

    def _go(self, name: str, work: Any) -> None:
        process = Process(name)
        self.all.append((process, self._environment.go(process, work)))

    @property
    def busy(self) -> bool:
        return any(process.alive and not task.done() for process, task in self.all)

    def lose_one(self) -> None:
        """Kill a producer or a sender of signals.

        The owner of a schedule survives, because otherwise the schedule would fire for ever; and so does one sender, because
        otherwise runs would wait for ever.
        """
        self._dice.choice([process for process, _ in self.all if process.name not in ("sch", "post0")]).alive = False

    def _client(self) -> AsyncClient:
        client = AsyncClient(URL, NAMESPACE, timeout=self._dice.choice([3.0, 30.0]))
        client._clock = self._environment.clock
        return client

    # -- producers

    async def _produce(self, count: int) -> None:
        client = self._client()
        for _ in range(count):
            await asyncio.sleep(self._dice.random() * 0.5)
            kind, inputs, options = new_run(self._dice, self._environment.scenario.kinds)
            handle = await self._enqueue(client, kind, inputs, options)
            if handle is not None:
                self.acknowledged[handle.id] = inputs["turns"]
                if kind == "chat":
                    self._environment.memory.talks[handle.id] = inputs["turns"]
                if kind == "poison":
                    self.poison.add(handle.id)
                if kind == "teller":
                    # Readers live longer than the producer: its death must not take their requests along.
                    self._reading = self._reading or self._client()
                    for settled in (True, False):
                        reader = Reader(self._environment, self._reading.handle(handle.id), inputs["turns"], settled)
                        process = Process(f"r{len(self.readers)}")
                        self.readers.append(self._environment.go(process, reader.read()))
                if self._dice.random() < 0.3:
                    waiting = self._environment.loop.create_task(self._wait(handle))
                    waiting.add_done_callback(_looked_at)

    async def _enqueue(self, client: AsyncClient, kind: str, inputs: Any, options: Any) -> AsyncHandle[Any] | None:
        """Enqueue repeatedly, with the same identity if the call may already have been executed."""
        for _ in range(20):
            try:
                return await client.enqueue(kind, inputs, **options)
            except Unconfirmed as error:
                if error.ids:
                    options = {**options, "id": error.ids[0]}
            except (
                BadCall
            ) as error:  # All calls here are valid. If one is refused, the simulation is wrong and would prove nothing.
                self._environment.complain(error)
            except CoordinatorError:
                pass
            await asyncio.sleep(self._dice.random())
        return None

    async def _wait(self, handle: AsyncHandle[Any]) -> None:
        while True:
            try:
                status = await handle.wait(timeout=self._dice.choice([5, 50]))
            except CoordinatorError:
                await asyncio.sleep(1.0)
                continue
            seen = self._environment.watchers.now(handle.id)
            if seen is not None and status not in ENDED:
                self._environment.complain(Broken(f"a wait for run {handle.id} returned {status}"))
            return

    # -- senders of signals

    async def _post(self) -> None:
        """Send their signals to the runs that wait for them, one after the other, until all runs have ended."""
        client = self._client()
        while not self._is_over():
            await asyncio.sleep(self._dice.random())
            for id, turns in list(self._environment.memory.talks.items()):
                seen = self._environment.watchers.now(id)
                if seen is not None and seen.status not in ENDED:
                    await self._send(client, id, "talk", turns)
                    if self._dice.random() < 0.3:
                        await self._send(client, id, "hurry", 3)

    async def _send(self, client: AsyncClient, id: str, topic: str, most: int) -> None:
        """Send the next signal, or repeat an earlier one. The key of a signal is its number, so it is stored once."""
        known = self._sent.get((id, topic), 0)
        again = known > 0 and (known == most or self._dice.random() < 0.2)
        number = self._dice.randrange(known) if again else known
        if number >= most:
            return
        try:
            new = await client.handle(id).send(topic, number, key=f"{topic}{number}")
        except CoordinatorError:
            return  # It is sent again, unless the run has ended.
        if again and new:
            self._environment.complain(Broken(f"signal {number} of topic {topic} was stored twice for run {id}"))
        self._sent[id, topic] = max(self._sent.get((id, topic), 0), number + 1)

    async def _grant(self) -> None:
        """Grant requests to runs that have spent their budget, until all runs have ended."""
        client = self._client()
        while not self._is_over():
            await asyncio.sleep(0.2 + self._dice.random())
            for id, seen in list(self._environment.watchers.all()):
                if (
                    seen is not None
                    and seen.status is Status.WAITING
                    and TOPIC in seen.wait
                    and self._dice.random() < 0.7
                ):
                    with contextlib.suppress(CoordinatorError):
                        await client.handle(id).grant(requests=GRANTED)

    def _is_over(self) -> bool:
        """Return whether all runs have ended, and no call can revive one."""
        environment = self._environment
        if not environment.network_faults.calm or environment.loop.time() < environment.network_faults.last_arrival:
            return False
        # An operator's call that is under way may still revive a run.
        others = any(process.alive and not task.done() for process, task in self.all if "post" not in process.name)
        return not others and all(seen is None or seen.status in ENDED for _, seen in environment.watchers.all())

    # -- others

    async def _limit(self) -> None:
        """Change the limit of the groups while runs are admitted, and try to enqueue without a group.

        The last limit admits runs.
        """
        client = self._client()
        while not self._environment.network_faults.calm:
            await asyncio.sleep(self._dice.random() * 2)
            with contextlib.suppress(CoordinatorError):
                await client.set_limit("grouped", at_once=self._dice.choice([1, 2, 3]))
            if self._dice.random() < 0.3:
                with contextlib.suppress(
                    CoordinatorError
                ):  # The server refuses the run, if it knows the limit already.
                    handle = await client.enqueue("grouped", {"turns": 2, "trouble": 0.0})
                    self.acknowledged[handle.id] = 2

    async def _operate(self) -> None:
        """Cancel and revive runs at any time, mostly runs that can be revived."""
        client = self._client()
        while not self._environment.network_faults.calm:
            await asyncio.sleep(self._dice.random() * 1.5)
            if not self.acknowledged:
                continue
            ids = dict.fromkeys(
                [*self.acknowledged, *self._environment.facts.spent]
            )  # with children that have spent something
            ended = [id for id in ids if self._has_ended_badly(id)]
            if ended and self._dice.random() < 0.5:
                handle = client.handle(self._dice.choice(ended))
                with contextlib.suppress(CoordinatorError):
                    await handle.revive(from_start=self._dice.random() < 0.3)
            elif self._dice.random() < 0.5:
                handle = client.handle(self._dice.choice(list(self.acknowledged)))
                grace = self._dice.choice([0.5, 5.0, 30.0])
                with contextlib.suppress(CoordinatorError):
                    if self._environment.scenario.family == "children" and self._dice.random() < 0.5:
                        await handle.cancel_tree(grace=grace)
                    else:
                        await handle.cancel(grace=grace)

    def _has_ended_badly(self, id: str) -> bool:
        seen = self._environment.watchers.now(id)
        return seen is not None and seen.status in ENDED and seen.status != "completed"

    async def _schedule(self) -> None:
        """Set a schedule, change it, and remove it after the faults."""
        client, environment = self._client(), self._environment
        while not self._environment.network_faults.calm:
            every = self._dice.choice([1, 2])
            with contextlib.suppress(CoordinatorError):
                await client.schedule(NAME, every, "steps", {"turns": 1, "trouble": 0.0})
            await asyncio.sleep(self._dice.random() * 4)
        while True:
            try:
                await client.unschedule(NAME)
            except NotFound:
                if (
                    environment.loop.time() > environment.network_faults.last_arrival
                ):  # Otherwise a request that is on its way could set the schedule again.
                    return
            except CoordinatorError:
                pass
            await asyncio.sleep(1.0)


def _looked_at(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
