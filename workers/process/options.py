"""The settings of a worker process."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.config import Settings
from coordinator.errors import BadOption
from coordinator.model.names import name


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The settings of a worker process. All times are in seconds.

    Attributes:
        settings: The server, the namespace and the client's time limits.
        concurrency: How many handlers may run at the same time, 1 to 10,000.
        queues: The queues whose runs the worker claims.
        grace: How long a draining worker waits for its handlers before it cancels them, 0 to 86,400. A handler may have a
            grace time of its own.
        lease: Time without a heartbeat after which the worker counts as lost, 1 to 3,600.
        fleet: The name of the fleet that the worker belongs to.
        code: The version of the program, for status displays and rolls: up to 100 printable characters without spaces.
        processes: How many worker processes the supervisor keeps running.
        runs: The worker shuts down after this number of runs. None for no limit.

    Raises:
        BadOption: If a value is outside its limits.
    """

    settings: Settings
    concurrency: int = 100
    queues: tuple[str, ...] = ("default",)
    grace: float = 10.0
    lease: float = 15.0
    fleet: str = "default"
    code: str = ""
    processes: int = 1
    runs: int | None = None

    def __post_init__(self) -> None:
        for queue in self.queues:
            name(queue, "queue")
        name(self.fleet, "fleet")
        if not 1 <= self.concurrency <= 10_000:
            raise BadOption(f"concurrency {self.concurrency} is not within 1..10000")
        if not 1 <= self.lease <= 3600:
            raise BadOption(f"lease {self.lease} is not within 1..3600 seconds")
        if not 0 <= self.grace <= 86400:
            raise BadOption(f"grace {self.grace} is not within 0..86400 seconds")
        if len(self.code) > 100 or not all(c.isprintable() and not c.isspace() for c in self.code):
            raise BadOption(f"code version {self.code!r} is not up to 100 printable characters without spaces")
