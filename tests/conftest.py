"""Fixtures for all tests: servers, stores and namespaces.

    store_url      the URL of each kind of store in turn: memory, valkey, redis
    real_server    each real server in turn; tests share it, so they must not kill it
    real_url       the URL of real_server
    start_server   starts a server for one test, with any settings, to kill, pause and restart
    namespace      a name that no other test uses; tests must not flush the server

Without a redis-server the redis variants are skipped; in CI they fail. Tests that need network namespaces are skipped if the user
may not create them.
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
    """Restore the default handling of SIGINT for tests that send it. A shell ignores SIGINT in its background jobs."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with the name of its folder, so that `-m contract` works, and deselect tests outside the quick suite."""
    for item in items:
        folder = item.path.relative_to(SHELVES).parts[0]
        if (SHELVES / folder).is_dir():
            item.add_marker(folder)
    quick.deselect(config, items)
    quick.count_proofs(config, items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the counts of a pytest-xdist process to the counts of this process."""
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
    """One server of each kind for the whole session, started at its first use."""
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
    """Start a server: start_server(), start_server("redis"), start_server(settings={"maxmemory": "10mb"})."""
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
    """One Cluster and one Sentinel group of each kind for the whole session, started at its first use.

    No test kills them. They have a long timeout, because a busy machine that stalls for a second would otherwise cause a failover
    in the middle of a test.
    """
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
    """Start a Cluster for one test, to kill its nodes and to reshard it: start_cluster(), start_cluster("redis")."""
    with ExitStack() as stack:

        def start(kind: Kind = "valkey", **options: Any) -> Cluster:
            require(kind)
            cluster = Cluster(kind, tmp_path_factory.mktemp("cluster"), **options)
            stack.callback(cluster.close)
            return cluster

        yield start


@pytest.fixture
def start_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Group]]:
    """Start a Sentinel group for one test, to kill its master: start_group(), start_group("redis")."""
    with ExitStack() as stack:

        def start(kind: Kind = "valkey", **options: Any) -> Group:
            require(kind)
            group = Group(kind, tmp_path_factory.mktemp("group"), **options)
            stack.callback(group.close)
            return group

        yield start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Write half characters in reports as escapes. A report with one would end the whole run instead of one test."""
    report: Any = yield
    report.sections = [(title, _escaped(text)) for title, text in report.sections]
    if report.longrepr is not None and _escaped(str(report.longrepr)) != str(report.longrepr):
        report.longrepr = _escaped(str(report.longrepr))
    return report  # type: ignore[no-any-return]


def _escaped(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
