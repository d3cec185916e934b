"""The requirements on a server: version, role, eviction, memory, persistence, replicas and clock. This module does no I/O.

Each function returns problems as sentences. If a problem makes the server unusable, its sentence names the command that fixes it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from coordinator.model.address import Address
from coordinator.model.durability import replicas_of

OLDEST = {"redis": (7, 0), "valkey": (7, 2)}
LITTLE_MEMORY = 0.8
CLOCK_SKEW = 2.0


@dataclass(frozen=True, slots=True)
class ServerProblem:
    """A problem of the server, as a sentence. If `refused` is True, the server can't be used until the problem is fixed."""

    sentence: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """The facts about the namespace and the server that determine what the server must offer.

    Attributes:
        durability: The durability level of the namespace.
        creating: True if the namespace does not exist yet. Creating a namespace requires more than using one.
        followed: True if the server is a Sentinel group or a Cluster, so that the transport follows its master.
        between: This machine's time before the server was asked for its time, and after the answer. None skips the clock check.
    """

    durability: str = "local"
    creating: bool = False
    followed: bool = False
    between: tuple[float, float] | None = None


def is_replica(lines: Mapping[str, str] | None) -> bool:
    """Return True if the fields of INFO describe a replica."""
    return lines is not None and lines.get("role", "master") != "master"


def findings(
    info: Mapping[str, str] | None, appendfsync: str | None, wanted: Wanted, clock: float | None = None
) -> list[ServerProblem]:
    """Return the problems of a server, including problems that only cause a warning.

    Args:
        info: The fields of INFO; None if the user may not run INFO.
        appendfsync: The setting of that name; None if it is not known.
        wanted: The facts about the namespace and the server that determine what the server must offer.
        clock: The server's time as a Unix time in seconds; None if it is not known.
    """
    found = _skew(clock, wanted.between)
    if info is None:
        return [
            ServerProblem(
                "the server does not let this user run INFO: its role, eviction and persistence were not checked"
            ),
            *found,
        ]
    if wanted.followed and is_replica(info):
        # During a failover the other settings of this node do not count: the transport finds the new master.
        return [*_role(info, wanted), *found]
    can_configure = appendfsync is not None
    return [
        *_version(info), *_role(info, wanted), *_lonely(info, wanted), *_eviction(info, can_configure),
        *_memory(info, can_configure),
        *_persistence(info, appendfsync, wanted.durability), *_replicas(info, wanted), *found,
    ]  # fmt: skip


def _version(info: Mapping[str, str]) -> list[ServerProblem]:
    product = "valkey" if "valkey_version" in info else "redis"
    version = info.get(f"{product}_version", "")
    oldest = OLDEST[product]
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers and numbers < oldest:
        return [
            ServerProblem(
                f"the server is {product} {version}: version {oldest[0]}.{oldest[1]} or newer is needed", refused=True
            )
        ]
    return []


def _role(info: Mapping[str, str], wanted: Wanted) -> list[ServerProblem]:
    if not is_replica(info):
        return []
    master = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
    if wanted.followed:
        return [
            ServerProblem(
                f"the node that was asked is now a replica of {master}: there was a failover, and the client follows it"
            )
        ]
    return [
        ServerProblem(
            f"the server is a replica of {master} and accepts no writes: use "
            "the address of its primary, or promote it with REPLICAOF NO ONE",
            refused=True,
        )
    ]


def _lonely(info: Mapping[str, str], wanted: Wanted) -> list[ServerProblem]:
    if wanted.followed or info.get("cluster_enabled") != "1":
        return []
    return [
        ServerProblem(
            "the server is a node of a Cluster, but the URL is that of a single server: the client follows neither a failover nor "
            "a hash slot that moves; use redis+cluster://"
        )
    ]


def _remedy(setting: str, can_configure: bool) -> str:
    """Return an instruction that tells the user how to change a setting of the server."""
    if can_configure:
        return f"CONFIG SET {setting}"
    return f"let its administrator set {setting} (this user may not run CONFIG; a managed server has parameters for it)"


def _eviction(info: Mapping[str, str], can_configure: bool) -> list[ServerProblem]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return []
    return [
        ServerProblem(
            f"the server may evict runs when its memory is full (maxmemory-policy {policy}): "
            f"{_remedy('maxmemory-policy noeviction', can_configure)}",
            refused=True,
        )
    ]


