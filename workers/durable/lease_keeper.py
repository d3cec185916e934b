"""Keeps the lease of one owner of records alive: a thread of its own, so that a busy event loop costs no lease."""

from __future__ import annotations

import logging
import threading

from coordinator.config import Address
from coordinator.errors import CoordinatorError
from coordinator.store.keys import Keys
from coordinator.store.transport.wire import Wire, drive
from workers.durable import record_plans as checkpoint_plans

logger = logging.getLogger(__name__)


class Keeper:
    """Renews until it is stopped, five times in a lease."""

    def __init__(self, address: Address, keys: Keys, owner: str, lease: float) -> None:
        self._wire = Wire(address, timeout=lease / 5)
        self._keys, self._owner, self._pause = keys, owner, lease / 5
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"keeper-{owner}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No more renewals: without a word to the server, the lease runs out by itself."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        failing = False
        while not self._stop.wait(self._pause):
            try:
                drive(self._wire, checkpoint_plans.keep(self._keys, self._owner))
            except CoordinatorError as error:
                if not failing:
                    logger.warning("the lease of this process's checkpoints could not be renewed: %s", error)
                failing = True
            else:
                failing = False
        self._wire.close()
