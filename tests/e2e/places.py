"""Where the tests with real processes take place. One server, unless the environment says otherwise:

RUNS_TEST_TOPOLOGY=cluster    or sentinel: four partitions, and what is written waits for all replicas
RUNS_TEST_RIGHTS=yes          every process is the ACL user of its role
RUNS_TEST_UNREST=yes          in the middle of each test there is a failover or a resharding (tests/unrest.py)
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
from tests.unrest import LEVELS, disturb, kinds_of, whole_again

TOPOLOGY = os.environ.get("RUNS_TEST_TOPOLOGY", "one")
RIGHTS = os.environ.get("RUNS_TEST_RIGHTS") == "yes"
SECRET = "s3cr3t-pa55w0rd"
PARTITIONS = 4
OPERATOR = "operator"
USERS = (*ROLES, "worker+coordinator")  # the last one for a fleet with a coordinator beside it


class Place:
    """A server, or several, and how processes of each role get in."""

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
        """For looking inside, wherever a key is now."""
        if isinstance(self._made, Cluster):
            node = next(node for node in self._made.nodes if node.answers)
            return redis.cluster.RedisCluster("127.0.0.1", node.port, protocol=2)
        return self._made.master.admin if isinstance(self._made, Group) else self._made.admin

    def found(self, namespace: str) -> None:
        """On one server its first user founds a namespace, with one partition."""
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
        """For each role its URL: with the user that `coordinator acl` prints for it, on every node."""
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
    """As whom a command connects."""
    word = next((argument for argument in arguments if not argument.startswith("-")), "")
    if word in ("init", "check") or "--namespace" in arguments:
        return OPERATOR  # who sees the server's settings, and more than one namespace
    if program == "workers":
        return "worker+coordinator" if "--coordinator" in arguments else "worker"
    return "coordinator" if word in ("start", "doctor") else "producer"


class Unrest:
    """One disturbance, in a thread, when the first handler has begun; each test has the next kind of it."""

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
        whole_again(self._made)
        print(f"unrest: {self.kind} {'in the middle' if self.done else 'did not come: no handler had begun'}")

    def _disturb(self) -> None:
        while not self._journal.stat().st_size:
            if self._over.wait(0.05):
                return
        self.done = True
        disturb(self._made, self.kind, f"{{{self._namespace}:0}}")