def _memory(info: Mapping[str, str], can_configure: bool) -> list[ServerProblem]:
    used, limit = int(info.get("used_memory", "0")), int(info.get("maxmemory", "0"))
    system = int(info.get("total_system_memory", "0"))
    if limit and used > LITTLE_MEMORY * limit:
        return [
            ServerProblem(
                f"{used / limit:.0%} of the server's memory is in use; when it is full, the server accepts no more runs: "
                f"{_remedy('maxmemory to more', can_configure)}, or let runs end"
            )
        ]
    if not limit and system and used > LITTLE_MEMORY * system:
        return [
            ServerProblem(
                f"the server uses {used / system:.0%} of its machine's memory and has no limit, so the system may kill it: "
                f"{_remedy('maxmemory', can_configure)}, or add memory"
            )
        ]
    return []


def _skew(clock: float | None, between: tuple[float, float] | None) -> list[ServerProblem]:
    if clock is None or between is None:
        return []
    skew = clock - min(max(clock, between[0]), between[1])
    if abs(skew) <= CLOCK_SKEW:
        return []
    ahead = "ahead of" if skew > 0 else "behind"
    return [
        ServerProblem(
            f"the server's clock is {abs(skew):.0f} s {ahead} this machine's: absolute times (at=, schedules) follow the "
            "server's clock; synchronize both with NTP"
        )
    ]


def _persistence(info: Mapping[str, str], appendfsync: str | None, durability: str) -> list[ServerProblem]:
    if durability in (
        "none",
        "managed",
    ):  # the namespace promises no durability, or the server's operator guarantees it
        return []
    if info.get("aof_enabled", "1") != "1":
        return [
            ServerProblem(
                f"the namespace promises durability {durability!r}, but the server's append-only file is off: "
                f"{_remedy('appendonly yes', appendfsync is not None)}, or create the namespace with 'coordinator init "
                "--durability none', or with '--durability managed' if the server keeps its data durable in another way "
                "(as Amazon MemoryDB does)",
                refused=True,
            )
        ]
    found = []
    if info.get("aof_last_write_status", "ok") != "ok":
        found.append(ServerProblem("the server's last write to its append-only file failed: check its disk"))
    if durability == "synced" and appendfsync is None:
        found.append(
            ServerProblem(
                "the server does not let this user run CONFIG GET: whether appendfsync is always, as promised, was not checked"
            )
        )
    elif durability == "synced" and appendfsync != "always":
        found.append(
            ServerProblem(
                f"the namespace promises durability 'synced', but the server has appendfsync {appendfsync}: "
                f"{_remedy('appendfsync always', can_configure=True)}",
                refused=True,
            )
        )
    return found


def _replicas(info: Mapping[str, str], wanted: Wanted) -> list[ServerProblem]:
    """Return the problem of a server with too few replicas, or with more replicas than a write waits for.

    With too few replicas, a new namespace is refused. An existing namespace may be used, because the replicas may come back.
    """
    needed, there = replicas_of(wanted.durability), int(info.get("connected_slaves", "0"))
    if wanted.creating and 0 < needed < there:
        return [
            ServerProblem(
                f"the server has {there} replicas, and {wanted.durability} waits for {needed} of them: confirmed writes survive "
                "the loss of the master, but not a failover while the master lives (SENTINEL FAILOVER, or a short "
                "down-after-milliseconds), nor a partition that cuts off the master with some of its replicas; "
                f"replicated({there}) waits for all replicas and survives those too"
            )
        ]
    if there >= needed:
        return []
    start = "CLUSTER REPLICATE" if info.get("cluster_enabled") == "1" else "REPLICAOF"
    return [
        ServerProblem(
            f"the namespace promises {needed} replicas ({wanted.durability}), but {there} are connected: no write is confirmed "
            f"until they are; start them with {start}",
            refused=wanted.creating,
        )
    ]


def of_address(address: Address) -> list[ServerProblem]:
    """Return a problem if the connection to the address is not encrypted; an empty list if it is encrypted or local."""
    open_hosts = [node.host for node in address.nodes if not _is_local(node.host)]
    if address.tls or not open_hosts:
        return []
    return [
        ServerProblem(
            f"the connection to {open_hosts[0]} is not encrypted, so others can read runs and the password: "
            f"use {address.scheme.replace('redis', 'rediss', 1)}://"
        )
    ]


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
