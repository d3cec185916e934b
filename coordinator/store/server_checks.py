"""Check a server before runs are stored on it, and open a namespace. Each master of a Cluster is checked.

server_requirements.py decides which answers of the server are problems.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any
from uuid import uuid4

from coordinator.clock import SystemClock
from coordinator.config import Settings
from coordinator.errors import NotConfigured, Unconfirmed, Unreachable
from coordinator.model.address import Address
from coordinator.store.keys import Keys, Namespace
from coordinator.store.nodes import every_master
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.replies import pairs, text
from coordinator.store.script import Command, Request, read
from coordinator.store.server_requirements import ServerProblem, Wanted, findings, is_replica, of_address

logger = logging.getLogger(__name__)
_QUESTIONS = (("INFO",), ("CONFIG", "GET", "appendfsync"), ("TIME",))


def examine(
    address: Address,
    namespace: str,
    durability: str | None = None,
    now: Callable[[], float] | None = None,
    partitions: int | None = None,
) -> Generator[Request | list[Request], Any, list[ServerProblem]]:
    """Check the server, and return its problems. Nothing is written.

    Args:
        address: The server.
        namespace: The namespace. If it exists, its own durability and partitions count.
        durability: The durability with which the namespace would be created.
        now: This machine's clock, which is compared with the server's; None to skip that check.
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
    if followed and is_replica(lines):
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
    """Send requests. Return the replies, and this machine's time before and after; None for the times if `now` is None.

    Both times are needed, because a reply may take seconds, which must not count as a wrong clock.
    """
    before = 0.0 if now is None else now()
    replies = yield requests
    return replies, None if now is None else (before, now())


def _look(at: str, *, fail_fast: bool = False) -> list[Request]:
    return [Command(at, command, fail_fast=fail_fast) for command in _QUESTIONS]


def _other_nodes(
    space: Namespace, wanted: Wanted, now: Callable[[], float] | None
) -> Generator[list[Request], Any, list[ServerProblem]]:
    """Check the masters of a Cluster except that of partition 0, and return their problems. A hash slot may move to any of them.

    A master that can't be reached is a problem too, and the others are still checked.
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
    """Check that no problem prevents the use of the server.

    Raises:
        NotConfigured: The server can't be used. The message describes the first problem.
    """
    for finding in found:
        if finding.refused:
            raise NotConfigured(finding.sentence)


def _lines(info: Any) -> dict[str, str] | None:
    """Return the fields of the reply to INFO; None if the user may not run INFO."""
    if isinstance(info, Exception):
        return None
    return dict(line.split(":", 1) for line in text(info).splitlines() if ":" in line)


def _setting(reply: Any) -> str | None:
    if isinstance(reply, Exception) or not reply:
        return None
    return text(reply[1])


def _time(reply: Any) -> float | None:
    return None if isinstance(reply, Exception) else int(reply[0]) + int(reply[1]) / 1e6


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
