"""Drop packets silently between the hosts of a Sentinel group, or between it and its clients; --durability, needs root.

Three network namespaces are hosts with a server and a sentinel each. Workers, coordinators and producers are outside.
The campaign cuts a host off from the other hosts or from all processes, or cuts the master off from its clients. It
does so in one or both directions, and either for a second or until some time after an election.

With `replicated(1)` and two replicas, nothing is promised for writes that a master accepts if it becomes reachable in
the middle of an election. So a master that is being replaced stays cut off until the election is over, and a replica's
host is cut off for less time than a sentinel waits. With `replicated(2)` the network is repaired at any moment. With
`local` the loss is measured.

    scripts/faults partition --durability 'replicated(2)' --count 20
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import redis

from tests.clusters import SERVICE, Group
from tests.faults.campaigns.failover import AT_MOST, PATIENCE_MS
from tests.faults.campaigns.power import FORGOTTEN, Cuts
from tests.faults.campaigns.runner import Campaign, run
from tests.faults.judge.evidence import ENDED, Evidence
from tests.faults.lab.hosts import Hosts, NoNamespaces, Way
from tests.faults.lab.lab import Lab, Plan
from tests.servers import Kind, Server
from tests.waiting import wait_until

LEVELS = ("local", "replicated(1)", "replicated(2)")
BRIEF = 2.5  # seconds: sentinels, which wait for five, do not declare a server dead, even on a busy machine
LONG = PATIENCE_MS / 1000 + 6  # a few seconds longer than an election
ELECTION = (PATIENCE_MS / 1000, PATIENCE_MS / 1000 + 3)  # if there is one, counted from the cut
# a trip without a reply ends after 5 s, one that waits for a bell after 10 s, and the next attempt must first connect
NOTICED = 45.0


class Cut(NamedTuple):
    """The hosts and processes from which a host is cut off."""

    name: str
    hosts: bool
    clients: bool


CUTS = (
    # If it is the master's host, there are two masters for a while, and clients reach both of them and their sentinels.
    Cut("from the others", hosts=True, clients=False),
    Cut("from everybody", hosts=True, clients=True),
    # the master's host: the sentinels see no reason for an election
    Cut("from clients", hosts=False, clients=True),
)
WAYS: tuple[Way, ...] = ("both", "both", "both", "in", "out")


class ScatteredGroup(Group):
    """A Sentinel group on three hosts that looks like one server to a lab. The lab itself uses the `aside` addresses."""

    def __init__(self, kind: Kind, directory: Path, settings: Mapping[str, str]) -> None:
        self.network = Hosts(3)
        try:
            open_to_all = {**settings, "protected-mode": "no"}
            super().__init__(kind, directory, open_to_all, hosts=self.network.all)
            for sentinel in self.sentinels:
                sentinel.admin.execute_command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", PATIENCE_MS)
        except BaseException:
            self.close()
            raise

    @property
    def admin(self) -> redis.Redis:
        return self.master.admin

    def whole(self) -> bool:
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            return super().whole()
        return False

    def is_over(self, old: Server) -> bool:
        """Return whether another master is active and all reachable servers follow it, so that none confirms for the old one."""
        return self.failed_over(old) and self.replicas() == 1

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.network.close()


@dataclass
class Partitions:
    """Break the network and wait until it is repaired. `pauses` are the times until work continued."""

    durability: str
    cuts: Cuts = field(default_factory=Cuts)
    pauses: list[float] = field(default_factory=list)

    def found(self, lab: Lab) -> None:
        lab.run("coordinator", "init", "--durability", self.durability)

    def break_one(self, lab: Lab) -> str:
        lab.work_on(lab.choose.randint(5, 40))
        there = group(lab)
        old = there.master
        cut = lab.choose.choice(CUTS)
        others = [server for server in there.servers if server is not old]
        victim = lab.choose.choice([*[old] * 6, *others]) if cut.hosts else old
        way = lab.choose.choice(WAYS)
        there.network.cut(victim.host, *(there.hosts if cut.hosts else ()), outside=cut.clients, way=way)
        try:
            if cut.hosts and victim is old:
                how = f"master {self._outlast(lab, old)}"
            else:
                # A sentinel that was alone for long may cause a failover of a live master when it is back: see docs/faults.md.
                shortly = self.durability == "replicated(1)" and victim is not old
                self._for(lab, lab.choose.uniform(1, BRIEF if shortly else LONG))
                how = "master" if victim is old else "replica"
        finally:
            there.network.heal()
        self._goes_on(lab)
        wait_until(there.whole, "the master has its replicas again", timeout=AT_MOST)
        # the end of a replaced master: until this moment it accepted the writes that are lost
        self.cuts.at.append(time.monotonic_ns())
        return f"{cut.name}: {how}" + ("" if way == "both" else ", one way")

    def _outlast(self, lab: Lab, old: Server) -> str:
        """Return the time for which a master is cut off from the others."""
        there = group(lab)
        if self.durability != "replicated(1)":
            self._for(lab, lab.choose.uniform(*lab.choose.choice([(1, LONG), ELECTION])))
            return "replaced" if there.failed_over(old) else "for a while"
        if lab.choose.random() < 0.25:
            self._for(lab, lab.choose.uniform(1, BRIEF))
            return "for a while"
        wait_until(lambda: there.is_over(old), "another master is there, and is followed", timeout=AT_MOST)
        self._goes_on(lab)  # with the new master, while the old one is still cut off
        return "replaced"

    def _for(self, lab: Lab, seconds: float) -> None:
        """Wait for a time, not for an amount of work: there may be no work at all."""
        until = time.monotonic() + seconds

        def over() -> bool:
            lab.tend()
            return time.monotonic() >= until

        wait_until(over, "a time is over", timeout=seconds + AT_MOST)

    def _goes_on(self, lab: Lab) -> None:
        """Wait until runs end and a coordinator ticks at the current master.

        Steps are not a sign of progress, because handlers do not wait for the server.
        """
        begun = time.monotonic()
        before: dict[int, Sign] = {}  # by the port of the master, which may still change

        def moved_on() -> bool:
            lab.tend()
            with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
                master = group(lab).master
                now = sign_of_life(lab, master)
                first = before.setdefault(master.port, now)
                return now.ended != first.ended and now.ticked > first.ticked
            return False

        wait_until(moved_on, "runs end again, and a coordinator ticks", timeout=AT_MOST)
        self.pauses.append(time.monotonic() - begun)

    def measured(self, see: Evidence) -> dict[str, int | float]:
        lost = {"window_seconds": round(self.cuts.window(see), 3)} if self.durability == "local" else {}
        return {"longest_pause_seconds": round(max(self.pauses, default=0), 1), **lost}

    def noticed_in_time(self, see: Evidence) -> Iterator[str]:
        """Work continues soon after the network is repaired or another master is active."""
        for pause in self.pauses:
            if pause > NOTICED:
                yield f"no progress for {pause:.1f} s"


def group(lab: Lab) -> ScatteredGroup:
    assert isinstance(lab.store, ScatteredGroup)
    return lab.store


class Sign(NamedTuple):
    """A sign of progress: how many runs have ended in each way, and the last tick of a coordinator."""

    ended: list[int]
    ticked: float


def sign_of_life(lab: Lab, master: Server) -> Sign:
    seen: Any = master.admin.zrange(lab.keys.coordinators(), -1, -1, withscores=True)
    ended = [int(master.admin.zcard(lab.keys.ended(status))) for status in ENDED]
    return Sign(ended, max((score for _, score in seen), default=0.0))


def campaign(durability: str) -> Campaign:
    partitions = Partitions(durability)
    made = Campaign(
        f"partition-{durability.replace('(', '-').strip(')')}", partitions.break_one,
        Plan(users=1, lease=5.0), server=ScatteredGroup, begin=partitions.found, measures=partitions.measured,
        also=partitions.noticed_in_time, waived=("recovered_workers_stay_out",),  # as for failovers, for the same reasons
    )  # fmt: skip
    return replace(made, waived=FORGOTTEN) if durability == "local" else made


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--durability", choices=LEVELS, default="replicated(1)")
    chosen, others = parser.parse_known_args(arguments)
    try:
        return run(campaign(chosen.durability), others, count=5)
    except NoNamespaces as error:
        print(f"scripts/faults partition: {error}", file=sys.stderr)
        return 2
