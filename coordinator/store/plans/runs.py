"""Operations as plans: generators that yield requests and are fed the replies. No client, no clock, no await.

The two drivers of wire.py carry them, so that sync and async have one meaning. A plan that yields a list gets a list, in which a
request that failed stands as its error. `now` is for namespaces with the test clock; elsewhere the server's time counts.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from coordinator.encoding.seal import sealed
from coordinator.errors import NotConfigured, Unconfirmed, Unreachable
from coordinator.model.run import partition_of
from coordinator.model.story import brief
from coordinator.store.keys import Keys, Namespace
from coordinator.store.script import Call, Request, Script, hasty, read

FORMAT = "1"
WAITER_TTL = 20_000
MOST_CHUNKS = 500  # of a checkpoint in one page

FOUND, ENQUEUE, VIEW, WAIT = Script("found"), Script("enqueue"), Script("view"), Script("wait")
CONFIRM = Script("confirm")  # called by the wire
JOIN, LEAVE, HEARTBEAT, CLAIM, LOAD = (
    Script("join"),
    Script("leave"),
    Script("heartbeat"),
    Script("claim"),
    Script("load"),
)
CHECKPOINT, COMPLETE, FAIL, RETRY = Script("checkpoint"), Script("complete"), Script("fail"), Script("retry")
RELEASE, REJECT, CANCEL, REVIVE = Script("release"), Script("reject"), Script("cancel"), Script("revive")
JUDGE, RECOVER, ABANDON, DUE = Script("judge"), Script("recover"), Script("abandon"), Script("due")
RING, LOCK, TRIM, NOTE = Script("ring"), Script("lock"), Script("trim"), Script("note")
EXTEND, KILL = Script("extend"), Script("kill")
RECORD_SAVE, RECORD_LOAD, RECORD_DELETE = Script("record_save"), Script("record_load"), Script("record_delete")
RECORD_LIST, RECORD_CLAIM, RECORD_KEEP = Script("record_list"), Script("record_claim"), Script("record_keep")
DISCARD, PAUSE, UNPAUSE, FELL = Script("discard"), Script("pause"), Script("unpause"), Script("fell")
CAP = Script("cap")
EXAMINE, EXAMINE_ENTRIES, EXAMINE_KEYS = Script("examine"), Script("examine_entries"), Script("examine_keys")
MEND_RUN, MEND_ENTRY, MEND_KEY, MEND_TYPE = (
    Script("mend_run"),
    Script("mend_entry"),
    Script("mend_key"),
    Script("mend_type"),
)
FIRE, UPCOMING, POSTPONE = Script("fire"), Script("upcoming"), Script("postpone")
ROLL, ROLL_PART, SUPERVISE = Script("roll"), Script("roll_part"), Script("supervise")
UNLOCK, DRAIN = Script("unlock"), Script("drain")
SCHEDULE, PAUSE_SCHEDULE, UNSCHEDULE = Script("schedule"), Script("pause_schedule"), Script("unschedule")
SCRIPTS = (
    FOUND, ENQUEUE, VIEW, WAIT, JOIN, LEAVE, HEARTBEAT, CLAIM, LOAD, CHECKPOINT, COMPLETE, FAIL, RETRY, RELEASE, REJECT, CANCEL,
    CONFIRM, REVIVE, JUDGE, RECOVER, ABANDON, DUE, RING, LOCK, TRIM, NOTE, EXTEND, KILL,
    RECORD_SAVE, RECORD_LOAD, RECORD_DELETE, RECORD_LIST, RECORD_CLAIM, RECORD_KEEP,
    FIRE, UPCOMING, POSTPONE, SCHEDULE, PAUSE_SCHEDULE, UNSCHEDULE,
    CAP, FELL, DISCARD, PAUSE, UNPAUSE, EXAMINE, EXAMINE_ENTRIES, EXAMINE_KEYS, MEND_RUN, MEND_ENTRY, MEND_KEY, MEND_TYPE,
    ROLL, ROLL_PART, SUPERVISE, UNLOCK, DRAIN,
)  # fmt: skip


def text(value: Any) -> str:
    """A word or a name from a reply."""
    return value.decode() if isinstance(value, bytes) else str(value)


def word(reply: Any) -> str:
    """The word that a script answered with."""
    return text(reply[0] if isinstance(reply, list) else reply)


def pairs(flat: Sequence[Any]) -> dict[str, Any]:
    """A flat list of fields and values."""
    return {text(flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}


# ---- the namespace -----------------------------------------------------------------------------------------------------


def known(name: str) -> Generator[Request, Any, Namespace | None]:
    """The facts of a namespace, if it was founded. Nothing is written: whoever may only read comes this way, too."""
    reply = yield read(Keys(name, 0).at, "HGETALL", Keys(name, 0).namespace())
    return _namespace(name, pairs(reply)) if reply else None


def _namespace(name: str, facts: Mapping[str, Any]) -> Namespace:
    if text(facts["format"]) != FORMAT:
        raise NotConfigured(f"namespace {name!r} has format {text(facts['format'])}, and this version reads {FORMAT}")
    return Namespace(name, int(facts["partitions"]), text(facts["durability"]), text(facts["birth"]))


def found(
    name: str, *, birth: str, partitions: int | None = None, durability: str | None = None, clock: str = "server"
) -> Generator[Request | list[Request], Any, Namespace]:
    """The facts of a namespace; the first user fixes them. Asking for others than it has is refused. A partition that can't be
    reached is left to who comes there first: it answers that it does not know the namespace."""
    asked = durability or "local"
    if durability is not None and (there := (yield from known(name))) is not None:
        _same(there, partitions, durability)  # before it is written, and waited for replicas that it does not promise
    first = yield _found(Keys(name, 0, asked), birth, partitions or 1, asked, clock)
    facts = pairs(first[1])
    have = _namespace(name, facts)
    if have.keys(0).at.replicas > Keys(name, 0, asked).at.replicas:  # what was read is to be as sure as what is written
        yield _found(have.keys(0), have.birth, have.partitions, have.durability, text(facts["clock"]))
    _same(have, partitions, durability)
    yield from _copy(have, text(facts["clock"]))
    return have


def _same(have: Namespace, partitions: int | None, durability: str | None) -> None:
    if partitions is not None and partitions != have.partitions:
        raise NotConfigured(
            f"namespace {have.name!r} has {have.partitions} partitions for good, not {partitions}: use another namespace"
        )
    if durability is not None and durability != have.durability:
        raise NotConfigured(f"namespace {have.name!r} has durability {have.durability!r}, not {durability!r}")


def found_copies(name: str, birth: str) -> Generator[Request | list[Request], Any, bool]:
    """Where a partition does not know the namespace: whether it was only not there when others were founded, and knows it now."""
    facts = pairs((yield read(Keys(name, 0).at, "HGETALL", Keys(name, 0).namespace())))
    if not facts or text(facts["birth"]) != birth:
        return False
    yield from _copy(_namespace(name, facts), text(facts["clock"]))
    return True


def _copy(have: Namespace, clock: str) -> Generator[list[Request], Any, None]:
    """The facts in each partition. Those that can't be reached are left out."""
    copies: list[Request] = [
        hasty(_found(keys, have.birth, have.partitions, have.durability, clock)) for keys in have.everywhere()[1:]
    ]
    replies = (yield copies) if copies else []
    for reply in replies:
        if isinstance(reply, Exception) and not isinstance(reply, (Unreachable, Unconfirmed)):
            raise reply


