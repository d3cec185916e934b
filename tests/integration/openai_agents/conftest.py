"""Fixtures: the URL of each server on which sessions must work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.clusters import Cluster, Group
from tests.servers import Kind, Server


@pytest.fixture(params=["memory", "valkey", "redis", "cluster"])
def session_url(
    request: pytest.FixtureRequest,
    namespace: str,
    shared_servers: Callable[[Kind], Server],
    shared_topologies: Callable[[str, Kind], Cluster | Group],
) -> str:
    """The URL of a store in memory, a Valkey, a Redis and a Cluster in turn."""
    if request.param == "memory":
        return f"memory://{namespace}"
    if request.param == "cluster":
        return shared_topologies("cluster", "valkey").url
    return shared_servers(request.param).url
