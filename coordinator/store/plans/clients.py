"""Plans of clients: enqueue, view, wait, cancel, revive, discard, pause."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from coordinator.encoding.seal import sealed
from coordinator.errors import Changed
from coordinator.model.run import Status
from coordinator.model.run_id import partition_of
from coordinator.store.keys import Keys, Namespace
from coordinator.store.replies import text, word
from coordinator.store.script import Call, Request, read
from coordinator.store.scripts import CANCEL, DISCARD, ENQUEUE, PAUSE, REVIVE, SEND, UNPAUSE, VIEW, WAIT

TRIES = 20  # how often a pause is tried while other clients pause or unpause the same queue or kind
HINTS_AT_ONCE = 500  # the most hints that one call takes from a wake list
WAITER_TTL = 20_000  # ms that a client's registration outlives its last call; clients ask again every 5 s


class NewRun(NamedTuple):
    """A run to enqueue. The fields have the order of the arguments of enqueue.lua.

    Times are in milliseconds. An empty text means that the run does not have the option.

    Attributes:
        id: The id of the run.
        route: Its route.
        spec: Its encoded inputs, meta and extra values.
        priority: Its priority.
        due: When it may be claimed, as a Unix time, or as a delay such as '+1500'.
        expires: The time after which it is cancelled if no worker has claimed it.
        once: Its idempotency key.
        digest: A digest of its inputs, for the idempotency key.
        key_ttl: How long the key is kept after the end of the run; '-' for as long as the run.
        retention: How long the run is kept after its end.
        parent: The id of its parent.
        group: The name of its group.
    """

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
    group: str = ""


# ---- enqueue -----------------------------------------------------------------------------------------------------------


def enqueue(
    namespace: Namespace, runs: Iterable[NewRun], now: str = "", *, fail_fast: bool = False
) -> Generator[list[Request], Any, list[Any]]:
    """Enqueue runs and return, for each run in order, `(answer word, run id)` or the error.

    A single run may share a call with the runs of other callers. Several runs are one call for each partition.

    Args:
        namespace: The namespace, with the birth mark that the script compares.
        runs: The runs to enqueue.
        now: The time in ms, for namespaces with the test clock.
        fail_fast: Do not wait for a partition that can't be reached.
    """
    # Every enqueue passes here, so the calls are built without looking arguments up by name: the fixed arguments and the fields of
    # NewRun have the order of the script's head.
    fixed = (now, namespace.birth)
    runs = list(runs)
    if len(runs) == 1:
        replies = yield [Call(ENQUEUE, _at(namespace, runs[0]), fixed, (runs[0],), runs[0].id, fail_fast)]
        return [_enqueued(runs[0], replies[0])]
    if namespace.partitions == 1:
        (replies,) = yield [Call(ENQUEUE, _tag(namespace, 0), fixed, tuple(runs), None, fail_fast)]
        return _each_enqueued(runs, replies)
    parts: dict[str, list[NewRun]] = {}
    for run in runs:
        parts.setdefault(_at(namespace, run), []).append(run)
    groups = yield [Call(ENQUEUE, at, fixed, tuple(part), None, fail_fast) for at, part in parts.items()]
    answers: dict[str, Any] = {}
    for part, replies in zip(parts.values(), groups, strict=True):
        for run, answer in zip(part, _each_enqueued(part, replies), strict=True):
            answers[run.id] = answer
    return [answers[run.id] for run in runs]


def _each_enqueued(runs: Sequence[NewRun], replies: Any) -> list[Any]:
    if isinstance(replies, Exception):
        replies = [replies] * len(runs)
    return [_enqueued(run, reply) for run, reply in zip(runs, replies, strict=True)]


def _enqueued(run: NewRun, reply: Any) -> Any:
    if isinstance(reply, Exception):
        return reply
    return ("created", run.id) if reply[0] == b"created" else (text(reply[0]), text(reply[1]))


def _at(namespace: Namespace, run: NewRun) -> str:
    return _tag(namespace, 0 if namespace.partitions == 1 else partition_of(run.id, namespace.partitions))


@lru_cache(maxsize=2048)
def _tag(namespace: Namespace, partition: int) -> str:
    return namespace.keys(partition).at


# ---- one run -----------------------------------------------------------------------------------------------------------


def view(keys: Keys, id: str) -> Generator[Request, Any, Any]:
    """Return the stored parts of a run, as view.lua answers them after its first word; None if the run does not exist."""
    reply = yield VIEW.call(keys.at, id=id)
    return None if word(reply) == "missing" else reply[1:]


def wait(keys: Keys, id: str, client: str) -> Generator[Request, Any, list[Any]]:
    """Return the ending of a run. If the run has not ended, register a client, which the server wakes when the run ends.

    Returns:
        The answer word of wait.lua (ended, open, missing) and, for an ended run, the ending.
    """
    reply = yield WAIT.call(keys.at, id=id, client=client, ttl=WAITER_TTL, blocks="")
    return [word(reply), *reply[1:]]


def register(keys: Keys, id: str, client: str) -> Call:
    """Return the call that registers a client with a run, for a client that blocks on its wake list next.

    If the run has ended, the call puts a hint into the list, so that the client does not block.
    """
    return WAIT.call(keys.at, id=id, client=client, ttl=WAITER_TTL, blocks="1")


def take_hints(keys: Keys, client: str) -> Generator[Request, Any, list[str]]:
    """Take the oldest run ids from the wake list of a client, 500 at most, and return them."""
    reply = yield read(keys.at, "LPOP", keys.wake(client), HINTS_AT_ONCE)
    return [text(id) for id in reply or ()]


def cancel(
    keys: Keys, id: str, *, operation: str, grace: float, life: int | None = None, now: str = ""
) -> Generator[Request, Any, list[str]]:
    """Cancel a queued, delayed or waiting run, or ask the worker of a running run to stop it.

    Args:
        keys: The keys of the run's partition.
        id: The id of the run.
        operation: A random mark of this call, by which the server recognises a repeated call.
        grace: Seconds after which a run that has not stopped is ended by force.
        life: The life of the run to cancel; None for its current life.
        now: The time in ms, for namespaces with the test clock.

    Returns:
        The answer words of cancel.lua. The first is cancelled, cancelling, ended, changed or missing.
    """
    reply = yield CANCEL.call(
        keys.at, now=now, id=id, operation=operation, life="" if life is None else life, grace=round(grace * 1000)
    )
    return [text(part) for part in reply]


def status_after_cancel(answer: Sequence[str]) -> Status | None:
    """Return the status of a run after an answer of `cancel`; None if the answer was `missing` or `changed`."""
    match answer:
        case ["cancelled"]:
            return Status.CANCELLED
        case ["cancelling"]:
            return Status.RUNNING
        case ["ended", status]:
            return Status(status)
        case _:
            return None


def revive(
    keys: Keys,
    id: str,
    *,
    operation: str,
    life: int | None = None,
    from_start: bool = False,
    digest: str = "",
    forget_effects: bool | Sequence[str] = False,
    now: str = "",
) -> Generator[Request, Any, str]:
    """Queue an ended run again.

    Args:
        keys: The keys of the run's partition.
        id: The id of the run.
        operation: A random mark of this call, by which the server recognises a repeated call.
        life: The life that ended; None for the current life.
        from_start: Drop the run's checkpoint.
        digest: The digest of the run's inputs, for a run with an idempotency key.
        forget_effects: True to forget all effects of the run, or the names of the effects to forget.
        now: The time in ms, for namespaces with the test clock.

    Returns:
        The answer word of revive.lua: queued, changed, running, completed, conflict, unreadable or missing. The word
        `unknown` is followed by the name of the effect that the run does not have.
    """
    named = () if isinstance(forget_effects, bool) else forget_effects
    reply = yield REVIVE.call(
        keys.at,
        [(name,) for name in named],
        now=now,
        id=id,
        operation=operation,
        life="" if life is None else life,
        from_start=int(from_start),
        digest=digest,
        forget="all" if forget_effects is True else "",
    )
    return " ".join(text(part) for part in reply)


def send(
    keys: Keys, id: str, *, topic: str, payload: bytes, operation: str, key: str = "", now: str = ""
) -> Generator[Request, Any, list[str]]:
    """Send a signal to a run.

    Args:
        keys: The keys of the run's partition.
        id: The id of the run.
        topic: The topic of the signal.
        payload: The encoded payload.
        operation: A random mark of this call, by which the server recognises a repeated call.
        key: The idempotency key of the signal; empty for none.
        now: The time in ms, for namespaces with the test clock.

    Returns:
        The answer words of send.lua. The first is sent, found, ended, full, missing, bad or unreadable.
    """
    reply = yield SEND.call(keys.at, now=now, id=id, topic=topic, payload=sealed(payload), key=key, operation=operation)
    return [text(part) for part in reply]


def discard(keys: Keys, id: str, life: int | None = None) -> Generator[Request, Any, list[str]]:
    """Remove an ended run and its checkpoint.

    Args:
        keys: The keys of the run's partition.
        id: The id of the run.
        life: The life of the run to remove; None for its current life.

    Returns:
        The answer words of discard.lua. The first is discarded, open (the run has not ended), changed or missing.
    """
    reply = yield DISCARD.call(keys.at, id=id, life="" if life is None else life)
    return [text(part) for part in reply]


# ---- pausing -----------------------------------------------------------------------------------------------------------


def pause(keys: Keys, name: str, operation: str) -> Generator[Request, Any, bool]:
    """Pause a queue or a kind in a partition: workers claim no more of its runs. Return False if it was already paused.

    Args:
        keys: The keys of the partition.
        name: `queue:<name>` or `kind:<name>`.
        operation: A random mark of this change, by which the server recognises a repeated call.

    Raises:
        Changed: Other clients kept pausing and unpausing the name at the same time.
    """
    seen = ""
    for _ in range(TRIES):
        reply = yield PAUSE.call(keys.at, name=name, seen=seen, operation=operation)
        if word(reply) != "changed":
            return word(reply) == "ok"
        seen = text(reply[1])
    raise _busy(name)


def unpause(keys: Keys, name: str, operation: str, most: int = 1000) -> Generator[Request, Any, bool]:
    """Unpause a queue or a kind in a partition, and wake idle workers. Return False if it was not paused.

    Args:
        keys: The keys of the partition.
        name: `queue:<name>` or `kind:<name>`.
        operation: A random mark of this change, by which the server recognises a repeated call.
        most: The largest number of routes whose bells are rung.

    Raises:
        Changed: Other clients kept pausing and unpausing the name at the same time.
    """
    seen = ""
    for _ in range(TRIES):
        reply = yield UNPAUSE.call(keys.at, name=name, seen=seen, operation=operation, most=most)
        if word(reply) != "changed":
            return word(reply) == "ok"
        seen = text(reply[1])
    raise _busy(name)


def _busy(name: str) -> Changed:
    return Changed(f"{name} was not changed: other clients keep pausing and unpausing it; call again")
