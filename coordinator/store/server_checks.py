"""What is looked at before a server is trusted with runs: version, role, eviction, memory, and whether it keeps what it is given.

`findings` is pure and says it in sentences; a refusal names the command that mends it. Each master of a Cluster is looked at.
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
class Finding:
    """Something about the server; `refused`: it can't be used like this."""

    sentence: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a server is held against. To found a namespace asks for more than to go on with it."""

    durability: str = "local"
    founding: bool = False
    followed: bool = False  # a Sentinel group or a Cluster: where the master is now is found out anew
    between: tuple[float, float] | None = None  # this machine's time before it was asked and after the answer


def examine(
    address: Address,
    namespace: str,
    durability: str | None = None,
    now: Callable[[], float] | None = None,
    partitions: int | None = None,
) -> Generator[Request | list[Request], Any, list[Finding]]:
    """What is found; nothing is written. The namespace's own facts count, else those that it would be founded with."""
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
    level = known.get("durability") or durability or "local"
    followed = address.kind != "one"
    wanted = Wanted(level, founding=not known, followed=followed, between=between)
    lines = _lines(info)
    if followed and _is_replica(
        lines
    ):  # the answer about the facts came from the new master: by now it is known where it is
        (info, fsync, clock), between = yield from _timed(_look(keys.at), now)
        lines, wanted = _lines(info), replace(wanted, between=between)
    found = findings(lines, _setting(fsync), wanted, _time(clock))
    if followed and lines is not None and lines.get("cluster_enabled") == "1":
        space = Namespace(namespace, int(known.get("partitions", partitions or 1)), level)
        found += yield from _other_nodes(space, wanted, now)
    return found


def _timed(
    requests: list[Request], now: Callable[[], float] | None
) -> Generator[list[Request], Any, tuple[list[Any], tuple[float, float] | None]]:
    """The replies, and the times between which they were given: an answer may take seconds, and is no wrong clock then."""
    before = 0.0 if now is None else now()
    replies = yield requests
    return replies, None if now is None else (before, now())


def _look(at: str, *, fail_fast: bool = False) -> list[Request]:
    return [Command(at, command, fail_fast=fail_fast) for command in _QUESTIONS]


def _other_nodes(
    space: Namespace, wanted: Wanted, now: Callable[[], float] | None
) -> Generator[list[Request], Any, list[Finding]]:
    """The other masters of a Cluster, whether or not they have partitions: a slot may be moved to any. One that can't be reached
    keeps nobody from the others."""
    others = yield from every_master(space)
    others.pop("the node of partition 0", None)
    replies, between = yield from _timed(
        [question for at in others.values() for question in _look(at, fail_fast=True)], now
    )
    wanted = replace(wanted, between=between)
    found: list[Finding] = []
    for number, name in enumerate(others):
        info, fsync, clock = replies[number * len(_QUESTIONS) :][: len(_QUESTIONS)]
        if isinstance(info, (Unreachable, Unconfirmed)):
            reason = str(info).partition(";")[0]
            found.append(Finding(f"{name} can't be reached, and the runs that it has wait: {reason}"))
            continue
        its = findings(_lines(info), _setting(fsync), wanted, _time(clock))
        found += [replace(finding, sentence=f"on {name}: {finding.sentence}") for finding in its]
    return found


def refuse(found: list[Finding]) -> None:
    """Raises the first refusal."""
    for finding in found:
        if finding.refused:
            raise NotConfigured(finding.sentence)


def _lines(info: Any) -> dict[str, str] | None:
    """The fields of INFO; None where the server does not tell."""
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
) -> list[Finding]:
    """What is wrong or worth a warning."""
    found = _skew(clock, wanted.between)
    if info is None:
        return [
            Finding("the server does not let this user run INFO: its role, eviction and persistence were not checked"),
            *found,
        ]
    if wanted.followed and _is_replica(info):
        # a failover: what is sent to this node is sent on, and its settings are those of one who is just filling up again
        return [*_role(info, wanted), *found]
    return [
        *_version(info), *_role(info, wanted), *_lonely(info, wanted), *_eviction(info), *_memory(info),
        *_persistence(info, appendfsync, wanted.durability), *_replicas(info, wanted), *found,
    ]  # fmt: skip


def _version(info: Mapping[str, str]) -> list[Finding]:
    product = "valkey" if "valkey_version" in info else "redis"
    version = info.get(f"{product}_version", "")
    oldest = OLDEST[product]
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers and numbers < oldest:
        return [
            Finding(
                f"the server is {product} {version}: version {oldest[0]}.{oldest[1]} or newer is needed", refused=True
            )
        ]
    return []


def _role(info: Mapping[str, str], wanted: Wanted) -> list[Finding]:
    """In a failover the node that is asked may have been made a replica a moment ago: what is sent to it then is sent on."""
    if not _is_replica(info):
        return []
    master = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
    if wanted.followed:
        return [Finding(f"the node that was asked is a replica of {master} by now: a failover is followed")]
    return [
        Finding(
            f"the server is a replica of {master} and takes no writes: use "
            "the address of its primary, or promote it with REPLICAOF NO ONE",
            refused=True,
        )
    ]


