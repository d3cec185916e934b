"""Check a server before it is trusted with runs: version, role, eviction, memory, persistence, replicas and clock.

`findings` is pure and returns sentences. A sentence that refuses the server names the command that fixes it. Each master of a
Cluster is checked.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from coordinator.clock import SystemClock
from coordinator.config import Settings
from coordinator.errors import NotConfigured, Unconfirmed, Unreachable
from coordinator.model.address import Address
from coordinator.model.durability import replicas_of
from coordinator.store.keys import Keys, Namespace
from coordinator.store.nodes import every_master
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.replies import pairs, text
from coordinator.store.script import Command, Request, read

logger = logging.getLogger(__name__)
OLDEST = {"redis": (7, 0), "valkey": (7, 2)}
LITTLE_MEMORY = 0.8
CLOCK_SKEW = 2.0
_QUESTIONS = (("INFO",), ("CONFIG", "GET", "appendfsync"), ("TIME",))


@dataclass(frozen=True, slots=True)
class ServerProblem:
    """A sentence about the server. If `refused` is True, the server can't be used as it is."""

    sentence: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the server must fulfil.

    Attributes:
        durability: The durability level of the namespace.
        creating: The namespace does not exist yet. Creating it asks for more than using it.
        followed: The server is a Sentinel group or a Cluster, so the transport follows its master.
        between: This machine's time before the question and after the answer; None to skip the check of the clock.
    """

    durability: str = "local"
    creating: bool = False
    followed: bool = False
    between: tuple[float, float] | None = None


def examine(
    address: Address,
    namespace: str,
    durability: str | None = None,
    now: Callable[[], float] | None = None,
    partitions: int | None = None,
) -> Generator[Request | list[Request], Any, list[ServerProblem]]:
    """Check the server, and return what was found. Nothing is written.

    Args:
        address: The server.
        namespace: The namespace. If it exists, its own durability and partitions count.
        durability: The durability with which the namespace would be created.
        now: This machine's clock, to compare the server's with; None to skip that.
        partitions: The number of partitions with which the namespace would be created.

    Raises:
        Unreachable: The server can't be reached.
        NotConfigured: The namespace has a stored format that this version can't read.
    """
    keys = Keys(namespace, 0)
    (info, fsync, clock, facts), between = yield from _timed(
        [*_look(keys.at), read(keys.at, "HGETALL", keys.namespace())], now
    )
    for answer in (info, fsync, facts):
        if isinstance(answer, (Unreachable, Unconfirmed)):
            raise Unreachable(str(answer).partition(";")[0])
    if isinstance(facts, Exception):
        raise facts
    known = {field: text(value) for field, value in pairs(facts).items()}
    if known:
        namespace_plans.check_format(namespace, known)
    level = known.get("durability") or durability or "local"
    followed = address.kind != "one"
    wanted = Wanted(level, creating=not known, followed=followed, between=between)
    lines = _lines(info)
    if followed and _is_replica(lines):
        # There was a failover. The answer about the facts came from the new master, so the next questions go there.
        (info, fsync, clock), between = yield from _timed(_look(keys.at), now)
        lines, wanted = _lines(info), replace(wanted, between=between)
    found = findings(lines, _setting(fsync), wanted, _time(clock))
    if isinstance(clock, NotConfigured):
        found.append(ServerProblem(str(clock), refused=True))  # scripts take their time from the server
    if followed and lines is not None and lines.get("cluster_enabled") == "1":
        space = Namespace(namespace, int(known.get("partitions", partitions or 1)), level)
        found += yield from _other_nodes(space, wanted, now)
    return found


def _timed(
    requests: list[Request], now: Callable[[], float] | None
) -> Generator[list[Request], Any, tuple[list[Any], tuple[float, float] | None]]:
    """Return the replies, and this machine's time before and after them.

    An answer may take seconds, which must not count as a wrong clock.
    """
    before = 0.0 if now is None else now()
    replies = yield requests
    return replies, None if now is None else (before, now())


def _look(at: str, *, fail_fast: bool = False) -> list[Request]:
    return [Command(at, command, fail_fast=fail_fast) for command in _QUESTIONS]


def _other_nodes(
    space: Namespace, wanted: Wanted, now: Callable[[], float] | None
) -> Generator[list[Request], Any, list[ServerProblem]]:
    """Check the other masters of a Cluster, with partitions or without: a hash slot may move to any of them.

    A master that can't be reached is a finding, and the others are still checked.
    """
    others = yield from every_master(space)
    others.pop("the node of partition 0", None)
    replies, between = yield from _timed(
        [question for at in others.values() for question in _look(at, fail_fast=True)], now
    )
    wanted = replace(wanted, between=between)
    found: list[ServerProblem] = []
    for number, name in enumerate(others):
        info, fsync, clock = replies[number * len(_QUESTIONS) :][: len(_QUESTIONS)]
        if isinstance(info, (Unreachable, Unconfirmed)):
            reason = str(info).partition(";")[0]
            found.append(ServerProblem(f"{name} can't be reached; its runs wait until it is back: {reason}"))
            continue
        its = findings(_lines(info), _setting(fsync), wanted, _time(clock))
        found += [replace(finding, sentence=f"on {name}: {finding.sentence}") for finding in its]
    return found


def refuse(found: list[ServerProblem]) -> None:
    """Raise NotConfigured for the first finding that refuses the server, if there is one."""
    for finding in found:
        if finding.refused:
            raise NotConfigured(finding.sentence)


def _lines(info: Any) -> dict[str, str] | None:
    """Return the fields of INFO; None if the user may not run it."""
    if isinstance(info, Exception):
        return None
    return dict(line.split(":", 1) for line in text(info).splitlines() if ":" in line)


def _is_replica(lines: Mapping[str, str] | None) -> bool:
    return lines is not None and lines.get("role", "master") != "master"


def _setting(reply: Any) -> str | None:
    if isinstance(reply, Exception) or not reply:
        return None
    return text(reply[1])


def _time(reply: Any) -> float | None:
    return None if isinstance(reply, Exception) else int(reply[0]) + int(reply[1]) / 1e6


# ---- pure ----------------------------------------------------------------------------------------------------------------


def findings(
    info: Mapping[str, str] | None, appendfsync: str | None, wanted: Wanted, clock: float | None = None
) -> list[ServerProblem]:
    """Return what is wrong with a server, or worth a warning.

    Args:
        info: The fields of INFO; None if the user may not run it.
        appendfsync: The setting of that name; None if it is not known.
        wanted: What the server must fulfil.
        clock: The server's time; None if it is not known.
    """
    found = _skew(clock, wanted.between)
    if info is None:
        return [
            ServerProblem(
                "the server does not let this user run INFO: its role, eviction and persistence were not checked"
            ),
            *found,
        ]
    if wanted.followed and _is_replica(info):
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
    if not _is_replica(info):
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
    """Return how to change a setting of the server."""
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
    if durability in ("none", "managed"):  # nothing is promised, or the server's operator promises it
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
    """Refuse to create a namespace with too few replicas. An existing one may be used: the replicas may come back."""
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
    """Return what the address alone shows: whether the connection is encrypted."""
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


# ---- opening a namespace -------------------------------------------------------------------------------------------------------


def enter(settings: Settings) -> Generator[Request | list[Request], Any, Namespace]:
    """Check the server, log the warnings, create the namespace if it does not exist, and return it.

    Raises:
        NotConfigured: The server can't be used as it is.
    """
    if settings.address.scheme != "memory":
        found = yield from examine(settings.address, settings.namespace, now=SystemClock().now)
        refuse(found)
        for finding in [*of_address(settings.address), *found]:
            logger.warning("%s", finding.sentence)
    namespace = yield from namespace_plans.create(settings.namespace, birth=uuid4().hex)
    return namespace
