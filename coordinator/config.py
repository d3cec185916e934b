"""Settings, validated when built. The only module that reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.encoding import compression
from coordinator.errors import BadOption
from coordinator.model.address import Address, address
from coordinator.model.run import name

DEFAULT_URL = "redis://localhost:6379/0"
LOCAL_URL = "embedded://./.runs"
__all__ = ["Address", "Settings", "address", "compress", "local_settings", "settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Which server, which namespace, how patient."""

    url: str = field(repr=False)  # it may hold a password
    namespace: str = "runs"
    timeout: float = 30.0

    def __post_init__(self) -> None:
        address(self.url)
        name(self.namespace, "namespace")
        # a run that leaves nothing behind is still known for 60 s: no call may be repeated longer than that
        if not 0 < self.timeout <= 50:
            raise BadOption(f"timeout {self.timeout!r} is not more than 0 and up to 50 seconds")
        compress()  # of the process and not of a client; a wrong one is refused before anything is written

    @property
    def address(self) -> Address:
        return address(self.url)


def compress(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The codecs that RUNS_COMPRESS asks for: none or zstd."""
    asked = environment.get("RUNS_COMPRESS", "")
    if asked not in ("", "zstd"):
        raise BadOption(f"RUNS_COMPRESS={asked!r} is not known: use zstd, or leave it away")
    if asked and not compression.available():
        raise BadOption(f"RUNS_COMPRESS=zstd needs its extra: {compression.INSTALL}")
    return (asked,) if asked else ()


def settings(
    url: str | None = None,
    namespace: str | None = None,
    timeout: float = 30.0,
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """What is given, else what the environment says, else the defaults."""
    return Settings(
        url or environment.get("RUNS_URL") or environment.get("REDIS_URL") or DEFAULT_URL,
        namespace or environment.get("RUNS_NAMESPACE") or "runs",
        timeout,
    )


def local_settings(
    url: str | None = None,
    namespace: str | None = None,
    timeout: float = 30.0,
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """The same for one person's terminal: without a word it is a server of this folder's own. REDIS_URL is many programs' and may
    name a server that others use: here it does not count."""
    return settings(url or environment.get("RUNS_URL") or LOCAL_URL, namespace, timeout, environment)
