"""Servers, stores and namespaces for every shelf.

    store_url      the url of each store in turn: memory, valkey, redis
    real_server    each real server in turn; shared by the session, so nobody kills it
    real_url       its url
    start_server   a server of one's own, with any settings, to kill, pause and restart
    namespace      a name that no other test has; nobody flushes

A missing redis-server skips the redis variants, and fails in CI. Where nobody may make network namespaces, their tests are skipped.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import quick
from tests.clusters import Cluster, Group
from tests.servers import DURABLE, Kind, Server, binary
from tests.unrest import UNREST

SHELVES = Path(__file__).parent

StartServer = Callable[..., Server]


def pytest_addoption(parser: pytest.Parser) -> None:
    quick.add_options(parser)


def pytest_configure() -> None:
    """A shell's background jobs have Ctrl-C switched off, and hand that on: tests that send it need what a terminal gives."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with the name of its folder, so that `-m contract` works, and deselect what is not in the quick suite."""
    for item in items:
        folder = item.path.relative_to(SHELVES).parts[0]
        if (SHELVES / folder).is_dir():
            item.add_marker(folder)
    quick.deselect(config, items)
    quick.count_proofs(config, items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a process of pytest-xdist counted."""
    quick.remember(node.config, getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in quick.summary(terminalreporter.config):
        terminalreporter.write_line(line)


def require(kind: Kind) -> None:
    if binary(kind):
        return
    sentence = f"{kind}-server is not installed (Debian: apt-get install redis-server)"
    if os.environ.get("CI") == "true":
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)


@pytest.fixture(scope="session")
def shared_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Kind], Server]]:
    """One server of each kind for the whole session, started when first asked for."""
    servers: dict[Kind, Server] = {}

    def of(kind: Kind) -> Server:
        require(kind)
        if kind not in servers:
            servers[kind] = Server(kind, tmp_path_factory.mktemp(kind))
        return servers[kind]

    yield of
    for server in servers.values():
        server.close()


@pytest.fixture(scope="session")
def valkey_server(shared_servers: Callable[[Kind], Server]) -> Server:
    return shared_servers("valkey")


@pytest.fixture(scope="session")
def redis_server(shared_servers: Callable[[Kind], Server]) -> Server:
    return shared_servers("redis")


@pytest.fixture(params=["valkey", "redis"])
def real_server(request: pytest.FixtureRequest, shared_servers: Callable[[Kind], Server]) -> Server:
    return shared_servers(request.param)


@pytest.fixture
def real_url(real_server: Server) -> str:
    return real_server.url


@pytest.fixture(params=["memory", "valkey", "redis"])
def store_url(request: pytest.FixtureRequest, shared_servers: Callable[[Kind], Server]) -> str:
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    return shared_servers(request.param).url


@pytest.fixture
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """start_server(), start_server("redis"), start_server(settings={"maxmemory": "10mb"})"""
    servers: list[Server] = []

    def start(kind: Kind = "valkey", settings: Mapping[str, str] = DURABLE) -> Server:
        require(kind)
        servers.append(Server(kind, tmp_path_factory.mktemp(kind), settings))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def namespace() -> str:
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture(scope="session")
def shared_topologies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, Kind], Cluster | Group]]:
    """One Cluster and one Sentinel group of each kind for the whole session, started when first asked for. Nobody kills them, and
    so they are patient: else a machine that stands still for a second has them fail over in the middle of somebody's test."""
    made: dict[tuple[str, Kind], Cluster | Group] = {}

    def of(what: str, kind: Kind) -> Cluster | Group:
        require(kind)
        if (what, kind) not in made:
            directory = tmp_path_factory.mktemp(what)
            made[what, kind] = Cluster(kind, directory) if what == "cluster" else Group(kind, directory)
            if not UNREST:
                made[what, kind].be_patient()
        return made[what, kind]

    yield of
    for topology in made.values():
        topology.close()


@pytest.fixture
def start_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Cluster]]:
    """start_cluster(), start_cluster("redis"): a Cluster of one's own, to kill nodes of and to reshard."""
    with ExitStack() as stack:

        def start(kind: Kind = "valkey", **options: Any) -> Cluster:
            require(kind)
            cluster = Cluster(kind, tmp_path_factory.mktemp("cluster"), **options)
            stack.callback(cluster.close)
            return cluster

        yield start


@pytest.fixture
def start_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Group]]:
    """start_group(), start_group("redis"): a Sentinel group of one's own, to kill its master."""
    with ExitStack() as stack:

        def start(kind: Kind = "valkey", **options: Any) -> Group:
            require(kind)
            group = Group(kind, tmp_path_factory.mktemp("group"), **options)
            stack.callback(group.close)
            return group

        yield start