def birth(keys: Keys) -> Generator[Request, Any, str]:
    """The mark that the namespace was founded with; empty where it was not."""
    reply = yield read(keys.at, "HGET", keys.namespace(), "birth")
    return text(reply or "")


def _found(keys: Keys, birth: str, partitions: int, durability: str, clock: str) -> Call:
    return FOUND.call(keys.at, format=FORMAT, partitions=partitions, durability=durability, birth=birth, clock=clock)


# ---- producers ---------------------------------------------------------------------------------------------------------


class NewRun(NamedTuple):
    """A run on its way to the server, in the order of enqueue.lua. Times in ms; `due` is absolute, or '+1500'."""

    id: str
    route: str
    spec: bytes
    priority: int = 0
    due: str = ""
    expires: str = ""
    once: str = ""
    digest: str = ""
    key_ttl: str = "-"
    retention: str = ""
    parent: str = ""


def enqueue(
    namespace: Namespace, runs: Iterable[NewRun], now: str = "", *, in_haste: bool = False
) -> Generator[list[Request], Any, list[Any]]:
    """For each run: (word, id), or the error. One may share a call with others; many are one call for each partition. In haste, a
    partition that can't be reached is not waited for."""
    fixed = (now, namespace.birth)  # in the order of the script's head, as NewRun is: producers are in a hurry here
    runs = list(runs)
    if len(runs) == 1:
        replies = yield [Call(ENQUEUE, _at(namespace, runs[0]), fixed, (runs[0],), runs[0].id, in_haste)]
        return [_enqueued(runs[0], replies[0])]
    if namespace.partitions == 1:
        (replies,) = yield [Call(ENQUEUE, _tag(namespace, 0), fixed, tuple(runs), None, in_haste)]
        return _each_enqueued(runs, replies)
    parts: dict[str, list[NewRun]] = {}
    for run in runs:
        parts.setdefault(_at(namespace, run), []).append(run)
    groups = yield [Call(ENQUEUE, at, fixed, tuple(part), None, in_haste) for at, part in parts.items()]
    answers: dict[str, Any] = {}
    for part, replies in zip(parts.values(), groups, strict=True):
        for run, answer in zip(part, _each_enqueued(part, replies), strict=True):
            answers[run.id] = answer
    return [answers[run.id] for run in runs]


