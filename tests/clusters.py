"""Groups of real servers on loopback: a Cluster of three masters with one replica each, and a Sentinel group.

A node that is silent for two seconds counts as failed, so that a failover takes only seconds. A busy machine that stalls that long
causes a failover too. So tests that kill no node set a longer timeout with `be_patient`.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from coordinator.store.transport.topology.hash_slots import SLOTS, slot_of
from tests.certificates import Certificates
from tests.servers import HERE, Host, Kind, Server, binary, bound, free_port
from tests.waiting import wait_until

SILENT_MS = 2000  # on a busy machine a live master is sometimes silent for a second
PATIENT_MS = 5000
MANUAL_SECONDS = 5.0  # a Cluster node forgets a requested failover after this time


def replicated(master: Server) -> bool:
    """Wait until every replica has received all writes of the master so far, and return True.

    This compares replication offsets, because a WAIT on a connection without writes returns at once. All replicas must agree,
    because a failover may choose any of them.
    """
    written = int(master.admin.info("replication")["master_repl_offset"])

    def acknowledged() -> bool:
        replicas = master.admin.execute_command("ROLE")[2]
        return bool(replicas) and all(int(offset) >= written for _, _, offset in replicas)

    return bool(wait_until(acknowledged, "all replicas have all writes"))


SERVICE = "mymaster"


class ClusterNode(Server):
    """A node of a Cluster."""

    @property
    def id(self) -> str:
        return str(self.admin.execute_command("CLUSTER", "MYID").decode())

    def is_master(self) -> bool:
        try:
            return bool(self.admin.execute_command("ROLE")[0] == b"master")
        except redis.ConnectionError:
            return False

    def serves(self, slot: int) -> bool:
        """Return whether the node says that it is the master of a hash slot."""
        if not self.answers or not self.is_master():
            return False
        slots = self.admin.execute_command("CLUSTER", "SLOTS")
        return any(first <= slot <= last and master[1] == self.port for first, last, master, *_ in slots)

    def has(self, replica: ClusterNode) -> bool:
        """Return whether the node knows another one as its replica."""
        with contextlib.suppress(redis.ResponseError):  # the node has become a replica itself
            text = self.admin.execute_command("CLUSTER", "REPLICAS", self.id)
            return any(replica.id in str(line) for line in text)
        return False

    def assign(self, slot: int, how: str, other: ClusterNode) -> None:
        """Send CLUSTER SETSLOT, with retries. Valkey asks its replicas first, and refuses if one is silent for two seconds."""

        def taken() -> bool:
            try:
                return bool(self.admin.execute_command("CLUSTER", "SETSLOT", slot, how, other.id))
            except redis.ResponseError as error:
                if str(error).startswith("NOREPLICAS"):
                    return False
                raise

        wait_until(taken, "replicas that accept the new place of the slot", timeout=60)

    def met(self) -> set[str]:
        """Return the ids of the nodes that this node knows, without those that are still in the handshake.

        The server counts a node in the handshake as known, but has no name for it yet.
        """
        lines = self.admin.execute_command("CLUSTER", "NODES").decode().splitlines()
        return {line.split()[0] for line in lines if "handshake" not in line.split()[2]}

    def knows(self) -> dict[str, str]:
        """Return the fields of CLUSTER INFO. redis-py has already parsed them."""
        info = self.admin.execute_command("CLUSTER INFO")
        return {str(name): str(value) for name, value in info.items()}


class Cluster:
    """Three masters, each with replicas. `nodes` contains all of them, because failovers change the roles."""

    def __init__(self, kind: Kind, directory: Path, replicas: int = 1, tls: Certificates | None = None) -> None:
        self.nodes: list[ClusterNode] = []
        self._tls = tls
        for number in range(3 * (1 + replicas)):
            place = directory / str(number)
            place.mkdir()
            cluster = {
                "cluster-enabled": "yes", "cluster-port": str(free_port()), "cluster-node-timeout": str(SILENT_MS),
                "cluster-require-full-coverage": "no", "repl-diskless-sync-delay": "0",
                "cluster-replica-validity-factor": "0",  # a replica may be late on a busy machine
            }  # fmt: skip
            if tls is not None:
                cluster |= {"tls-port": str(free_port()), "tls-cluster": "yes", **tls.settings()}
            self.nodes.append(ClusterNode(kind, place, cluster))
        with _closed_on_failure(self):
            self._join(self.nodes[:3], self.nodes[3:])
            if not replicas:
                self.be_patient()  # without replicas there are no failovers to wait for

    def be_patient(self) -> None:
        """Raise the timeout after which a silent node counts as failed."""
        for node in self.nodes:
            node.admin.config_set("cluster-node-timeout", PATIENT_MS)
            node.settings["cluster-node-timeout"] = str(PATIENT_MS)  # also after a restart

    def _join(self, masters: Sequence[ClusterNode], replicas: Sequence[ClusterNode]) -> None:
        for number, master in enumerate(masters):
            start, end = SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1
            master.admin.execute_command("CLUSTER", "ADDSLOTSRANGE", start, end)
            master.admin.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        wait_until(self._met, "all nodes have met", timeout=60)
        for number, replica in enumerate(replicas):
            replica.admin.execute_command("CLUSTER", "REPLICATE", masters[number % 3].id)
        wait_until(self.whole, "the cluster is up", timeout=60)

    def _met(self) -> bool:
        """Return whether all nodes know each other, and repeat handshakes that timed out.

        On a busy machine a handshake may take longer than its limit of one second. Then one side or both forget it. The other
        nodes learn of each other by gossip.
        """
        known = {node.id: node.met() for node in self.nodes}
        first, *others = self.nodes
        for node in others:
            if node.id not in known[first.id] or first.id not in known[node.id]:
                place = ("127.0.0.1", node.settings.get("tls-port", node.port), node.settings["cluster-port"])
                first.admin.execute_command("CLUSTER", "MEET", *place)
        return all(ids == known.keys() for ids in known.values())

    @property
    def url(self) -> str:
        ports = [node.settings.get("tls-port", node.port) for node in self.nodes[:3]]
        nodes = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"redis+cluster://{nodes}" if self._tls is None else f"rediss+cluster://{nodes}?{self._tls.options()}"

    def whole(self) -> bool:
        """Return whether all hash slots are served and every replica follows its master."""
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            if any(node.knows()["cluster_state"] != "ok" for node in self.nodes):
                return False
            roles = [
                node.admin.execute_command("ROLE") for node in self.nodes
            ]  # ask each node once, because roles may change meanwhile
            masters = [role for role in roles if role[0] == b"master"]
            followed = all(role[3] == b"connected" for role in roles if role[0] == b"slave")
            return followed and sum(len(role[2]) for role in masters) == len(self.nodes) - 3
        return False

    def master_of(self, key: str) -> ClusterNode:
        """Return the node that says that it serves a key.

        Other nodes may learn of a failover or a resharding seconds later. If two nodes claim the key, the one with the later epoch
        is right, because the other one has not learned of the change yet.
        """
        claims = [node for node in self.nodes if node.serves(slot_of(key))]
        if not claims:
            raise AssertionError(f"nobody serves {key}")
        return max(claims, key=lambda node: int(node.knows()["cluster_my_epoch"]))

    def replica_of(self, master: ClusterNode) -> ClusterNode:
        for node in self.nodes:
            role = node.admin.execute_command("ROLE") if node.answers else [b""]
            if role[0] == b"slave" and role[2] == master.port:
                return node
        raise AssertionError("the master has no replica")

    def replaced(self, key: str, old: Server) -> bool:
        """Return whether another master serves a key."""
        with contextlib.suppress(AssertionError, redis.ConnectionError, redis.TimeoutError):
            return self.master_of(key) is not old
        return False

    def hand_over(self, key: str) -> None:
        """Request a failover: a replica becomes the master, and the old master becomes a replica."""
        wait_until(self.whole, "the previous failover is over", timeout=60)
        master = self.master_of(key)
        replica = self.replica_of(master)
        # After a failover the new master needs a moment to learn of its replica, and ignores it until then.
        wait_until(lambda: replica.is_master() or master.has(replica), "the master knows its replica", timeout=60)
        asked = 0.0

        def over() -> bool:
            nonlocal asked
            if replica.is_master():
                return True
            # On a busy machine votes may come too late, and then the server does not retry. A repeated request is one failover.
            if time.monotonic() - asked > MANUAL_SECONDS + 1:
                asked = time.monotonic()
                with contextlib.suppress(
                    redis.ResponseError
                ):  # the replica has just become the master, or does not see its master
                    replica.admin.execute_command("CLUSTER", "FAILOVER")
            return False

        wait_until(over, "the replica has taken over", timeout=60)

    def reshard(self, key: str, batch: int = 10, *, at_once: bool = False) -> ClusterNode:
        """Move the hash slot of a key to another master and return that master.

        The keys are moved one by one, as redis-cli does, or all at once, as Valkey 9 can.
        """
        slot, source = slot_of(key), self.master_of(key)
        target = next(node for node in self.nodes if node.is_master() and node is not source)
        if at_once:
            source.admin.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
            wait_until(lambda: self.master_of(key) is target, "the slot has moved", timeout=30)
            return target
        target.assign(slot, "IMPORTING", source)
        source.assign(slot, "MIGRATING", target)
        while keys := source.admin.execute_command("CLUSTER", "GETKEYSINSLOT", slot, batch):
            source.admin.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        for node in (target, source, *(node for node in self.nodes if node.is_master())):
            node.assign(slot, "NODE", target)
        return target

    def close(self) -> None:
        for node in self.nodes:
            node.close()


class Sentinel:
    """One sentinel process."""

    def __init__(
        self, kind: Kind, directory: Path, master: str, lines: Sequence[str] = (), password: str | None = None,
        host: Host = HERE,
    ) -> None:  # fmt: skip
        """Start a sentinel. `master` is the address and port of the master, as in the configuration file of a sentinel."""
        self.port, self.tls_port = free_port(), free_port()
        self._directory = directory
        settings = [
            f"port {self.port}", f"bind {bound(host)}", f"dir {directory}", f"sentinel monitor {SERVICE} {master} 2",
            f"sentinel down-after-milliseconds {SERVICE} {SILENT_MS}", f"sentinel failover-timeout {SERVICE} 5000",
            *(line.format(tls_port=self.tls_port) for line in lines),
        ]  # fmt: skip
        self._file = directory / "sentinel.conf"
        self._file.write_text("\n".join(settings) + "\n")
        with (directory / "log").open("ab") as log:
            command = [*host.enter, binary(kind) or "", str(self._file), "--sentinel"]
            self._process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)
        # This client never retries, so a failover is requested only once.
        self.admin = redis.Redis(
            host.aside, self.port, retry=Retry(NoBackoff(), 0), protocol=2, socket_timeout=10, password=password
        )
        try:
            wait_until(self._answers, "the sentinel answers")
        except BaseException:
            self.close()  # the caller gets no reference and could not stop it
            raise

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._directory / "log").read_text()[-2000:]
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            return bool(self.admin.ping())
        return False

    def _state(self) -> dict[bytes, bytes]:
        flat = self.admin.execute_command("SENTINEL", "MASTER", SERVICE)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def sees(self, replicas: int, sentinels: int) -> bool:
        state = self._state()
        return int(state[b"num-slaves"]) == replicas and int(state[b"num-other-sentinels"]) == sentinels

    def master(self) -> int:
        return int(self.admin.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def resting_with(self) -> int | None:
        """Return the port of the master if the sentinel has finished its failovers, otherwise None.

        A sentinel whose new master dies during a failover keeps naming it until it returns. Port and flags come from one reply,
        because the end of a failover changes both.
        """
        state = self._state()
        return int(state[b"port"]) if state[b"flags"] == b"master" else None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self.admin.close()


@dataclass(frozen=True)
class Guard:
    """The security settings of a Sentinel group: TLS, the password of the servers and the password of the sentinels."""

    tls: Certificates | None = None
    password: str | None = None
    sentinel_password: str | None = None

    def settings(self) -> dict[str, str]:
        """Return the settings of a server."""
        words = {"requirepass": self.password, "masterauth": self.password} if self.password else {}
        return words | ({"tls-port": str(free_port()), **self.tls.settings()} if self.tls else {})

    def lines(self) -> list[str]:
        """Return the lines for the configuration file of a sentinel."""
        lines = [f"sentinel auth-pass {SERVICE} {self.password}"] if self.password else []
        if self.sentinel_password:
            lines += [f"requirepass {self.sentinel_password}", f"sentinel sentinel-pass {self.sentinel_password}"]
        if self.tls:
            lines += ["tls-port {tls_port}", *(f"{name} {value}" for name, value in self.tls.settings().items())]
        return lines


class Group:
    """A master, two replicas and three sentinels, on three hosts with a server and a sentinel each or all on this host."""

    def __init__(
        self, kind: Kind, directory: Path, settings: Mapping[str, str] | None = None, guard: Guard | None = None,
        hosts: Sequence[Host] = (HERE, HERE, HERE),
    ) -> None:  # fmt: skip
        self._guard = guard = guard or Guard()
        self.hosts = hosts
        self.servers: list[Server] = []
        self.sentinels: list[Sentinel] = []
        with _closed_on_failure(self):
            given = {"repl-diskless-sync-delay": "0", **(settings or {})}
            for n, host in enumerate(hosts):
                (place := directory / f"server-{n}").mkdir()
                self.servers.append(Server(kind, place, {**given, **guard.settings()}, host))
            first = self.servers[0]
            master = (first.host.address, first.settings.get("tls-port", first.port))
            for replica in self.servers[1:]:
                replica.admin.execute_command("REPLICAOF", *master)
            for n, host in enumerate(hosts):
                (place := directory / f"sentinel-{n}").mkdir()
                watched, password = f"{master[0]} {master[1]}", guard.sentinel_password
                self.sentinels.append(Sentinel(kind, place, watched, guard.lines(), password, host))
            wait_until(
                lambda: all(s.sees(replicas=2, sentinels=2) for s in self.sentinels), "the group is up", timeout=60
            )
            wait_until(self.whole, "the replicas follow", timeout=60)

    def be_patient(self) -> None:
        """Raise the timeout after which a silent master counts as failed."""
        for sentinel in self.sentinels:
            sentinel.admin.execute_command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", PATIENT_MS)

    @property
    def url(self) -> str:
        guard = self._guard
        ports = [sentinel.tls_port if guard.tls else sentinel.port for sentinel in self.sentinels]
        hosts = ",".join(f"{host.address}:{port}" for host, port in zip(self.hosts, ports, strict=True))
        login = f":{guard.password}@" if guard.password else ""
        options = [guard.tls.options()] if guard.tls else []
        options += [f"sentinel_password={guard.sentinel_password}"] if guard.sentinel_password else []
        scheme = "rediss+sentinel" if guard.tls else "redis+sentinel"
        return f"{scheme}://{login}{hosts}/{SERVICE}/0" + (f"?{'&'.join(options)}" if options else "")

    @property
    def master(self) -> Server:
        """The master that most sentinels name."""
        port = Counter(sentinel.master() for sentinel in self.sentinels).most_common(1)[0][0]
        return next(s for s in self.servers if port in (s.port, int(s.settings.get("tls-port", s.port))))

    def replicas(self) -> int:
        """Return the number of replicas of the master, or 0 if it has just become a replica itself."""
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            role = self.master.admin.execute_command("ROLE")
            return len(role[2]) if role[0] == b"master" else 0
        return 0

    def whole(self) -> bool:
        """Return whether the sentinels agree on a master and all other servers follow it."""
        return self._agreed() and self.replicas() == 2

    def _agreed(self) -> bool:
        masters = {sentinel.resting_with() for sentinel in self.sentinels}
        return len(masters) == 1 and None not in masters

    def hand_over(self, key: str = "") -> None:
        """Request a failover.

        With Valkey the failover is coordinated: the old master stops accepting writes first. With Redis the old master continues
        for seconds with the replicas that it still has.
        """
        wait_until(self._agreed, "the sentinels have finished the previous failover", timeout=60)
        old, asked = self.master, self.sentinels[0]
        before = asked.master()
        how = ["COORDINATED"] if old.kind == "valkey" else []
        wait_until(lambda: self._failover(how), "a failover has begun", timeout=60)

        def over() -> bool:
            if self.failed_over(old):
                return True
            # On a busy machine votes may come too late, and then the sentinels do not retry a failover. The sentinel that was
            # asked knows this. Other sentinels may still name the old master after a successful failover.
            if asked.resting_with() == before:
                self._failover(how)
            return False

        wait_until(over, "another master is there", timeout=60)

    def _failover(self, how: Sequence[str]) -> bool:
        """Ask for a failover and return whether it has begun."""
        try:
            return bool(self.sentinels[0].admin.execute_command("SENTINEL", "FAILOVER", SERVICE, *how))
        except redis.ResponseError as error:
            if str(error).startswith(("INPROG", "NOGOODSLAVE")):
                return False
            raise

    def replaced(self, key: str, old: Server) -> bool:
        return self.failed_over(old)

    def failed_over(self, old: Server) -> bool:
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            master = self.master
            return master is not old and master.admin.execute_command("ROLE")[0] == b"master"
        return False

    def close(self) -> None:
        for sentinel in self.sentinels:
            sentinel.close()
        for server in self.servers:
            server.close()


@contextlib.contextmanager
def _closed_on_failure(made: Cluster | Group) -> Iterator[None]:
    try:
        yield
    except BaseException:
        made.close()
        raise
