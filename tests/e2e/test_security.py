"""TLS with generated certificates, ACL users with exactly their rights, and secrets that are never shown.

The TLS tests use Debian's Redis, because the wheel's Valkey is built without TLS.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coordinator as coordinator_package
from coordinator import AsyncClient, Client, Status
from coordinator.config import Settings
from coordinator.errors import NotConfigured
from coordinator.store.rights import CONNECTION, ROLES, acl
from coordinator.store.scripts import SCRIPTS
from tests.certificates import Certificates
from tests.clusters import Cluster, Group, Guard
from tests.conftest import StartServer
from tests.e2e.conftest import MakeStage
from tests.e2e.processes import Stage, children, stop
from tests.servers import Kind, Server, free_port

SECRET = "s3cr3t-pa55w0rd"


# ---- TLS -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")


@pytest.fixture
def tls_server(start_server: StartServer, certificates: Certificates) -> tuple[Server, int]:
    port = free_port()
    return start_server("redis", {"tls-port": str(port), **certificates.settings()}), port


def coordinator(url: str, namespace: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"RUNS_URL": url, "RUNS_NAMESPACE": namespace}
    command = [sys.executable, "-m", "coordinator.cli", *words]
    return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=60)


@pytest.mark.matrix("more cases with real processes")
async def test_all_roles_work_over_tls_with_a_client_certificate(
    make_stage: MakeStage, tls_server: tuple[Server, int], certificates: Certificates
) -> None:
    url = f"rediss://127.0.0.1:{tls_server[1]}/0?{certificates.options()}"
    stage = make_stage(url)
    stage.coordinator()
    fleet = stage.fleet(1)
    async with AsyncClient(url, stage.namespace) as client:
        handle = await client.enqueue("add", {"left": 2, "right": 3}, delay=0.2)
        assert await handle.result(60) == 5
    assert stop(fleet) == 0


async def enqueued(url: str, namespace: str, how: str) -> str:
    if how == "sync":
        with Client(url, namespace, timeout=5) as client:
            return client.enqueue("k", {}).id
    # The client uses its normal patience: a reset may arrive before the server's last message, which a retry then
    # receives.
    async with AsyncClient(url, namespace) as asynchronous:
        return (await asynchronous.enqueue("k", {})).id


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "ssl_ca_certs=FILE"),  # The client does not know the authority.
        ("{other}", "ssl_ca_certs=FILE"),  # The certificate is from another authority.
        ("{no_client}", "ssl_certfile=FILE"),  # The server requires a certificate of the client, too.
    ],
)
@pytest.mark.parametrize("how", ["sync", "async"])
async def test_wrong_certificate_is_rejected_in_one_sentence(
    tls_server: tuple[Server, int],
    certificates: Certificates,
    tmp_path: Path,
    namespace: str,
    options: str,
    said: str,
    how: str,
) -> None:
    others = Certificates(tmp_path / "others")
    given = options.format(other=f"ssl_ca_certs={others.ca}", no_client=certificates.options(client=False))
    url = f"rediss://user:{SECRET}@127.0.0.1:{tls_server[1]}/0?{given}"
    with pytest.raises(NotConfigured) as caught:
        await enqueued(url, namespace, how)
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    if how == "sync":
        done = coordinator(url, namespace, "status")
        assert done.returncode == 3
        assert "Traceback" not in done.stderr
        assert said in done.stderr


@pytest.mark.matrix("more cases with real processes")
def test_server_without_tls_is_reported(start_server: StartServer, namespace: str) -> None:
    server = start_server("redis")
    done = coordinator(f"rediss://127.0.0.1:{server.port}/0", namespace, "status")
    assert (done.returncode, "does it speak TLS?" in done.stderr) == (4, True), done.stderr


def test_cluster_works_over_tls(
    start_cluster: Callable[..., Cluster], certificates: Certificates, namespace: str
) -> None:
    cluster = start_cluster("redis", tls=certificates)
    with Client(cluster.url, namespace, timeout=20) as client:
        handles = client.enqueue_many([("k", {})] * 10)
        assert {handle.view().status for handle in handles} == {Status.QUEUED}


@pytest.mark.timeout(180)
def test_sentinel_group_with_tls_and_passwords_survives_a_failover(
    make_stage: MakeStage, start_group: Callable[..., Group], certificates: Certificates
) -> None:
    """Use TLS everywhere, one password for the servers and another one for the sentinels."""
    group = start_group("redis", guard=Guard(certificates, SECRET, f"sentinel-{SECRET}"))
    stage = make_stage(group.url)
    # The write waits for all replicas: see docs/operations/servers.md.
    stage.run("coordinator", "init", "--durability", "replicated(2)")
    stage.coordinator()
    fleet = stage.fleet(1)
    with Client(group.url, stage.namespace, timeout=50) as client:
        assert client.enqueue("add", {"left": 2, "right": 3}).result(60) == 5
        group.hand_over()
        assert client.enqueue("add", {"left": 2, "right": 4}).result(60) == 6
    assert stop(fleet) == 0
    assert SECRET not in stage.logs()


def test_sentinel_that_requires_a_password_is_reported(start_group: Callable[..., Group], namespace: str) -> None:
    group = start_group("redis", guard=Guard(sentinel_password=SECRET))
    for url in (group.url.partition("?")[0], group.url.replace(f"={SECRET}", "=wrong-word")):
        done = coordinator(url, namespace, "status", "--timeout", "5")
        assert done.returncode == 3, done.stderr
        assert "refused the user or password" in done.stderr
        assert "sentinel_password=" in done.stderr
        assert "wrong-word" not in done.stderr + done.stdout


# ---- rights ----------------------------------------------------------------------------------------------------------------


def with_rights(server: Server, namespace: str, role: str) -> str:
    """Return a URL for a user with exactly the rights of a role."""
    words = [SECRET.join([">", ""]) if word == ">PASSWORD" else word for word in acl(role, namespace)]
    server.admin.execute_command("ACL", "SETUSER", *words)
    return f"redis://{words[0]}:{SECRET}@127.0.0.1:{server.port}/0"


def test_every_script_belongs_to_a_role() -> None:
    known = {script.name for scripts, _ in ROLES.values() for script in scripts}
    assert {script.name for script in SCRIPTS} == known


def test_commands_allowed_to_roles_are_those_that_the_source_sends(start_server: StartServer) -> None:
    """Compare the commands of all roles with those in the source: no more and no fewer.

    The commands inside scripts are read from the scripts.
    """
    known = {name.upper() for name in start_server().admin.command()}
    top = Path(coordinator_package.__file__ or "").parent.parent
    sources = [path.read_text() for package in ("coordinator", "workers") for path in (top / package).rglob("*.py")]
    words = {word for source in sources for word in re.findall(r'"([A-Z]+)"', source)} & known
    # These are the operator's commands, words in sentences, commands for a sentinel or for an embedded server, and a
    # log level.
    elsewhere = {"ACL", "CONFIG", "GET", "REPLICAOF", "SENTINEL", "SHUTDOWN", "DEBUG"}
    granted = {word.upper().partition("|")[0] for _, sent in ROLES.values() for word in sent}
    granted |= {word.upper().partition("|")[0] for word in CONNECTION}
    granted -= {"SELECT", "HELLO"}  # redis-py sends these commands.
    assert words - elsewhere == granted


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_each_role_can_do_only_its_own_work(
    start_server: StartServer, namespace: str, tmp_path: Path, kind: Kind
) -> None:
    """Run producer, workers and coordinator as three users, with a failing and a delayed run.

    Then an observer reads, and can not write.
    """
    server = start_server(kind)
    urls = {role: with_rights(server, namespace, role) for role in ROLES}
    server.admin.execute_command("ACL", "SETUSER", "default", "off")
    stages = {}
    for role in ("worker", "coordinator"):
        (tmp_path / role).mkdir()
        stages[role] = Stage(urls[role], namespace, tmp_path / role)
    server.admin.connection_pool.disconnect()
    try:
        stages["coordinator"].coordinator()
        fleet = stages["worker"].fleet(2)
        with Client(urls["producer"], namespace) as client:
            good = client.enqueue("add", {"left": 2, "right": 3}, delay=0.1, key="once")
            many = client.enqueue_many([("steps", {"total": 3})] * 20)
            bad = client.enqueue("add", {"left": 2, "right": "x"})
            assert good.result(60) == 5
            assert {handle.wait(60) for handle in many} == {Status.COMPLETED}
            assert bad.wait(60) is Status.FAILED
            bad.revive()
            assert bad.wait(60) is Status.FAILED
            client.enqueue("nobody", {}).cancel()
            client.enqueue("nobody", {})  # The doctor checks the runs that wait.
            client.schedule("s", "every 1h", "add", {"left": 1, "right": 1})
            client.unschedule("s")
            client.pause(kind="nobody")
            client.unpause(kind="nobody")
            bad.discard()
            assert client.list(status="completed")
            assert client.status().durability == "local"
        with Client(urls["read-only"], namespace) as reader:
            assert reader.handle(good.id).view().status is Status.COMPLETED
            assert reader.handle(good.id).result(10) == 5
            assert reader.list(status="completed")
            assert reader.workers()
            for touch in (lambda: reader.enqueue("add", {}), lambda: reader.handle(many[0].id).discard()):
                with pytest.raises(NotConfigured, match="coordinator acl"):
                    touch()
        done = coordinator(urls["coordinator"], namespace, "doctor")
        assert done.returncode == 0, done.stdout + done.stderr
        assert stop(fleet) == 0
        logs = stages["worker"].logs() + stages["coordinator"].logs()
        assert "rights" not in logs, logs
        assert SECRET not in logs
    finally:
        for stage in stages.values():
            stage.close()


def test_acl_users_can_not_reach_another_namespace(start_server: StartServer, namespace: str) -> None:
    server = start_server()
    url = with_rights(server, namespace, "producer")
    with Client(url, f"{namespace}x") as client, pytest.raises(NotConfigured):
        client.enqueue("k", {})


@pytest.mark.matrix("more cases with real processes")
def test_acl_command_prints_rules_that_the_server_accepts(start_server: StartServer, namespace: str) -> None:
    server = start_server("redis")
    for role in ROLES:
        printed = coordinator(server.url, namespace, "acl", role)
        assert printed.returncode == 0
        assert server.admin.execute_command(*printed.stdout.split()) in (b"OK", True)
    both = coordinator(server.url, namespace, "acl", "worker+coordinator").stdout.split()
    assert {*both[6:]} == {word for role in ("worker", "coordinator") for word in acl(role, namespace)[4:]}
    assert server.admin.execute_command(*both) in (b"OK", True)
    wrong = coordinator(server.url, namespace, "acl", "king")
    assert (wrong.returncode, "producer, worker, coordinator, read-only" in wrong.stderr) == (2, True)


# ---- check -----------------------------------------------------------------------------------------------------------------


@pytest.mark.matrix("more cases with real processes")
def test_check_reports_every_problem_with_its_fix(start_server: StartServer, namespace: str) -> None:
    server = start_server(settings={"appendonly": "no", "maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"})
    bad = coordinator(server.url, namespace, "check")
    assert bad.returncode == 1
    assert "CONFIG SET maxmemory-policy noeviction" in bad.stdout
    assert "CONFIG SET appendonly yes" in bad.stdout
    found = json.loads(coordinator(server.url, namespace, "check", "--json").stdout)
    assert [finding["refused"] for finding in found["findings"]] == [True, True]
    server.admin.execute_command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    server.admin.execute_command("CONFIG", "SET", "appendonly", "yes")
    good = coordinator(server.url, namespace, "check")
    assert good.returncode == 0, good.stdout


def test_check_covers_every_master_of_a_cluster(start_cluster: Callable[..., Cluster], namespace: str) -> None:
    """Check also masters without a partition, because a hash slot may move to any of them.

    A master that is gone does not hide the others.
    """
    cluster = start_cluster("redis", replicas=0)
    assert coordinator(cluster.url, namespace, "init", "--durability", "local").returncode == 0
    good = coordinator(cluster.url, namespace, "check")
    assert good.returncode == 0, good.stdout
    zero = cluster.master_of(f"{{{namespace}:0}}")
    for node in cluster.nodes:
        node.admin.config_set("maxmemory-policy", "allkeys-lru")
        found = json.loads(coordinator(cluster.url, namespace, "check", "--json").stdout)["findings"]
        (sentence,) = [finding["sentence"] for finding in found if finding["refused"]]
        assert sentence.endswith("CONFIG SET maxmemory-policy noeviction")
        assert sentence.startswith(
            "the server may evict" if node is zero else f"on node 127.0.0.1:{node.port}: the server"
        )
        refused = coordinator(cluster.url, namespace, "start")
        assert (refused.returncode, "CONFIG SET maxmemory-policy" in refused.stderr) == (3, True), refused.stderr
        node.admin.config_set("maxmemory-policy", "noeviction")
    wrong, away = [node for node in cluster.nodes if node is not zero]
    wrong.admin.config_set("appendonly", "no")
    away.kill()
    bad = coordinator(cluster.url, namespace, "check", "--timeout", "5")
    assert bad.returncode == 1
    assert f"warning  node 127.0.0.1:{away.port} can't be reached; its runs wait until it is back" in bad.stdout
    assert f"refused  on node 127.0.0.1:{wrong.port}: the namespace promises durability 'local'" in bad.stdout


@pytest.mark.matrix("more cases with real processes")
def test_suggested_fix_works_on_a_cluster_node(
    shared_topologies: Callable[[str, Kind], Cluster | Group], namespace: str
) -> None:
    """Do not suggest REPLICAOF, which a node of a Cluster refuses."""
    done = coordinator(shared_topologies("cluster", "redis").url, namespace, "init", "--durability", "replicated(2)")
    assert done.returncode == 3
    assert "start them with CLUSTER REPLICATE" in done.stderr


# ---- secrets ---------------------------------------------------------------------------------------------------------------


@pytest.mark.matrix("more cases with real processes")
def test_secrets_are_never_shown(
    start_server: StartServer, make_stage: MakeStage, caplog: pytest.LogCaptureFixture
) -> None:
    """Check the logs of all processes, their arguments, reprs and errors, with a server and without one."""
    server = start_server()
    server.admin.config_set("requirepass", SECRET)
    url = f"redis://:{SECRET}@127.0.0.1:{server.port}/0"
    stage = make_stage(url)
    stage.coordinator()
    stage.fleet(1)
    with Client(url, stage.namespace, timeout=5) as client:
        assert client.enqueue("add", {"left": 1, "right": 1}).result(60) == 2
        shown: list[Any] = [
            client,
            client.handle("0" * 20 + "-00"),
            Settings(url),
            Settings(url).address,
            client.status(),
        ]
        arguments = _arguments(stage)
        server.kill()
        with pytest.raises(Exception) as caught:  # noqa: PT011  # Any ValueError will do.
            client.enqueue("add", {})
        shown.append(caught.value)
    done = coordinator(url, stage.namespace, "status", "--timeout", "1")
    assert done.returncode == 4
    texts = [repr(one) + str(one) for one in shown] + [done.stdout, done.stderr, caplog.text, stage.logs()]
    assert not [text for text in texts if SECRET in text]
    assert SECRET.encode() not in arguments


def _arguments(stage: Stage) -> bytes:
    """Return the arguments of all processes of the stage.

    They are still running. Other processes may end while they are read.
    """
    pids = [pid for process in stage.started for pid in (process.pid, *children(process.pid))]
    assert len(pids) == 3, "a coordinator, a fleet and its worker"
    return b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
