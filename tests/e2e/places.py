"""The servers on which the tests with real processes run. It is one server, unless the environment says otherwise:

RUNS_TEST_TOPOLOGY=cluster    or sentinel: four partitions, and every write waits for all replicas
RUNS_TEST_RIGHTS=yes          every process connects as the ACL user of its role
RUNS_TEST_UNREST=yes          during each test there is one failover or one resharding (tests/unrest.py)
"""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import redis
import redis.cluster

from coordinator.model.address import address
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.rights import ROLES, acl
from coordinator.store.transport.wire import Wire, drive
from tests.clusters import Cluster, Group
from tests.servers import Server
from tests.unrest import LEVELS, disturb, kinds_of, wait_until_whole

TOPOLOGY = os.environ.get("RUNS_TEST_TOPOLOGY", "one")
RIGHTS = os.environ.get("RUNS_TEST_RIGHTS") == "yes"
SECRET = "s3cr3t-pa55w0rd"
PARTITIONS = 4
OPERATOR = "operator"
USERS = (*ROLES, "worker+coordinator")  # The last command is a fleet with a coordinator in the same process tree.


class Place:
    """One or several servers, and the URLs with which the processes of each role connect."""

    def __init__(self, made: Server | Cluster | Group, *, rights: bool = RIGHTS) -> None:
        self._made, self._rights = made, rights
        self.partitions = 1 if isinstance(made, Server) else PARTITIONS

    @property
    def servers(self) -> Sequence[Server]:
        if isinstance(self._made, Server):
            return [self._made]
        return self._made.nodes if isinstance(self._made, Cluster) else self._made.servers

    @property
    def admin(self) -> Any:
        """Return a connection that inspects keys, on whichever node they are."""
        if isinstance(self._made, Cluster):
            node = next(node for node in self._made.nodes if node.answers)
            return redis.cluster.RedisCluster("127.0.0.1", node.port, protocol=2)
        return self._made.master.admin if isinstance(self._made, Group) else self._made.admin

    def create_namespace(self, namespace: str) -> None:
        """Create the namespace. On one server the first client creates it, with one partition."""
        if isinstance(self._made, Server):
            return
        wire = Wire(address(self._made.url))
        try:
            level = LEVELS["cluster" if isinstance(self._made, Cluster) else "sentinel"]
            drive(
                wire, namespace_plans.create(namespace, birth=uuid.uuid4().hex, partitions=PARTITIONS, durability=level)
            )
        finally:
            wire.close()

    def urls(self, namespace: str) -> Mapping[str, str]:
        """Return the URL of each role, with the ACL user that `coordinator acl` prints for it.

        The user exists on every node.
        """
        if not self._rights:
            return dict.fromkeys((*USERS, OPERATOR), self._made.url)
        urls = {OPERATOR: self._made.url}
        for role in USERS:
            words = [f">{SECRET}" if word == ">PASSWORD" else word for word in acl(role, namespace)]
            for server in self.servers:
                server.admin.execute_command("ACL", "SETUSER", *words)
                server.users.append([word for word in words if word != "reset"])
            urls[role] = self._made.url.replace("://", f"://{words[0]}:{SECRET}@", 1)
        return urls


def role_of(program: str, arguments: Sequence[str]) -> str:
    """Return the role as which a command connects."""
    word = next((argument for argument in arguments if not argument.startswith("-")), "")
    if word in ("init", "check") or "--namespace" in arguments:
        return OPERATOR  # The operator reads the server's settings and more than one namespace.
    if program == "workers":
        return "worker+coordinator" if "--coordinator" in arguments else "worker"
    return "coordinator" if word in ("start", "doctor") else "producer"


class Unrest:
    """One disturbance, in a thread, when the first handler has begun. Each test gets the next kind of disturbance."""

    _kinds: itertools.cycle[str] | None = None

    def __init__(self, made: Cluster | Group, namespace: str, journal: Path) -> None:
        self._made, self._namespace, self._journal = made, namespace, journal
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._disturb, name="unrest")
        if Unrest._kinds is None:
            Unrest._kinds = itertools.cycle(kinds_of(made))
        self.kind = next(Unrest._kinds)
        self.done = False

    def __enter__(self) -> Unrest:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        wait_until_whole(self._made)
        print(f"unrest: {self.kind} {'in the middle' if self.done else 'did not come: no handler had begun'}")

    def _disturb(self) -> None:
        while not self._journal.stat().st_size:
            if self._over.wait(0.05):
                return
        self.done = True
        disturb(self._made, self.kind, f"{{{self._namespace}:0}}")
