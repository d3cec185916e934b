"""Kill, hang, replace or cut off masters of a Sentinel group or a Cluster, or move a hash slot; --on, --durability.

With `replicated(1)` all rules are judged. With `local`, writes that the new master never received are lost, and nothing
else is promised. The campaign counts them, and measures how long before the old master's end the oldest lost write had
been acknowledged.

    scripts/faults failover --on sentinel --durability 'replicated(1)' --count 20
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import redis

from tests.clusters import SERVICE, Cluster, Group, Guard
from tests.faults.campaigns.power import FORGOTTEN, Cuts
from tests.faults.campaigns.runner import Campaign, run
from tests.faults.lab.lab import Lab, Plan
from tests.servers import Kind, Server
from tests.waiting import wait_until

PEER = "peer"  # the ACL user of replicas and sentinels, so that they can be shut out separately from the clients
CLIENT = (
    "client"  # the password of all others: without one, a process that is shut out would log in as the default user
)
PEERS_RIGHTS = ("on", f">{PEER}", "~*", "&*", "+@all")
# A live master that was declared dead continues for a second with its remaining replicas. With two replicas, the
# confirmation of one is then not sufficient (docs/operations/servers.md). So sentinels must wait long on a busy machine.
PATIENCE_MS = 5000
SENTINEL_COMMANDS = ("auth", "ping", "info", "publish", "subscribe", "client|setname")
AT_MOST = 90.0  # seconds that an election and its consequences may take on a busy machine


class SentinelGroup(Group):
    """A Sentinel group that looks like one server to a lab. Its master can be cut off from all but its clients."""

    def __init__(self, kind: Kind, directory: Path, settings: Mapping[str, str]) -> None:
        super().__init__(kind, directory, settings, Guard(password=CLIENT))
        for server in self.servers:
            server.users.append([PEER, *PEERS_RIGHTS])  # This also holds after a restart.
            server.settings |= {"masteruser": PEER, "masterauth": PEER}
            server.admin.execute_command("ACL", "SETUSER", PEER, *PEERS_RIGHTS)
            for name in ("masteruser", "masterauth"):
                server.admin.execute_command("CONFIG", "SET", name, PEER)
        for sentinel in self.sentinels:
            for name, value in (("auth-user", PEER), ("auth-pass", PEER), ("down-after-milliseconds", PATIENCE_MS)):
                sentinel.admin.execute_command("SENTINEL", "SET", SERVICE, name, value)
        for server in self.servers:
            server.admin.execute_command(
                "CLIENT", "KILL", "USER", "default", "SKIPME", "yes"
            )  # They connect again as the user for peers.
        wait_until(self.whole, "the group knows its peers", timeout=AT_MOST)

    @property
    def admin(self) -> redis.Redis:
        return self.master.admin

    def found(self, lab: Lab) -> None:
        """Do nothing: there is nothing to prepare."""

    def whole(self) -> bool:
        """Return whether all servers and sentinels agree on one master, and no sentinel is still busy with a failover.

        A sentinel whose failover is interrupted can remain stuck in it.
        """
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            return super().whole()
        return False

    def now(self) -> Server:
        return self.master

    def is_replaced(self, old: Server) -> bool:
        return self.failed_over(old)

    def cut_off(self, master: Server) -> None:
        """Cut a master off from replicas and sentinels. Its clients still reach it and do not know."""
        master.admin.execute_command("ACL", "SETUSER", PEER, "off")
        master.admin.execute_command("CLIENT", "KILL", "USER", PEER)

    def join(self, master: Server) -> None:
        """Let replicas and sentinels connect again.

        A sentinel that was shut out keeps asking on its old connection and logs in only on a new one. So its
        connections are closed once more. A connection whose login was refused may have no name.
        """
        master.admin.execute_command("ACL", "SETUSER", PEER, "on")
        for client in master.admin.client_list():
            of_sentinel = client["name"].startswith("sentinel-") or (
                not client["name"] and client["cmd"] in SENTINEL_COMMANDS
            )
            if client["user"] == "default" and of_sentinel:
                master.admin.client_kill_filter(_id=client["id"])


class LabCluster(Cluster):
    """A Cluster that looks like one server to a lab: the node that serves the lab's partition."""

    def __init__(self, kind: Kind, directory: Path, settings: Mapping[str, str]) -> None:
        super().__init__(kind, directory)
        self.key = ""

    @property
    def admin(self) -> redis.Redis:
        return self.now().admin

    def found(self, lab: Lab) -> None:
        self.key = lab.keys.at

    def now(self) -> Server:
        return self.master_of(self.key)

    def is_replaced(self, old: Server) -> bool:
        return self.replaced(self.key, old)


