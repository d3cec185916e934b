"""The rights that each role needs on a server, and no more: as one ACL SETUSER for each.

What a script does inside it needs rights, too: they are read from the scripts themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from coordinator.errors import BadOption
from coordinator.model.run import name
from coordinator.store import scripts
from coordinator.store.script import Script

CONNECTION = ("select", "eval", "evalsha", "info", "time", "wait", "role", "cluster|slots")
_FACTS = ("hget", "hgetall")  # what the namespace is, and whether it is still the same
# runs, lines, workers and schedules, as lists and as counts
_LISTS = (*_FACTS, "hmget", "scard", "srandmember", "sscan", "zcard", "zcount", "zrange", "zrank")
_LOOKING = (scripts.VIEW,)
_OF_ENDED = "hexists"  # in wait, which tells the result of an ended run, and writes only for one that goes on
_PRODUCING = (
    scripts.FOUND,
    scripts.ENQUEUE,
    scripts.WAIT,
    scripts.CANCEL,
    scripts.REVIVE,
    scripts.DISCARD,
    scripts.PAUSE,
    scripts.UNPAUSE,
    scripts.SCHEDULE,
    scripts.PAUSE_SCHEDULE,
    scripts.UNSCHEDULE,
    scripts.FELL,
)
_WORKING = (
    scripts.FOUND,
    scripts.JOIN,
    scripts.LEAVE,
    scripts.HEARTBEAT,
    scripts.CLAIM,
    scripts.LOAD,
    scripts.CHECKPOINT,
    scripts.COMPLETE,
    scripts.FAIL,
    scripts.RETRY,
    scripts.RELEASE,
    scripts.REJECT,
    scripts.NOTE,
    scripts.RING,
    scripts.ABANDON,
    scripts.RECORD_SAVE,
    scripts.RECORD_LOAD,
    scripts.RECORD_DELETE,
    scripts.RECORD_LIST,
    scripts.RECORD_CLAIM,
    scripts.RECORD_KEEP,
    scripts.LOCK,
    scripts.UNLOCK,
    scripts.SUPERVISE,
    scripts.ROLL,
    scripts.ROLL_PART,
    scripts.DRAIN,
    scripts.EXTEND,
    scripts.KILL,
)
_COORDINATING = (
    scripts.FOUND,
    scripts.JUDGE,
    scripts.RECOVER,
    scripts.DUE,
    scripts.RING,
    scripts.LOCK,
    scripts.TRIM,
    scripts.FIRE,
    scripts.UPCOMING,
    scripts.POSTPONE,
    scripts.EXAMINE,
    scripts.EXAMINE_ENTRIES,
    scripts.EXAMINE_KEYS,
    scripts.MEND_RUN,
    scripts.MEND_ENTRY,
    scripts.MEND_KEY,
    scripts.MEND_TYPE,
    scripts.CAP,
)

# role: the scripts it calls, and the commands that it sends besides
ROLES: Mapping[str, tuple[tuple[Script, ...], tuple[str, ...]]] = {
    "producer": ((*_LOOKING, *_PRODUCING), (*_LISTS, "blpop", "lpop")),
    "worker": (_WORKING, (*_FACTS, "blpop", "hmget", "scard", "smembers", "zcard", "zrange", "zscan")),
    "coordinator": (_COORDINATING, (*_FACTS, "blpop", "scan", "sscan", "type", "zscan")),
    "read-only": (_LOOKING, (*_LISTS, _OF_ENDED)),
}


def commands_of(scripts: Iterable[Script]) -> set[str]:
    """What some scripts call, also by their own function `ask` (see lua/_examine.lua)."""
    called = re.compile(r"(?:redis\.p?call|\bask)\('([A-Za-z]+)'")
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
