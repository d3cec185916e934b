"""The rights that each role needs on a server, and no more: as one ACL SETUSER for each.

What a script does inside it needs rights, too: they are read from the scripts themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from coordinator.errors import BadOption
from coordinator.model.run import name
from coordinator.store.plans import runs as plans
from coordinator.store.script import Script

CONNECTION = ("select", "eval", "evalsha", "info", "time", "wait", "role", "cluster|slots")
_FACTS = ("hget", "hgetall")  # what the namespace is, and whether it is still the same
# runs, lines, workers and schedules, as lists and as counts
_LISTS = (*_FACTS, "hmget", "scard", "srandmember", "sscan", "zcard", "zcount", "zrange", "zrank")
_LOOKING = (plans.VIEW,)
_OF_ENDED = "hexists"  # in wait, which tells the result of an ended run, and writes only for one that goes on
_PRODUCING = (
    plans.FOUND, plans.ENQUEUE, plans.WAIT, plans.CANCEL, plans.REVIVE, plans.DISCARD, plans.PAUSE, plans.UNPAUSE, plans.SCHEDULE,
    plans.PAUSE_SCHEDULE, plans.UNSCHEDULE, plans.FELL,
)  # fmt: skip
_WORKING = (
    plans.FOUND, plans.JOIN, plans.LEAVE, plans.HEARTBEAT, plans.CLAIM, plans.LOAD, plans.CHECKPOINT, plans.COMPLETE, plans.FAIL,
    plans.RETRY, plans.RELEASE, plans.REJECT, plans.NOTE, plans.RING, plans.ABANDON, plans.RECORD_SAVE, plans.RECORD_LOAD,
    plans.RECORD_DELETE, plans.RECORD_LIST, plans.RECORD_CLAIM, plans.RECORD_KEEP, plans.LOCK, plans.UNLOCK, plans.SUPERVISE,
    plans.ROLL, plans.ROLL_PART, plans.DRAIN, plans.EXTEND, plans.KILL,
)  # fmt: skip
_COORDINATING = (
    plans.FOUND, plans.JUDGE, plans.RECOVER, plans.DUE, plans.RING, plans.LOCK, plans.TRIM, plans.FIRE, plans.UPCOMING,
    plans.POSTPONE, plans.EXAMINE, plans.EXAMINE_ENTRIES, plans.EXAMINE_KEYS, plans.MEND_RUN, plans.MEND_ENTRY, plans.MEND_KEY,
    plans.MEND_TYPE, plans.CAP,
)  # fmt: skip

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