def _lonely(info: Mapping[str, str], wanted: Wanted) -> list[Finding]:
    if wanted.followed or info.get("cluster_enabled") != "1":
        return []
    return [
        Finding(
            "the server is a node of a Cluster, and the URL is one of a server that stands alone: neither a failover nor a slot "
            "that moves is followed; use redis+cluster://"
        )
    ]


def _eviction(info: Mapping[str, str]) -> list[Finding]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return []
    return [
        Finding(
            f"the server may evict runs when its memory is full (maxmemory-policy {policy}): "
            "CONFIG SET maxmemory-policy noeviction",
            refused=True,
        )
    ]


def _memory(info: Mapping[str, str]) -> list[Finding]:
    used, limit = int(info.get("used_memory", "0")), int(info.get("maxmemory", "0"))
    system = int(info.get("total_system_memory", "0"))
    if limit and used > LITTLE_MEMORY * limit:
        return [
            Finding(
                f"{used / limit:.0%} of the server's memory are in use, and full it takes no more runs: "
                "CONFIG SET maxmemory to more, or let runs end"
            )
        ]
    if not limit and system and used > LITTLE_MEMORY * system:
        return [
            Finding(
                f"the server uses {used / system:.0%} of its machine's memory and has no limit, so that it may be killed: "
                "CONFIG SET maxmemory, or give it more"
            )
        ]
    return []


def _skew(clock: float | None, between: tuple[float, float] | None) -> list[Finding]:
    if clock is None or between is None:
        return []
    skew = clock - min(max(clock, between[0]), between[1])
    if abs(skew) <= CLOCK_SKEW:
        return []
    ahead = "ahead of" if skew > 0 else "behind"
    return [
        Finding(
            f"the server's clock is {abs(skew):.0f} s {ahead} this machine's: times that are given as such (at=, schedules) "
            "follow the server; let both follow NTP"
        )
    ]


def _persistence(info: Mapping[str, str], appendfsync: str | None, durability: str) -> list[Finding]:
    if durability == "none":
        return []
    if info.get("aof_enabled", "1") != "1":
        return [
            Finding(
                f"the namespace promises durability {durability!r}, and the server's append-only file is off: "
                "CONFIG SET appendonly yes, or found the namespace with 'coordinator init --durability none'",
                refused=True,
            )
        ]
    found = []
    if info.get("aof_last_write_status", "ok") != "ok":
        found.append(Finding("the server's last write to its append-only file failed: look at its disk"))
    if durability == "synced" and appendfsync is None:
        found.append(
            Finding("the server hides its settings (CONFIG): whether appendfsync is always, as promised, is unknown")
        )
    elif durability == "synced" and appendfsync != "always":
        found.append(
            Finding(
                f"the namespace promises durability 'synced', and the server has appendfsync {appendfsync}: "
                "CONFIG SET appendfsync always",
                refused=True,
            )
        )
    return found


def _replicas(info: Mapping[str, str], wanted: Wanted) -> list[Finding]:
    """Too few replicas are a reason not to found, and not one to stay away: they may be coming back."""
    needed, there = replicas_of(wanted.durability), int(info.get("connected_slaves", "0"))
    if wanted.founding and 0 < needed < there:
        return [
            Finding(
                f"the server has {there} replicas, and {wanted.durability} waits for {needed} of them: what is confirmed "
                "survives the loss of the master, and not a failover while it lives (SENTINEL FAILOVER, or hasty sentinels), nor "
                f"its being cut off with some of its replicas; replicated({there}) survives those, too, and waits for all"
            )
        ]
    if there >= needed:
        return []
    start = "CLUSTER REPLICATE" if info.get("cluster_enabled") == "1" else "REPLICAOF"
    return [
        Finding(
            f"the namespace promises {needed} replicas ({wanted.durability}), and {there} are connected: until they are, "
            f"nothing is confirmed; start them with {start}",
            refused=wanted.founding,
        )
    ]


def of_address(address: Address) -> list[Finding]:
    """What the address alone tells."""
    open_hosts = [node.host for node in address.nodes if not _is_local(node.host)]
    if address.tls or not open_hosts:
        return []
    return [
        Finding(
            f"what goes to {open_hosts[0]} can be read on its way, the password too: use {address.scheme.replace('redis', 'rediss', 1)}://"
        )
    ]


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# ---- entering ------------------------------------------------------------------------------------------------------------


def enter(settings: Settings) -> Generator[Request | list[Request], Any, Namespace]:
    """The namespace, on a server that can be trusted with it. What is worth a warning is logged."""
    if settings.address.scheme != "memory":
        found = yield from examine(settings.address, settings.namespace, now=SystemClock().now)
        refuse(found)
        for finding in [*of_address(settings.address), *found]:
            logger.warning("%s", finding.sentence)
    namespace = yield from namespace_plans.create(settings.namespace, birth=uuid4().hex)
    return namespace
