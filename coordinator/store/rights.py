"""The rights that each role needs on a server, and no more: as one ACL SETUSER for each.

What a script does inside it needs rights, too: they are read from the scripts themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from coordinator.errors import BadOption
from coordinator.model.run import name
from coordinator.store.script import Script
from coordinator.store.scripts import SCRIPTS

CONNECTION = ("select", "eval", "evalsha", "info", "time", "wait", "role", "cluster|slots")
_FACTS = ("hget", "hgetall")  # what the namespace is, and whether it is still the same
# runs, lines, workers and schedules, as lists and as counts
_LISTS = (*_FACTS, "hmget", "scard", "srandmember", "sscan", "zcard", "zcount", "zrange", "zrank")
# The commands that each role sends besides its scripts.
_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "producer": (*_LISTS, "blpop", "lpop"),
    "worker": (*_FACTS, "blpop", "hmget", "scard", "smembers", "zcard", "zrange", "zscan"),
    "coordinator": (*_FACTS, "blpop", "scan", "sscan", "type", "zscan"),
    "read-only": (*_LISTS, "hexists"),
}

# For each role the scripts that it calls, as their heads say, and its other commands.
ROLES: Mapping[str, tuple[tuple[Script, ...], tuple[str, ...]]] = {
    role: (tuple(script for script in SCRIPTS if role in script.roles), commands)
    for role, commands in _COMMANDS.items()
}


def commands_of(scripts: Iterable[Script]) -> set[str]:
    """What some scripts call, also by their own function `ask` (see lua/shared/examine.lua)."""
    called = re.compile(r"(?:redis\.p?call|\btry|\bwrite)\('([A-Za-z]+)'")
    return {found.lower() for script in scripts for found in called.findall(script.text)}


def acl(role: str, namespace: str) -> list[str]:
    """The words of ACL SETUSER for a role in one namespace, or for several that one process has, as `worker+coordinator`; the
    password is to be filled in."""
    commands = {*CONNECTION}
    for one in role.split("+"):
        if one not in ROLES:
            raise BadOption(f"role {one!r} is none of {', '.join(ROLES)}")
        scripts, besides = ROLES[one]
        commands |= {*besides, *commands_of(scripts)}
    keys = f"~{{{name(namespace, 'namespace')}:*}}*"
    user = f"{namespace}-{role.replace('+', '-')}"
    return [user, "reset", "on", ">PASSWORD", keys, *(f"+{command}" for command in sorted(commands))]
