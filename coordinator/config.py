"""The settings of a client, a worker or a coordinator. They are validated when they are built."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from coordinator.encoding.compression import codecs_from_environment
from coordinator.environment import read_environment
from coordinator.errors import BadOption
from coordinator.model.address import Address, address
from coordinator.model.names import name

DEFAULT_URL = "redis://localhost:6379/0"
LOCAL_URL = "embedded://./.runs"
__all__ = [
    "Address", "Settings", "address", "current_settings", "local_settings", "set_process_settings", "settings",
]  # fmt: skip


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
        # The server remembers a run without retention for 60 s. It would not recognise a call that is repeated later.
        if not 0 < self.timeout <= 50:
            raise BadOption(f"timeout {self.timeout!r} is not valid: use more than 0 and at most 50 seconds")
        codecs_from_environment()  # the variable applies to the whole process; a wrong value is refused before anything is written

    @property
    def address(self) -> Address:
        """The parsed URL of the server."""
        return address(self.url)

    def pinned(self) -> Settings:
        """Return these settings with an absolute path in an embedded:// URL. Other URLs stay as they are.

        A relative path would name another server after the process changes its working directory.
        """
        found = self.address
        return replace(self, url=str(found)) if found.scheme == "embedded" else self


# The settings of the worker that executes the current code: a handler, a phase or a lifespan. The worker sets them. A client that
# this code makes uses them by default.
current_settings: ContextVar[Settings | None] = ContextVar("coordinator.config.current_settings", default=None)

# The settings of the only worker of this process. Threads that a handler starts itself do not inherit context variables.
_process_settings: Settings | None = None


def set_process_settings(settings: Settings) -> None:
    """Make these the default settings of the whole process. Only a process that runs one worker calls this."""
    global _process_settings  # noqa: PLW0603  # the process has one worker, and so one default
    _process_settings = settings.pinned()


def settings(
    url: str | None = None,
    namespace: str | None = None,
    timeout: float = 30.0,
) -> Settings:
    """Return the settings of a client, a worker or a coordinator.

    An argument that is given is used. Otherwise, in code that a worker executes, the server and the namespace of the worker are
    used: they may come from options of its command and differ from the environment. Elsewhere the environment variables are used,
    then the defaults.

    Args:
        url: The server.
        namespace: The namespace on it.
        timeout: Seconds after which a call fails.
    """
    worker = current_settings.get() or _process_settings
    if worker is not None:
        return Settings(url or worker.url, namespace or worker.namespace, timeout)
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
    """Return the settings for `workers dev`: by default an embedded server in the current folder.

    REDIS_URL is ignored here, because many programs read it, and it may name a shared server.
    """
    return settings(url or read_environment().url or LOCAL_URL, namespace, timeout)
