"""Requeue the runs of dead worker processes of this host whose supervisor has died too, for example after a kill of a whole fleet.

Without this module, these runs would wait until the leases of the workers expire.

Each worker stores a mark of its process: boot id, pid namespace, pid and start time. A mark is unique on one machine, but not among
clones: virtual machines that were started from one memory snapshot have the same boot id and the same pids. A process that does not
exist on this host may be alive on a clone. So this module also checks the heartbeats. A worker without a heartbeat for two
intervals is gone, and a worker with a newer heartbeat keeps its runs.
"""

from __future__ import annotations

import asyncio
import logging

from coordinator.errors import CoordinatorError
from coordinator.store.keys import Namespace
from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.plans.fleets import MarkedWorker
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.liveness.heartbeat import BEATS_PER_LEASE
from workers.liveness.host import Mark, own_mark, provably_gone
from workers.supervisor.child_pool import ChildPool, describe_abandoned

logger = logging.getLogger(__name__)
MISSED_BEATS = 2  # a worker is alive if its last heartbeat is not older than this many intervals
CHECK_TIMEOUT = 2.0  # seconds for each request to the server


class DeadWorkers:
    """The workers whose processes do not exist on this host any more.

    Args:
        wire: The connection to the server.
        namespace: The namespace of the supervisor.
        pool: The pool of the supervisor, which makes the server requeue the runs of a worker.
    """

    def __init__(self, wire: AsyncWire, namespace: Namespace, pool: ChildPool) -> None:
        self._wire, self._namespace, self._pool = wire, namespace, pool
        self._fresh: list[tuple[int, MarkedWorker]] = []

    async def free_silent(self) -> None:
        """Requeue the runs of dead workers whose last heartbeat is old enough. Remember the other dead workers for `free_fresh`."""
        here = own_mark()
        try:
            for keys in self._namespace.everywhere():
                known = await drive_async(self._wire, fleet_plans.read_process_marks(keys), timeout=CHECK_TIMEOUT)
                marks = ((worker, Mark.read(worker.mark)) for worker in known)
                gone = [worker for worker, mark in marks if mark is not None and provably_gone(mark, here)]
                silent = [worker for worker in gone if not _patience(worker)]
                self._fresh += [(keys.partition, worker) for worker in gone if _patience(worker)]
                await asyncio.gather(*(self._free(keys.partition, worker) for worker in silent))
        except CoordinatorError as error:
            logger.warning(
                "can't search for dead workers of this host, so their runs wait until their leases expire: %s", error
            )

    async def free_fresh(self) -> None:
        """Wait for heartbeats of the remembered workers. Requeue the runs of the workers that send none."""
        await asyncio.gather(*(self._free_if_silent(*one) for one in self._fresh))

    async def _free_if_silent(self, partition: int, worker: MarkedWorker) -> None:
        await self._pool.sleep_unless_stopped(_patience(worker))
        if not self._pool.stopping.is_set():
            await self._free(partition, worker)

    async def _free(self, partition: int, worker: MarkedWorker) -> None:
        result = await self._pool.abandon(partition, worker.id, deadline=worker.deadline)
        if result is not None and result.word == "renewed":
            logger.warning(
                "worker %s is alive, although its process does not exist on this host: was this virtual machine cloned from a "
                "memory snapshot? Its runs stay with it",
                worker.id, extra={"worker": worker.id},
            )  # fmt: skip
        elif result is not None and result.taken:
            logger.warning("worker %s is gone: %s", worker.id, describe_abandoned([result]))


def _patience(worker: MarkedWorker) -> float:
    """Return the seconds to wait for the next heartbeat of a worker; 0 if its last heartbeat is too old already."""
    return max(0.0, MISSED_BEATS * worker.lease / BEATS_PER_LEASE - worker.silent)
