"""One seed: processes with the real worker, coordinator and client in them, a real server, and everything that goes wrong.

When the faults are over everything must come to its end; then the structure is proved, and after the retention nothing is left.
"""

from __future__ import annotations

import asyncio

from tests.faults.simulation.deeds import Deeds
from tests.faults.simulation.ground import Ground
from tests.faults.simulation.people import People
from tests.faults.simulation.pods import Coordinators, Pods
from tests.faults.simulation.proof import Proof
from tests.faults.simulation.server import RealServer


class World:
    """Everything of one seed."""

    def __init__(self, seed: int, server: RealServer) -> None:
        self.ground = Ground(seed, server)
        self._pods, self._coordinators = Pods(self.ground), Coordinators(self.ground)
        self.people = People(self.ground)
        self._deeds = Deeds(self.ground, self._pods, self._coordinators, self.people)
        self._proof = Proof(self.ground, self._pods, self._coordinators, self.people)

    def run(self) -> None:
        """Raises Broken where a promise was."""
        loop = self.ground.loop
        self.ground.site.server.empty()
        with self.ground.installed():
            asyncio.set_event_loop(loop)
            loop.set_exception_handler(self.ground.escaped)
            try:
                loop.run_until_complete(self._main())
            finally:
                loop.abandon_all()
                loop.close()
                asyncio.set_event_loop(None)

    async def _main(self) -> None:
        self.ground.found()
        self._begin()
        await self._deeds.run()
        self._deeds.calm()
        await self._proof.all_end()
        await self._proof.all_leave()
        self.ground.trace.closed = True  # the server's own order of keys is not the seed's
        self._proof.structure()
        self._proof.nothing_is_left()

    def _begin(self) -> None:
        for _ in range(self.ground.scene.coordinators):
            self._coordinators.start()
        for number in range(self.ground.scene.pods):
            self._pods.all.append(self._pods.start(str(number)))
        self.people.start()
