"""Failovers and reshardings in the middle of tests, enabled by an environment variable.

With RUNS_TEST_UNREST=yes the Cluster and the Sentinel group that tests share are disturbed during the tests. The disturbances take
turns: a requested failover, a failover by killing the master, and, in a Cluster, moving the hash slot of a partition.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter

from tests.clusters import Cluster, Group
from tests.servers import Server
from tests.waiting import wait_until

UNREST = os.environ.get("RUNS_TEST_UNREST") == "yes"
LEVELS = {"cluster": "replicated(1)", "sentinel": "replicated(2)"}  # all replicas: see docs/operations/servers.md

BETWEEN = (
    3.0  # seconds between disturbances: a client that retries every second or two finds enough replicas in this time
)


def kinds_of(made: Cluster | Group) -> list[str]:
    return ["a hand-over", "a kill", *(["a resharding"] if isinstance(made, Cluster) else [])]


def disturb(made: Cluster | Group, kind: str, tag: str) -> None:
    """Disturb the server of a partition once."""
    if kind == "a hand-over":
        made.hand_over(tag)
    elif kind == "a kill":
        _kill(made, tag)
    elif isinstance(made, Cluster):
        made.reshard(tag)


def _kill(made: Cluster | Group, tag: str) -> None:
    """Kill the master of a partition. Restart it as a replica when another master has taken over."""
    master: Server = made.master_of(tag) if isinstance(made, Cluster) else made.master
    master.kill()
    wait_until(lambda: made.replaced(tag, master), "another master is there", timeout=60)
    master.restart()


def wait_until_whole(made: Cluster | Group) -> None:
    wait_until(made.whole, "all nodes are there again", timeout=90)


class Restless:
    """A thread that disturbs the current test continuously, one kind after the other, and counts the disturbances."""

    def __init__(self, made: Cluster | Group) -> None:
        self.made, self.counts = made, Counter[str]()
        self.tag = "{nobody:0}"  # a partition of the test that is under way
        self._over = threading.Event()
        self._broken: BaseException | None = None
        self._thread = threading.Thread(target=self._disturb, name="unrest")
        self._thread.start()

    def _disturb(self) -> None:
        try:
            for kind in itertools.cycle(kinds_of(self.made)):
                disturb(self.made, kind, self.tag)
                wait_until_whole(self.made)
                self.counts[kind] += 1
                if self._over.wait(BETWEEN):
                    return
        except BaseException as error:  # noqa: BLE001  # close() raises it
            self._broken = error

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        print("unrest:", ", ".join(f"{kind} {count} times" for kind, count in self.counts.items()))
        if self._broken is not None:
            raise self._broken
