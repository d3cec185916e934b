"""Check which roles a user of the server has, by running one script of each role in a way that changes nothing.

A user may have the right to run INFO and HGETALL but not EVALSHA. So correct settings do not prove that the user can run scripts.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from coordinator.errors import NotConfigured, Unconfirmed, Unreachable
from coordinator.store.keys import Keys
from coordinator.store.script import Request
from coordinator.store.scripts import HEARTBEAT, UPCOMING, VIEW, WAIT
from coordinator.store.server_requirements import ServerProblem

NOBODY = "0" * 32  # the id of a run, worker or client that does not exist


def examine_roles(namespace: str) -> Generator[list[Request], Any, tuple[list[str], list[ServerProblem]]]:
    """Run one script of each role, with ids of a run and a worker that do not exist, so that nothing is changed.

    Returns:
        The roles whose script could be run, and the problems. Missing rights for some roles are not a problem, because a user may
        have only one role.

    Raises:
        Unreachable: The server can't be reached.
    """
    at = Keys(namespace, 0).at
    probes: dict[str, Request] = {
        "producer": WAIT.call(at, id=NOBODY, client=NOBODY, ttl=1, blocks=""),
        "worker": HEARTBEAT.call(
            at, now="", worker=NOBODY, lease=1, floor=0, memory=0, stuck="", loading="", limited="", compare=0
        ),
        "coordinator": UPCOMING.call(at, now="", batch=0),
        "read-only": VIEW.call(at, id=NOBODY),
    }
    replies = dict(zip(probes, (yield list(probes.values())), strict=True))
    roles, refusals, found = [], list[str](), list[ServerProblem]()
    for role, reply in replies.items():
        if isinstance(reply, (Unreachable, Unconfirmed)):
            raise Unreachable(str(reply).partition(";")[0])
        if not isinstance(reply, Exception):
            roles.append(role)
        elif isinstance(reply, NotConfigured) and "lacks rights" in str(reply):
            refusals.append(str(reply))
        else:
            found.append(ServerProblem(str(reply), refused=True))
    if refusals and not roles:
        found.append(ServerProblem(f"no role can be used: {refusals[0]}", refused=True))
    return roles, list(dict.fromkeys(found))  # the scripts of all roles may fail for the same reason
