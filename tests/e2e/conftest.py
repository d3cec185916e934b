"""Fixtures for tests with real processes, on the server that all tests share (see places.py) or on a server of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from coordinator import Client
from tests.browsers import browser
from tests.clusters import Cluster, Group
from tests.e2e.places import TOPOLOGY, Place, Unrest
from tests.e2e.processes import Stage, kept_open
from tests.servers import Kind, Server
from tests.unrest import UNREST

__all__ = ["browser"]  # a fixture

MakeStage = Callable[..., Stage]
Made = Server | Cluster | Group


@pytest.fixture
def make_stage(namespace: str, tmp_path: Path) -> Iterator[MakeStage]:
    """Return `make_stage(url)` or `make_stage(server)`. A given server is set up as the environment variables say."""
    stages: list[Stage] = []

    def make(where: str | Server) -> Stage:
        if isinstance(where, str):
            stages.append(Stage(where, namespace, tmp_path))
        else:
            place = Place(where)
            stages.append(Stage(place.urls(namespace), namespace, tmp_path, place))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()


@pytest.fixture
def made(shared_servers: Callable[[Kind], Server], shared_topologies: Callable[[str, Kind], Cluster | Group]) -> Made:
    """Return the server, or the group of servers, that all tests share."""
    return shared_servers("valkey") if TOPOLOGY == "one" else shared_topologies(TOPOLOGY, "valkey")


@pytest.fixture
def scene(made: Made, namespace: str) -> Place:
    """Return the shared place.

    Its namespace is created here if the first client could not create it with the right settings.
    """
    here = Place(made)
    here.create_namespace(namespace)
    return here


@pytest.fixture
def stage(made: Made, scene: Place, namespace: str, tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        stage = stack.enter_context(kept_open(Stage(scene.urls(namespace), namespace, tmp_path, scene)))
        if UNREST and not isinstance(made, Server):
            stack.enter_context(Unrest(made, namespace, stage.journal))
        yield stage


@pytest.fixture
def client(stage: Stage) -> Iterator[Client]:
    with Client(stage.url, stage.namespace) as made:
        yield made
