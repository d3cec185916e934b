"""The same promises over every store and server, a Cluster and a Sentinel group among them."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from tests.clusters import Cluster, Group
from tests.servers import Kind, Server


@pytest.fixture(params=["memory", "valkey", "redis", "cluster", "sentinel"])
def store_url(
    request: pytest.FixtureRequest,
    shared_servers: Callable[[Kind], Server],
    shared_topologies: Callable[[str, Kind], Cluster | Group],
) -> str:
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    if request.param in ("cluster", "sentinel"):
        return shared_topologies(request.param, "valkey").url
    return shared_servers(request.param).url
