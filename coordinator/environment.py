"""The environment variables that configure the product. Only this module reads them.

The module imports nothing of the library, so that both the encoding (RUNS_COMPRESS) and config.py (the others) can import it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Environment:
    """The values of the environment variables. The value of a variable that is not set is empty.

    Attributes:
        url: RUNS_URL, the server.
        redis_url: REDIS_URL, the server in an environment that many programs share.
        namespace: RUNS_NAMESPACE.
        compress: RUNS_COMPRESS, the codec that compresses stored values.
        loop: RUNS_LOOP, the event loop of the processes of a fleet.
    """

    url: str = ""
    redis_url: str = ""
    namespace: str = ""
    compress: str = ""
    loop: str = ""


def read_environment() -> Environment:
    """Return the values of the environment variables of this process."""
    return Environment(
        url=os.environ.get("RUNS_URL", ""),
        redis_url=os.environ.get("REDIS_URL", ""),
        namespace=os.environ.get("RUNS_NAMESPACE", ""),
        compress=os.environ.get("RUNS_COMPRESS", ""),
        loop=os.environ.get("RUNS_LOOP", ""),
    )
