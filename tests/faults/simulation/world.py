"""One seed: simulated processes with the real worker, coordinator and client, a real server, and all faults.

After the faults, all runs must end. Then the structure is checked, and after the retention no key may be left.
"""

from __future__ import annotations

import asyncio

from tests.faults.simulation.disturbances import Disturbances
from tests.faults.simulation.environment import Environment
from tests.faults.simulation.final_checks import FinalChecks
from tests.faults.simulation.pods import Coordinators, Pods
from tests.faults.simulation.server import RealServer
from tests.faults.simulation.users import Users


class World:
    """Everything that belongs to one seed."""

    def __init__(self, seed: int, server: RealServer) -> None:
        self.environment = Environment(seed, server)
        self._pods, self._coordinators = Pods(self.environment), Coordinators(self.environment)
        self.users = Users(self.environment)
        self._disturbances = Disturbances(self.environment, self._pods, self._coordinators, self.users)
        self._final_checks = FinalChecks(self.environment, self._pods, self._coordinators, self.users)

    def run(self) -> None:
        """Run the seed, and raise Broken if a promise was broken."""
        loop = self.environment.loop
        self.environment.server_side.server.empty()
        with self.environment.installed():
            asyncio.set_event_loop(loop)
            loop.set_exception_handler(self.environment.escaped)
            try:
                loop.run_until_complete(self._main())
            finally:
                loop.abandon_all()
                loop.close()
                asyncio.set_event_loop(None)

    async def _main(self) -> None:
        self.environment.found()
        self._begin()
        await self._disturbances.run()
        self._disturbances.calm()
        await self._final_checks.all_end()
        await self._final_checks.all_leave()
        self.environment.trace.closed = True  # The server's own order of keys does not depend on the seed.
        self._final_checks.structure()
        self._final_checks.nothing_is_left()

    def _begin(self) -> None:
        for _ in range(self.environment.scenario.coordinators):
            self._coordinators.start()
        for number in range(self.environment.scenario.pods):
            self._pods.all.append(self._pods.start(str(number)))
        self.users.start()
