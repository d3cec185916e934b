"""The rights that each role needs on a server, as the arguments of ACL SETUSER.

A role needs rights for the commands that it sends, and for the commands inside the scripts that it calls. The scripts of a role and
the commands in them are read from the Lua files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from coordinator.errors import BadOption
from coordinator.model.names import name
from coordinator.store.script import Script
from coordinator.store.scripts import SCRIPTS

CONNECTION = ("select", "eval", "evalsha", "info", "time", "wait", "role", "cluster|slots")
_FEED = ("client|tracking", "hello", "ping")  # with which the server reports changes of runs
_FACTS = ("hget", "hgetall")  # of the namespace
# For lists and counts of runs, queues, workers and schedules.
_LISTS = (*_FACTS, "hkeys", "hmget", "scard", "srandmember", "sscan", "zcard", "zcount", "zrange", "zrank")
_GRAPHS = ("hexists", "hscan", "smembers", "zrange")  # of graphs of LangGraph: copies and pruning
_SESSIONS = ("lrange",)  # of sessions of the OpenAI Agents SDK
# The commands that each role sends besides its scripts.
_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "producer": (*_LISTS, *_FEED, *_GRAPHS, *_SESSIONS, "blpop", "lpop", "xrange", "xread"),
    "worker": (*_FACTS, *_GRAPHS, *_SESSIONS, "blpop", "hmget", "scard", "zcard", "zscan"),
    "coordinator": (*_LISTS, "blpop", "exists", "scan", "sscan", "type", "zscan"),
    "read-only": (*_LISTS, *_FEED, "hexists", "xrange", "xread"),
}

# For each role the scripts that it calls, as their heads say, and its other commands.
ROLES: Mapping[str, tuple[tuple[Script, ...], tuple[str, ...]]] = {
    role: (tuple(script for script in SCRIPTS if role in script.roles), commands)
    for role, commands in _COMMANDS.items()
}


def commands_of(scripts: Iterable[Script]) -> set[str]:
    """Return the names of the server commands that the scripts call, directly or through `try` and `write` (see lua/shared)."""
    called = re.compile(r"(?:redis\.p?call|\btry|\bwrite)\('([A-Za-z]+)'")
    return {found.lower() for script in scripts for found in called.findall(script.text)}


def acl(role: str, namespace: str) -> list[str]:
    """Return the arguments of ACL SETUSER for a role. The password is a placeholder.

    Args:
        role: A role, or several that one process has, for example `worker+coordinator`.
        namespace: The namespace to which the rights are limited.

    Raises:
        BadOption: If there is no such role.
    """
    commands = {*CONNECTION}
    for one in role.split("+"):
        if one not in ROLES:
            raise BadOption(f"unknown role {one!r}: the roles are {', '.join(ROLES)}")
        scripts, besides = ROLES[one]
        commands |= {*besides, *commands_of(scripts)}
    keys = f"~{{{name(namespace, 'namespace')}:*}}*"
    user = f"{namespace}-{role.replace('+', '-')}"
    return [user, "reset", "on", ">PASSWORD", keys, *(f"+{command}" for command in sorted(commands))]
