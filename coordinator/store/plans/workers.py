"""Plans of worker processes: join, leave, heartbeat, claim, load."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from coordinator.model import features
from coordinator.store.keys import Keys
from coordinator.store.replies import require_all, text, word
from coordinator.store.script import Request, fail_fast, read
from coordinator.store.scripts import CLAIM, HEARTBEAT, JOIN, LEAVE, LOAD

MOST_PROCESSES = 10_000  # the largest number of workers and coordinators whose features are checked
MOST_CHUNKS = 500  # chunks of messages that one page of a checkpoint asks for


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """The facts about a worker that the server stores when the worker joins."""

    worker: str
    lease_ms: int
    host: str
    pid: int
    started: str
    fleet: str
    code: str
    slots: int
    routes: tuple[str, ...]
    mark: str = (
        ""  # the process mark, which distinguishes the process from every other process that ever ran on the machine
    )
    knows: tuple[str, ...] = features.KNOWN
    limits: str = ""  # the limits of its handlers, see coordinator/model/policies/groups.py
    budgets: str = ""  # the budgets of its handlers, see coordinator/model/policies/budget.py


def join(keys: Keys, birth: str, member: WorkerRecord, now: str = "") -> Generator[Request, Any, str]:
    """Register a worker in a partition.

    Args:
        keys: The keys of the partition.
        birth: The birth mark of the namespace, which the script compares.
        member: The facts about the worker.
        now: The time in ms, for namespaces with the test clock.

    Returns:
        The answer word of join.lua: ok, gone (the worker has left or was declared lost) or mismatch (another birth mark).
    """
    reply = yield JOIN.call(
        keys.at, now=now, birth=birth, worker=member.worker, lease=member.lease_ms, host=member.host, pid=member.pid,
        started=member.started, fleet=member.fleet, code=member.code, slots=member.slots, routes=" ".join(member.routes),
        mark=member.mark, knows=" ".join(member.knows), limits=member.limits,
        budgets=member.budgets,
    )  # fmt: skip
    return word(reply)


def leave(keys: Keys, worker: str) -> Generator[Request, Any, list[tuple[str, str]]]:
    """Remove a worker from a partition.

    Returns:
        The runs that the worker still owns, as (id, token). The worker must release these runs first. The list is empty if the
        worker has left.
    """
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
    """The server's answer to a heartbeat.

    Attributes:
        cancels: Runs that the worker must cancel.
        lost: Runs, as (id, token), that the worker executes but no longer owns.
        strays: Runs, as (id, token), that the worker owns but does not execute.
        drain: Not empty if the worker was asked to drain.
    """

    cancels: tuple[str, ...] = ()
    lost: tuple[tuple[str, str], ...] = ()
    strays: tuple[tuple[str, str], ...] = ()
    drain: str = ""


def heartbeat(
    keys: Keys, worker: str, *, lease_ms: int, floor: int, held: Sequence[tuple[str, str]] | None = None,
    memory: int = 0, stuck: Sequence[str] = (), loading: Mapping[str, int] | None = None,
    limited: Mapping[str, str] | None = None, now: str = "",
) -> Generator[Request, Any, HeartbeatReply | None]:  # fmt: skip
    """Renew the lease of a worker, and report its state.

    Args:
        keys: The keys of the partition.
        worker: The worker.
        lease_ms: How long the lease lasts from now, in milliseconds.
        floor: Claims up to this number take no runs, because the worker does not wait for their replies any more.
        held: The runs that the worker executes, as (id, token). The server compares them with the runs that the worker owns.
            None to compare nothing.
        memory: The memory of the worker's process, in bytes.
        stuck: Runs that the worker does not own any more but whose handlers do not stop, for status displays.
        loading: Runs whose checkpoints the worker is loading, with the number of failed loads, for status displays.
        limited: Runs whose calls wait for a rate, with its name and the time in ms as `name:since`, for status displays.
        now: The time in ms, for namespaces with the test clock.

    Returns:
        The answer, or None if the worker is gone.
    """
    reply = yield HEARTBEAT.call(
        keys.at, held or (), now=now, worker=worker, lease=lease_ms, floor=floor, memory=memory, stuck=" ".join(stuck),
        loading=" ".join(f"{id}:{failures}" for id, failures in (loading or {}).items()),
        limited=" ".join(f"{id}:{wait}" for id, wait in (limited or {}).items()), compare=int(held is not None),
    )  # fmt: skip
    if word(reply) == "gone":
        return None
    cancels, lost, strays, drain = reply[1:]
    return HeartbeatReply(tuple(map(text, cancels)), tuple(_id_tokens(lost)), tuple(_id_tokens(strays)), text(drain))


def read_loss(keys: Keys, run: str, worker: str) -> Generator[list[Request], Any, tuple[bytes, float, float]]:
    """Return facts about the loss of a run: its story, when its last worker was last seen, and the lease of that worker.

    Args:
        keys: The keys of the partition.
        run: The id of the run.
        worker: The worker that had the run before.

    Returns:
        The stored story, the Unix time of the worker's last heartbeat (0 if the server has forgotten the worker), and the length
        of its lease in seconds.
    """
    story, (seen, lease) = require_all(
        (
            yield [
                read(keys.at, "HGET", keys.run(run), "story"),
                read(keys.at, "HMGET", keys.worker(worker), "seen", "lease"),
            ]
        )
    )
    return story or b"", int(seen or 0) / 1000, int(lease or 0) / 1000


class Claimed(NamedTuple):
    """A run that a claim has given to the worker. The other attributes are stored fields of the run (see store/formats.py).

    Attributes:
        checkpoint: The parts of the checkpoint (ckpt fields, message chunks and, if the run has some, effects); 'paged' if they are
            too large for the answer and must be loaded; None if there are none.
        suspect: True if the run must be alone in its process.
        spent: The time of the run that counts for its deadlines, encoded.
        spend: What the run has spent of its budget, encoded.
        killed: The error of the deadline at which the previous life of the run was killed, encoded; empty if it was not killed.
        none_left: True if the claim has left no run waiting on the worker's routes.
    """

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
    spend: str = ""
    none_left: bool = False


def claim(
    keys: Keys, worker: str, *, number: int, want: int, routes: Sequence[str], alone: bool, outdated: bool = False,
    inline: int = 64 * 1024, budget: int = 1024 * 1024, now: str = "",
) -> Generator[Request, Any, tuple[str, list[Claimed]]]:  # fmt: skip
    """Claim runs for a worker.

    Args:
        keys: The keys of the partition.
        worker: The worker.
        number: The number of the claim. A repeated number gets the same answer.
        want: How many runs the worker has slots for.
        routes: The routes that the worker listens to.
        alone: True if the worker holds no run, so that it may take a suspect.
        outdated: True if newer code is being rolled out. Then the worker does not take runs that were released in the last second.
        inline: The largest checkpoint, in bytes, that the answer may contain.
        budget: The largest size of all specs and checkpoints in the answer, in bytes. The first run is taken whatever its size.
        now: The time in ms, for namespaces with the test clock.

    Returns:
        The answer word and the runs. The words are ok, suspect (one run, which must be alone), left (the only runs that wait are
        reserved for workers with newer code), old (the worker has made a later claim, or does not wait for this one any more),
        expired (the worker's lease has expired) and gone (the worker has left or was declared lost).
    """
    call = CLAIM.call(
        keys.at, [(route,) for route in routes], now=now, worker=worker, number=number, want=want, alone=int(alone),
        outdated=int(outdated), inline=inline, budget=budget,
    )  # fmt: skip
    reply = yield fail_fast(call)  # during an outage the worker can use its slots in other partitions
    answer = word(reply)
    if answer not in ("ok", "suspect"):
        return answer, []
    suspect, none_left = answer == "suspect", len(reply) > 2 and reply[2] == 0
    return answer, [_claimed(row, suspect, none_left) for row in reply[1]]


def _claimed(row: Sequence[Any], suspect: bool, none_left: bool) -> Claimed:
    id, token, route, spec, cause, counters, prev, spent, killed, checkpoint = row
    if isinstance(checkpoint, bytes):
        checkpoint = "paged"
    spent, _, spend = spent.decode(errors="replace").partition("|")
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
        spent,
        killed,
        spend,
        none_left,
    )


def load(keys: Keys, id: str, token: str, page_bytes: int = 1024 * 1024) -> Generator[Request, Any, Any]:
    """Load the checkpoint of a run, in pages of about `page_bytes` bytes.

    Returns:
        The parts of the checkpoint, `[ckpt fields, message chunks, effects]`, each a flat list as HGETALL returns it; or the answer
        word `fenced`, `unreadable` or `lost` (the run has effects, and they can't be read).
    """
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
        for field, chunk in zip(fields, part[1], strict=False):  # a page of large chunks has fewer than were asked for
            chunks += [str(field).encode(), chunk]
        fields = fields[len(part[1]) :]
    return [reply[1], chunks, reply[3]]


def find_process_without(keys: Keys, feature: str) -> Generator[Request | list[Request], Any, str | None]:
    """Return a phrase that names a live worker or coordinator of the partition without a feature; None if all support it."""
    workers, coordinators = require_all(
        (
            yield [
                read(keys.at, "ZRANGE", keys.workers(), 0, MOST_PROCESSES - 1),
                read(keys.at, "ZRANGE", keys.coordinators(), 0, MOST_PROCESSES - 1),
            ]
        )
    )
    for name in map(text, coordinators):
        id, known = features.split_announced(name)
        if feature not in known:
            return f"coordinator {id}"
    fields = ("knows", "host", "pid", "condemned", "joined")
    rows = require_all((yield [read(keys.at, "HMGET", keys.worker(text(worker)), *fields) for worker in workers]))
    for worker, (knows, host, pid, condemned, joined) in zip(workers, rows, strict=True):
        # A worker that was declared lost takes no more runs, and a record without `joined` belongs to a worker that has just left.
        if joined and not condemned and feature not in text(knows or b"").split():
            return f"worker {text(worker)} (process {text(pid or b'')} on {text(host or b'')})"
    return None
