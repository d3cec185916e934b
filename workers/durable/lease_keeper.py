"""Renew the lease of an owner of records in a thread of its own, so that a busy event loop does not delay the renewal."""

from __future__ import annotations

import logging
import threading

from coordinator.config import Address
from coordinator.errors import CoordinatorError
from coordinator.store.keys import Keys
from coordinator.store.transport.wire import Wire, drive
from workers.durable.records import record_plans

logger = logging.getLogger(__name__)


class LeaseKeeper:
    """Renew a lease five times within its length, until `stop` is called.

    Args:
        address: The server.
        keys: The keys of partition 0.
        owner: The id of the owner that has the lease.
        lease: The length of the lease in seconds.
    """

    def __init__(self, address: Address, keys: Keys, owner: str, lease: float) -> None:
        self._wire = Wire(address, timeout=lease / 5)
        self._keys, self._owner, self._pause = keys, owner, lease / 5
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"keeper-{owner}", daemon=True)

    def start(self) -> None:
        """Start the thread that renews the lease."""
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing, and wait for the thread. The lease then expires on the server, unless the owner ends it."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _renew(self) -> None:
        failing = False
        while not self._stop.wait(self._pause):
            try:
                drive(self._wire, record_plans.renew_lease(self._keys, self._owner))
            except CoordinatorError as error:
                if not failing:
                    logger.warning("lease of records not renewed: %s", error)
                failing = True
            else:
                failing = False
        self._wire.close()
