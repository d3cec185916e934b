"""Masters that die, hang, hand over, are cut off or lose a slot, of a Sentinel group or a Cluster; --on, --durability.

With `replicated(1)` all rules are judged. With `local` what a new master never got is lost, as nobody promised otherwise: that is
counted, and how long before the old master's end the oldest of it had been acknowledged.

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

PEER = "peer"  # as whom replicas and sentinels come to a master: so they can be shut out, and its clients not
CLIENT = "client"  # the password of the others: without one, who is shut out would come in as one of them
PEERS_RIGHTS = ("on", f">{PEER}", "~*", "&*", "+@all")
# A master that lives and is taken for dead goes on for a second with the replicas that it still has: of two of them, one that
# confirms is not enough then (docs/operations/servers.md). So sentinels are not to be hasty where the machine is busy.
PATIENCE_MS = 5000
AT_MOST = 90.0  # seconds that an election and what follows may take on a busy machine


class SentinelGroup(Group):
    """A Sentinel group, as a lab sees it: one server, whoever is master. Its master can be cut off from all but its clients."""

    def __init__(self, kind: Kind, directory: Path, settings: Mapping[str, str]) -> None:
        super().__init__(kind, directory, settings, Guard(password=CLIENT))
        for server in self.servers:
            server.users.append([PEER, *PEERS_RIGHTS])  # also after a restart
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
            )  # they come again as peers
        wait_until(self.whole, "the group knows its peers", timeout=AT_MOST)

    @property
    def admin(self) -> redis.Redis:
        return self.master.admin

    def found(self, lab: Lab) -> None:
        """There is nothing to prepare."""

    def whole(self) -> bool:
        """Whether there is one master that all sentinels name, the others follow it, and no sentinel still has something to do: one
        whose failover is cut in two can get stuck in it for good."""
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            return super().whole()
        return False

    def now(self) -> Server:
        return self.master

    def is_replaced(self, old: Server) -> bool:
        return self.failed_over(old)

    def cut_off(self, master: Server) -> None:
        """Replicas and sentinels can't reach it any more; who is its client still can, and does not know."""
        master.admin.execute_command("ACL", "SETUSER", PEER, "off")
        master.admin.execute_command("CLIENT", "KILL", "USER", PEER)

    def join(self, master: Server) -> None:
        """A sentinel that was shut out goes on asking on its connection, and logs in on a new one only: it is thrown out again."""
        master.admin.execute_command("ACL", "SETUSER", PEER, "on")
        for client in master.admin.client_list():
            if client["user"] == "default" and not client.get("lib-name"):  # redis-py says who it is
                master.admin.client_kill_filter(_id=client["id"])


class LabCluster(Cluster):
    """A Cluster, as a lab sees it: the node that has the lab's partition."""

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
    """One method for each way in which a master is lost."""

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
        """It stands still until it is replaced, and believes that it is the master when it goes on."""
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
        """Two masters for a while, and clients that write to the one that will be overruled."""
        group = lab.store
        assert isinstance(group, SentinelGroup)
        old = group.now()
        group.cut_off(old)
        try:
            self._replaced(lab, old)
            lab.work_on(
                lab.choose.randint(5, 20)
            )  # who waits for replicas gets nothing done there, and goes where there are some
        finally:
            self._lost()
            group.join(old)

    def reshard(self, lab: Lab) -> None:
        """The slot of the lab's partition goes to another master, key by key, in the middle of the work."""
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
        # an election takes longer than a short lease; who holds runs then is not dead
        Plan(lease=5.0), server=SentinelGroup if on == "sentinel" else LabCluster, begin=failovers.found,
        # a coordinator that is still with a master that was replaced gives up workers there, which nobody promises to last: to
        # recover is not confirmed by replicas, and only the claims are that follow
        waived=("condemned_stay_out",),
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
