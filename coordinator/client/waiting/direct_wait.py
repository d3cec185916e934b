"""Wait for one run in the calling thread, without the hint reader.

The thread blocks on a wake list of its own. It sends three commands together: the registration with the run, the blocking command,
and the question about the run. The server answers the question as soon as the list has a hint. So the whole wait is one round trip,
and no second thread has to wake the caller. If the run has ended before, the registration itself puts a hint into the list.

One thread of a client at a time waits like this. It occupies a connection, so further threads share the hint reader. All errors
end the direct wait, and the caller continues with the hint reader. A wait of less than a second also uses the hint reader: an idle
server ends a blocking command up to 0.1 s after its time.
"""

from __future__ import annotations

import uuid

from coordinator.client.operations import runs as run_operations
from coordinator.client.operations.open_namespace import OpenNamespace
from coordinator.model.address import Address
from coordinator.store.plans import clients as client_plans
from coordinator.store.transport.wire import Wire, drive, drive_after_token
from coordinator.views.ending import Ending

LEAST_SECONDS = 1.0  # shorter waits use the hint reader


class DirectWait:
    """The direct wait of a Client, which one thread at a time can use.

    Attributes:
        client: The random name under which the server wakes the thread. It differs from the name of the hint reader: each of them
            would take the hints of the other.
    """

    def __init__(self, address: Address, wire: Wire, namespace: OpenNamespace) -> None:
        """Store the arguments, without connecting to the server."""
        self.client = uuid.uuid4().hex
        self._wire, self._namespace = wire, namespace
        self._has_sockets = address.scheme != "memory"  # fakeredis has no connection that could block
        # A lock could stay locked: a KeyboardInterrupt may come after its acquisition, before the caller knows of it.
        self._user: dict[str, object] = {}

    def acquire(self, call: object, timeout: float | None) -> bool:
        """Reserve the direct wait for a call.

        Args:
            call: Any object that stands for the call.
            timeout: The longest wait of the call in seconds; None for no limit.

        Returns:
            False if another call uses the direct wait, if the timeout is short, or if the server is in memory.
        """
        if not self._has_sockets or (timeout is not None and timeout < LEAST_SECONDS):
            return False
        return self._user.setdefault("call", call) is call

    def release(self, call: object) -> None:
        """Let other calls use the direct wait. Nothing happens if this call did not reserve it."""
        if self._user.get("call") is call:
            del self._user["call"]

    def wait(self, id: str, seconds: float) -> Ending | None:
        """Register with a run, wait until it has ended, and return its ending.

        Args:
            id: The run.
            seconds: The longest wait.

        Returns:
            The ending; None if the run has not ended.

        Raises:
            CoordinatorError: The wait failed. The run may have ended.
        """
        keys = drive(self._wire, self._namespace.keys(id))
        registration = client_plans.register(keys, id, self.client)
        plan = run_operations.read_ending(keys, id, self.client)
        hinted, ending = drive_after_token(self._wire, registration, keys.wake(self.client), seconds, plan)
        if ending is None and hinted:
            # The hint was about a run for which an earlier call has stopped waiting. There may be many such hints. If a hint about
            # this run is among them, the registration of the next wait replaces it.
            drive(self._wire, run_operations.forget_hints(keys, self.client), seconds)
        return ending