def _each_enqueued(runs: Sequence[NewRun], replies: Any) -> list[Any]:
    if isinstance(replies, Exception):
        replies = [replies] * len(runs)
    return [_enqueued(run, reply) for run, reply in zip(runs, replies, strict=True)]


def _at(namespace: Namespace, run: NewRun) -> str:
    return _tag(namespace, 0 if namespace.partitions == 1 else partition_of(run.id, namespace.partitions))


@lru_cache(maxsize=2048)
def _tag(namespace: Namespace, partition: int) -> str:
    return namespace.keys(partition).at


def _enqueued(run: NewRun, reply: Any) -> Any:
    if isinstance(reply, Exception):
        return reply
    return ("created", run.id) if reply[0] == b"created" else (text(reply[0]), text(reply[1]))


def view(keys: Keys, id: str) -> Generator[Request, Any, Any]:
    """The reply of view.lua, or None."""
    reply = yield VIEW.call(keys.at, id=id)
    return None if word(reply) == "missing" else reply[1:]


def wait(keys: Keys, id: str, client: str) -> Generator[Request, Any, list[Any]]:
    """How it ended, or that the client will be woken: the words of wait.lua."""
    reply = yield WAIT.call(keys.at, id=id, client=client, ttl=WAITER_TTL)
    return [word(reply), *reply[1:]]


def hints(keys: Keys, client: str, most: int) -> Generator[Request, Any, list[str]]:
    """The runs that a client is to look at, taken from its list."""
    reply = yield read(keys.at, "LPOP", keys.wake(client), most)
    return [text(id) for id in reply or ()]


def cancel(
    keys: Keys, id: str, *, operation: str, grace: float, life: int | None = None, now: str = ""
) -> Generator[Request, Any, list[str]]:
    reply = yield CANCEL.call(
        keys.at, now=now, id=id, operation=operation, life="" if life is None else life, grace=round(grace * 1000)
    )
    return [text(part) for part in reply]


def revive(
    keys: Keys,
    id: str,
    *,
    operation: str,
    life: int | None = None,
    from_start: bool = False,
    digest: str = "",
    now: str = "",
) -> Generator[Request, Any, str]:
    reply = yield REVIVE.call(
        keys.at,
        now=now,
        id=id,
        operation=operation,
        life="" if life is None else life,
        from_start=int(from_start),
        digest=digest,
    )
    return word(reply)


def discard(keys: Keys, id: str, life: int | None = None) -> Generator[Request, Any, list[str]]:
    reply = yield DISCARD.call(keys.at, id=id, life="" if life is None else life)
    return [text(part) for part in reply]


def pause(keys: Keys, name: str) -> Generator[Request, Any, bool]:
    """Stops the claims of queue:<name> or kind:<name> in a partition; whether that is new."""
    reply = yield PAUSE.call(keys.at, name=name)
    return word(reply) == "ok"


def unpause(keys: Keys, name: str, most: int = 1000) -> Generator[Request, Any, bool]:
    """Whether it was paused. Its lines are rung in any case, so that a repetition does no less."""
    reply = yield UNPAUSE.call(keys.at, name=name, most=most)
    return word(reply) == "ok"


# ---- workers -----------------------------------------------------------------------------------------------------------


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
class Beat:
    """What a heartbeat tells: runs to cancel, held ones that are lost, runs that are owned and were not held, a wish to drain."""

    cancels: tuple[str, ...] = ()
    lost: tuple[tuple[str, str], ...] = ()
    strays: tuple[tuple[str, str], ...] = ()
    drain: str = ""


