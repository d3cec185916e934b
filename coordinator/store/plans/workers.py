"""Plans of worker processes: join, leave, heartbeat, claim, load."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from coordinator.store.keys import Keys
from coordinator.store.replies import text, word
from coordinator.store.script import Request, fail_fast
from coordinator.store.scripts import CLAIM, HEARTBEAT, JOIN, LEAVE, LOAD

MOST_CHUNKS = 500  # of a checkpoint in one page


@dataclass(frozen=True, slots=True)
class Membership:
    """What a worker says of itself when it joins."""

    worker: str
    lease_ms: int
    host: str
    pid: int
    started: str
    fleet: str
    code: str
    slots: int
    routes: tuple[str, ...]
    mark: str = ""  # of its process, among all that ever were on a machine


def join(keys: Keys, birth: str, member: Membership, now: str = "") -> Generator[Request, Any, str]:
    reply = yield JOIN.call(
        keys.at, now=now, birth=birth, worker=member.worker, lease=member.lease_ms, host=member.host, pid=member.pid,
        started=member.started, fleet=member.fleet, code=member.code, slots=member.slots, routes=" ".join(member.routes),
        mark=member.mark,
    )  # fmt: skip
    return word(reply)


def leave(keys: Keys, worker: str) -> Generator[Request, Any, list[tuple[str, str]]]:
    """What is still owned, as (id, token); nothing where the worker has left."""
    while True:
        reply = yield LEAVE.call(keys.at, worker=worker)
        if word(reply) == "ok":
            return []
        if owned := _id_tokens(reply[1]):
            return owned


def _id_tokens(flat: Sequence[Any]) -> list[tuple[str, str]]:
    return [(text(flat[i]), text(flat[i + 1])) for i in range(0, len(flat), 2)]


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """What a heartbeat tells: runs to cancel, held ones that are lost, runs that are owned and were not held, a wish to drain."""

    cancels: tuple[str, ...] = ()
    lost: tuple[tuple[str, str], ...] = ()
    strays: tuple[tuple[str, str], ...] = ()
    drain: str = ""


def heartbeat(
    keys: Keys, worker: str, *, lease_ms: int, floor: int, held: Sequence[tuple[str, str]] | None = None,
    memory: int = 0, now: str = "",
) -> Generator[Request, Any, HeartbeatReply | None]:  # fmt: skip
    """None: the worker is gone. `held` compares what it holds with what it owns; `memory` is what its process takes, in bytes."""
    reply = yield HEARTBEAT.call(
        keys.at, held or (), now=now, worker=worker, lease=lease_ms, floor=floor, memory=memory, compare=int(held is not None)
    )  # fmt: skip
    if word(reply) == "gone":
        return None
    cancels, lost, strays, drain = reply[1:]
    return HeartbeatReply(tuple(map(text, cancels)), tuple(_id_tokens(lost)), tuple(_id_tokens(strays)), text(drain))


class Claimed(NamedTuple):
    """A run as it was claimed. `checkpoint` is None, its parts (ckpt fields, message chunks), or 'paged'; `spent` is
    what it has used up of its deadlines, `killed` the failure that a critic ended its life before with."""

    id: str
    token: str
    route: str
    spec: bytes
    cause: str
    counters: str
    prev: str
    checkpoint: Any
    suspect: bool
    spent: str = ""
    killed: bytes = b""


def claim(
    keys: Keys, worker: str, *, number: int, want: int, routes: Sequence[str], alone: bool, outdated: bool = False,
    inline: int = 64 * 1024, budget: int = 1024 * 1024, now: str = "",
) -> Generator[Request, Any, tuple[str, list[Claimed]]]:  # fmt: skip
    """(word, runs): ok, suspect, left, old, expired, gone. An outdated worker leaves what was released in the last second to
    others; `left` says that it did, and took nothing."""
    call = CLAIM.call(
        keys.at, [(route,) for route in routes], now=now, worker=worker, number=number, want=want, alone=int(alone),
        outdated=int(outdated), inline=inline, budget=budget,
    )  # fmt: skip
    reply = yield fail_fast(call)  # its places are of use in other partitions
    answer = word(reply)
    if answer not in ("ok", "suspect"):
        return answer, []
    return answer, [_claimed(row, answer == "suspect") for row in reply[1]]


def _claimed(row: Sequence[Any], suspect: bool) -> Claimed:
    id, token, route, spec, cause, counters, prev, spent, killed, checkpoint = row
    if isinstance(checkpoint, bytes):
        checkpoint = "paged"
    return Claimed(
        id.decode(),
        token.decode(),
        route.decode(errors="replace"),
        spec,
        cause.decode(errors="replace"),
        counters.decode(),
        prev.decode(errors="replace"),
        checkpoint,
        suspect,
        spent.decode(errors="replace"),
        killed,
    )


def load(keys: Keys, id: str, token: str, page_bytes: int = 1024 * 1024) -> Generator[Request, Any, Any]:
    """The parts of a checkpoint, page by page: (ckpt fields, chunks), flat as HGETALL does; or why not."""
    reply = yield LOAD.call(keys.at, id=id, token=token, page="head", room=page_bytes)
    if word(reply) != "ok":
        return word(reply)
    fields = sorted(int(text(field)) for field in reply[2])
    chunks: list[Any] = []
    while fields:
        page = [(field,) for field in fields[:MOST_CHUNKS]]
        part = yield LOAD.call(keys.at, page, id=id, token=token, page="chunks", room=page_bytes)
        if word(part) != "ok":
            return word(part)
        for field, chunk in zip(fields, part[1], strict=False):  # it answers fewer than asked for where they are large
            chunks += [str(field).encode(), chunk]
        fields = fields[len(part[1]) :]
    return [reply[1], chunks]
