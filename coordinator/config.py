"""The settings of a client, a worker or a coordinator: validated when they are built."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.encoding.compression import codecs_from_environment
from coordinator.environment import read_environment
from coordinator.errors import BadOption
from coordinator.model.address import Address, address
from coordinator.model.names import name

DEFAULT_URL = "redis://localhost:6379/0"
LOCAL_URL = "embedded://./.runs"
__all__ = ["Address", "Settings", "address", "local_settings", "settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The server, the namespace, and the timeout of a call.

    Raises:
        BadName: The namespace is not a valid name.
        BadOption: The URL, the timeout or RUNS_COMPRESS is not valid.
    """

    url: str = field(repr=False)  # it may contain a password
    namespace: str = "runs"
    timeout: float = 30.0

    def __post_init__(self) -> None:
        address(self.url)
        name(self.namespace, "namespace")
        # The server remembers a run without retention for 60 s. A call that is repeated later would not be recognised.
        if not 0 < self.timeout <= 50:
            raise BadOption(f"timeout {self.timeout!r} is not valid: use more than 0 and at most 50 seconds")
        codecs_from_environment()  # it applies to the process; a wrong value is refused before anything is written

    @property
    def address(self) -> Address:
        """The parsed URL."""
        return address(self.url)


def settings(
    url: str | None = None,
    namespace: str | None = None,
    timeout: float = 30.0,
) -> Settings:
    """Return the settings from the arguments, then the environment, then the defaults.

    Args:
        url: The server.
        namespace: The namespace on it.
        timeout: Seconds after which a call fails.
    """
    environment = read_environment()
    return Settings(
        url or environment.url or environment.redis_url or DEFAULT_URL,
        namespace or environment.namespace or "runs",
        timeout,
    )


def local_settings(
    url: str | None = None,
    namespace: str | None = None,
    timeout: float = 30.0,
) -> Settings:
    """Return the settings for one person's terminal: by default a server of this folder's own.

    REDIS_URL does not count here: many programs read it, and it may name a server that other people use.
    """
    return settings(url or read_environment().url or LOCAL_URL, namespace, timeout)
