"""Views of a namespace, its workers and its coordinators, as they were when the client read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coordinator.model.policies.rates import RateLimit
from coordinator.model.run import Status


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as it is stored on the server.

    Attributes:
        id: The worker's id. A process has one worker in each partition.
        host: Name of the host on which the process runs.
        pid: The process id.
        fleet: Name of the fleet to which the process belongs.
        code: Version of the handlers' code.
        slots: Number of handlers that the process runs at the same time.
        running: Number of runs that the worker owns.
        lease: Seconds without a heartbeat after which the worker counts as lost.
        lease_age: Seconds since the last heartbeat.
        condemned: True if the server has marked the worker as lost, and its runs are being taken from it.
        draining: Whether the worker has stopped claiming and releases its runs.
        routes: The routes that the worker listens to, as `queue:kind@schema`.
        memory: Bytes that the process used at its last heartbeat; 0 if unknown.
        stuck: Ids of runs that the worker no longer executes but whose handlers did not stop, at most 20. Each of
            these handlers occupies a slot until the process is replaced.
    """

    id: str
    host: str
    pid: int
    fleet: str
    code: str
    slots: int
    running: int
    lease: float
    lease_age: float
    condemned: bool
    draining: bool
    routes: tuple[str, ...]
    memory: int = 0
    stuck: tuple[str, ...] = ()

    @property
    def expired(self) -> bool:
        """Return True if the lease has expired."""
        return self.lease_age > self.lease


@dataclass(frozen=True, slots=True)
class CoordinatorView:
    """A coordinator, and the number of seconds since it was last active."""

    id: str
    age: float


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group with runs in its line.

    Attributes:
        kind: The kind of its runs.
        group: Its name.
        held: Number of queued runs that wait for a place.
        taken: Number of places that are taken: runs that are ready or running.
        at_once: Number of places; None if no limit is known, so that no run is admitted.
        rate: How many of its runs may start per unit of time, for example `10/min`; None for no limit.
        waited: Seconds since the run that waits longest in the line entered it.
    """

    kind: str
    group: str
    held: int
    taken: int
    at_once: int | None
    rate: str | None = None
    waited: float = 0.0

    @property
    def waits_for_rate(self) -> bool:
        """True if the group has a free place, so that its first run waits only for the rate of starts."""
        return self.rate is not None and self.at_once is not None and self.taken < self.at_once


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of a whole namespace.

    Attributes:
        namespace: The name of the namespace.
        partitions: Number of partitions.
        durability: The durability level of writes: none, local, synced, managed or replicated(n).
        counts: Number of runs by status.
        queues: Number of queued runs by route, as `queue:kind@schema`.
        paused: The paused queues and kinds, as `queue:<name>` or `kind:<name>`.
        aside: Number of entries that a worker or a coordinator could not read and set aside.
        workers: The workers, one for each process and partition.
        coordinators: The coordinators.
        groups: The groups with runs in their lines, at most 10,000 of each partition. Their runs count as queued, but are not in
            `queues`.
        rates: The rates of external calls, with the calls that are under way and that wait.
    """

    namespace: str
    partitions: int
    durability: str
    counts: Mapping[Status, int]
    queues: Mapping[str, int]
    paused: tuple[str, ...]
    aside: int
    workers: tuple[WorkerView, ...]
    coordinators: tuple[CoordinatorView, ...]
    groups: tuple[GroupView, ...] = ()
    rates: tuple[RateLimit, ...] = ()