@dataclass
class Failovers:
    """One method for each way to lose a master."""

    durability: str
    cuts: Cuts = field(default_factory=Cuts)

    def found(self, lab: Lab) -> None:
        place(lab).found(lab)
        lab.run("coordinator", "init", "--durability", self.durability)

    def break_one(self, lab: Lab) -> str:
        lab.work_on(lab.choose.randint(5, 40))
        ways: dict[str, Callable[[Lab], None]] = {"killed": self.kill, "hung": self.hang, "handed over": self.hand_over}
        ways |= {"cut off": self.cut_off} if isinstance(lab.store, SentinelGroup) else {"resharded": self.reshard}
        way = lab.choose.choice(list(ways))
        ways[way](lab)
        wait_until(place(lab).whole, "every master has its replicas again", timeout=AT_MOST)
        return way

    def kill(self, lab: Lab) -> None:
        old = place(lab).now()
        old.kill()
        self._lost()
        self._replaced(lab, old)
        old.restart()

    def hang(self, lab: Lab) -> None:
        """Stop a master until it is replaced. When it continues, it still believes that it is the master."""
        old = place(lab).now()
        old.pause()
        self._lost()
        try:
            self._replaced(lab, old)
        finally:
            old.resume()

    def hand_over(self, lab: Lab) -> None:
        self._lost()
        place(lab).hand_over(lab.keys.at)

    def cut_off(self, lab: Lab) -> None:
        """Cause two masters for a while, with clients that write to the one that will be overruled."""
        group = lab.store
        assert isinstance(group, SentinelGroup)
        old = group.now()
        group.cut_off(old)
        try:
            self._replaced(lab, old)
            lab.work_on(
                lab.choose.randint(5, 20)
            )  # A client that waits for replicas makes no progress there, and moves to the master that has replicas.
        finally:
            self._lost()
            group.join(old)

    def reshard(self, lab: Lab) -> None:
        """Move the hash slot of the lab's partition to another master, key by key, during the work."""
        cluster = lab.store
        assert isinstance(cluster, LabCluster)
        cluster.reshard(lab.keys.at)

    def _replaced(self, lab: Lab, old: Server) -> None:
        wait_until(lambda: place(lab).is_replaced(old), "another master is there", timeout=AT_MOST)

    def _lost(self) -> None:
        self.cuts.at.append(time.monotonic_ns())


def place(lab: Lab) -> SentinelGroup | LabCluster:
    assert isinstance(lab.store, (SentinelGroup, LabCluster))
    return lab.store


def campaign(on: str, durability: str) -> Campaign:
    failovers = Failovers(durability)
    made = Campaign(
        f"failover-{on}-{durability.partition('(')[0]}", failovers.break_one,
        # An election takes longer than a short lease, and the owners of runs must not be declared dead.
        Plan(users=1, lease=5.0), server=SentinelGroup if on == "sentinel" else LabCluster, begin=failovers.found,
        # A coordinator that still uses a replaced master may recover workers there, and this recovery may be undone:
        # replicas do not confirm a recovery, only the claims that follow.
        waived=("recovered_workers_stay_out",),
    )  # fmt: skip
    if durability != "local":
        return made
    return replace(made, waived=FORGOTTEN, measures=failovers.cuts.measured)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--on", choices=["sentinel", "cluster"], default="sentinel")
    parser.add_argument("--durability", choices=["local", "replicated(1)"], default="replicated(1)")
    chosen, others = parser.parse_known_args(arguments)
    return run(campaign(chosen.on, chosen.durability), others, count=5)