def heartbeat(
    keys: Keys, worker: str, *, lease_ms: int, floor: int, held: Sequence[tuple[str, str]] | None = None,
    memory: int = 0, now: str = "",
) -> Generator[Request, Any, Beat | None]:  # fmt: skip
    """None: the worker is gone. `held` compares what it holds with what it owns; `memory` is what its process takes, in bytes."""
    reply = yield HEARTBEAT.call(
        keys.at, held or (), now=now, worker=worker, lease=lease_ms, floor=floor, memory=memory, compare=int(held is not None)
    )  # fmt: skip
    if word(reply) == "gone":
        return None
    cancels, lost, strays, drain = reply[1:]
    return Beat(tuple(map(text, cancels)), tuple(_id_tokens(lost)), tuple(_id_tokens(strays)), text(drain))


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
    reply = yield hasty(call)  # its places are of use in other partitions
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


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new of a checkpoint since the last acknowledged save (see lua/_checkpoint.lua)."""

    seq: int
    acked: int
    generation: int
    base: int
    count: int
    chunk: bytes
    iteration: int
    schema: int
    state: bytes | None
    phases: tuple[tuple[str, bytes], ...] = ()
    drop: tuple[str, ...] = ()
    note: bytes = b""
    unfinished: bytes = b""

    def wire(self) -> bytes:
        phases = netstrings(part for name, output in self.phases for part in (name.encode(), sealed(output)))
        numbers = (self.seq, self.acked, self.generation, self.base, self.count)
        return netstrings(
            [
                *(b"%d" % number for number in numbers), sealed(self.chunk), b"%d" % self.iteration, b"%d" % self.schema,
                b"same" if self.state is None else b"set", sealed(self.state or b""), phases,
                netstrings(name.encode() for name in self.drop), sealed(self.note), sealed(self.unfinished),
            ]
        )  # fmt: skip


def netstrings(parts: Iterable[bytes]) -> bytes:
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)


def checkpoint(
    keys: Keys, id: str, token: str, delta: Delta, now: str = ""
) -> Generator[Request, Any, tuple[str, int]]:
    """(word, progress)."""
    reply = yield CHECKPOINT.each(keys.at, id, {"now": now}, id=id, token=token, delta=delta.wire())
    return word(reply), int(reply[1]) if len(reply) > 1 else 0


def note(keys: Keys, id: str, token: str, note: bytes) -> Generator[Request, Any, str]:
    reply = yield NOTE.each(keys.at, id, {}, id=id, token=token, note=sealed(note))
    return word(reply)


def complete(keys: Keys, id: str, token: str, result: bytes, now: str = "") -> Generator[Request, Any, str]:
    reply = yield COMPLETE.each(keys.at, id, {"now": now}, id=id, token=token, result=sealed(result))
    return word(reply)


def fail(
    keys: Keys, id: str, token: str, error: bytes, delta: bytes = b"", now: str = ""
) -> Generator[Request, Any, str]:
    reply = yield FAIL.call(
        keys.at, now=now, id=id, token=token, error=sealed(error), brief=sealed(brief(error)), delta=delta
    )
    return word(reply)


def retry(
    keys: Keys,
    id: str,
    token: str,
    *,
    delay: float,
    error: bytes,
    from_start: bool = False,
    delta: bytes = b"",
    now: str = "",
) -> Generator[Request, Any, str]:
    reply = yield RETRY.call(
        keys.at,
        now=now,
        id=id,
        token=token,
        delay=round(delay * 1000),
        error=sealed(error),
        brief=sealed(brief(error)),
        from_start=int(from_start),
        delta=delta,
    )
    return word(reply)


def release(
    keys: Keys, id: str, token: str, *, mode: str, jitter: float = 0.5, delta: bytes = b"", now: str = ""
) -> Generator[Request, Any, str]:
    reply = yield RELEASE.call(keys.at, now=now, id=id, token=token, mode=mode, jitter=jitter, delta=delta)
    return word(reply)


def reject(
    keys: Keys, id: str, token: str, *, proven: bool, error: bytes, jitter: float = 0.5, now: str = ""
) -> Generator[Request, Any, str]:
    reply = yield REJECT.call(
        keys.at,
        now=now,
        id=id,
        token=token,
        proven=int(proven),
        jitter=jitter,
        error=sealed(error),
        brief=sealed(brief(error)),
    )
    return word(reply)


def extend(keys: Keys, id: str, token: str, *, number: int, seconds: float) -> Generator[Request, Any, str]:
    """`number` counts the run's extensions, with this one."""
    reply = yield EXTEND.call(keys.at, id=id, token=token, number=number, ms=round(seconds * 1000))
    return word(reply)


def kill(keys: Keys, id: str, token: str, error: bytes) -> Generator[Request, Any, str]:
    """Makes sure that the run fails, whatever becomes of its owner from now on."""
    reply = yield KILL.call(keys.at, id=id, token=token, error=sealed(error))
    return word(reply)


