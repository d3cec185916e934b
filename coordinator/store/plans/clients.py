"""Plans of clients: enqueue, view, wait, cancel, revive, discard, pause."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from coordinator.model.run import partition_of
from coordinator.store.keys import Keys, Namespace
from coordinator.store.replies import text, word
from coordinator.store.script import Call, Request, read
from coordinator.store.scripts import CANCEL, DISCARD, ENQUEUE, PAUSE, REVIVE, UNPAUSE, VIEW, WAIT

WAITER_TTL = 20_000


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
    fixed = (now, namespace.birth)  # in the order of the script's head, as NewRun is: producers are in a hurry here
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
