"""Fixtures that run a test over every store and server, including a Cluster and a Sentinel group; see tests/unrest.py."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.clusters import Cluster, Group
from tests.servers import Kind, Server
from tests.unrest import UNREST, Restless

TOPOLOGIES = ("cluster", "sentinel")
Topology = Callable[[str], Cluster | Group]


@pytest.fixture(scope="session")
def restless() -> Iterator[dict[str, Restless]]:
    """The threads that disturb the shared Cluster and Sentinel group. Each starts at its first use."""
    made: dict[str, Restless] = {}
    with ExitStack() as stack:
        yield made
        for one in made.values():
            stack.callback(one.close)


@pytest.fixture
def topology(
    shared_topologies: Callable[[str, Kind], Cluster | Group], restless: dict[str, Restless], namespace: str
) -> Topology:
    """The Cluster or the Sentinel group, which may be disturbed meanwhile."""

    def of(what: str) -> Cluster | Group:
        made = shared_topologies(what, "valkey")
        if UNREST:
            if what not in restless:
                restless[what] = Restless(made)
            restless[what].tag = f"{{{namespace}:0}}"
        return made

    return of


@pytest.fixture(params=["memory", "valkey", "redis", *TOPOLOGIES])
def store_url(request: pytest.FixtureRequest, shared_servers: Callable[[Kind], Server], topology: Topology) -> str:
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    if request.param in TOPOLOGIES:
        return topology(request.param).url
    return shared_servers(request.param).url