# ---- coordinators ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a batch of a recovery did; `left` are still to be taken. `word` says why nothing was done."""

    word: str
    queued: int = 0
    delayed: int = 0
    dead: int = 0
    cancelled: int = 0
    aside: int = 0
    left: int = 0
    failed: int = 0

    @property
    def taken(self) -> int:
        return self.queued + self.delayed + self.dead + self.cancelled + self.failed + self.aside


def judge(
    keys: Keys, coordinator: str, *, tick: float, most: int = 100, now: str = ""
) -> Generator[Request, Any, tuple[list[str], int]]:
    """The workers to recover now, and for how many ms more everybody else is held."""
    reply = yield JUDGE.call(keys.at, now=now, coordinator=coordinator, tick=round(tick * 1000), most=most)
    return [text(worker) for worker in reply[1]], max(0, int(reply[2]) - int(reply[3]))


def whereabouts(keys: Keys, worker: str) -> Generator[Request, Any, tuple[str, str]]:
    """Host and pid of a worker; empty where nothing is known of it."""
    reply = yield read(keys.at, "HMGET", keys.worker(worker), "host", "pid")
    return text(reply[0] or ""), text(reply[1] or "")


def recover(
    keys: Keys, worker: str, *, lock: str, token: str, tick: float, batch: int, jitter: float, now: str = ""
) -> Generator[Request, Any, Recovered]:
    reply = yield RECOVER.call(
        keys.at, now=now, lock=lock, token=token, worker=worker, tick=round(tick * 1000), batch=batch, jitter=jitter
    )
    return _recovered(reply)


def abandon(
    keys: Keys, worker: str, *, batch: int = 200, blame: str = "", jitter: float = 0.5, now: str = ""
) -> Generator[Request, Any, Recovered]:
    """Gives up a worker and takes all its runs, batch by batch."""
    total = Recovered("ok")
    while True:
        reply = yield ABANDON.call(keys.at, now=now, worker=worker, batch=batch, blame=blame, jitter=jitter)
        part = _recovered(reply)
        total = Recovered(
            "ok", total.queued + part.queued, total.delayed + part.delayed, total.dead + part.dead,
            total.cancelled + part.cancelled, total.aside + part.aside, part.left, total.failed + part.failed,
        )  # fmt: skip
        if not part.left:
            return total


def _recovered(reply: Any) -> Recovered:
    if word(reply) != "ok":
        return Recovered(word(reply))
    return Recovered("ok", *(int(part) for part in reply[1:]))


@dataclass(frozen=True, slots=True)
class Moved:
    """What due did; `next_ms` is how long until the next one, None where nothing is waiting."""

    moved: int
    passed: int
    next_ms: int | None


def due(keys: Keys, *, batch: int = 500, now: str = "") -> Generator[Request, Any, Moved]:
    reply = yield DUE.call(keys.at, now=now, batch=batch)
    upcoming = text(reply[3])
    return Moved(int(reply[1]), int(reply[2]), int(upcoming) - int(reply[4]) if upcoming else None)


def ring(keys: Keys, most: int = 200) -> Generator[Request, Any, int]:
    reply = yield RING.call(keys.at, most=most)
    return int(reply[1])


def lock(keys: Keys, name: str, token: str, ttl: float) -> Generator[Request, Any, bool]:
    """Whether the lock is held by the token now."""
    reply = yield LOCK.call(keys.at, lock=name, token=token, ttl=round(ttl * 1000))
    return word(reply) == "ok"


def trim(keys: Keys, *, cap: int = 10_000, now: str = "") -> Generator[Request, Any, int]:
    reply = yield TRIM.call(keys.at, now=now, cap=cap)
    return int(reply[1])


def cap(keys: Keys, status: str, *, keep: int, batch: int) -> Generator[Request, Any, int]:
    """How many ended runs were forgotten because more of their status are there than are kept: up to the batch."""
    reply = yield CAP.call(keys.at, status=status, keep=keep, batch=batch)
    return int(reply[1])


def coordinators(keys: Keys) -> Generator[Request, Any, int]:
    """How many coordinators were there in the last minute."""
    count = yield read(keys.at, "ZCARD", keys.coordinators())
    return int(count)


def suspects(keys: Keys) -> Generator[Request | list[Request], Any, int]:
    """How many runs wait for a worker that holds nothing."""
    routes = yield read(keys.at, "SMEMBERS", keys.routes())
    counts = yield [read(keys.at, "ZCARD", keys.suspect(text(route))) for route in routes]
    return sum(count for count in counts if isinstance(count, int))
