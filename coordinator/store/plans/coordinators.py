"""Plans of coordinator processes: recovery, due runs, retention, bells and locks."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from coordinator.store.keys import Keys
from coordinator.store.replies import text, word
from coordinator.store.script import Request, read
from coordinator.store.scripts import ABANDON, CAP, DUE, JUDGE, LOCK, RECOVER, RING, TRIM


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


def read_host_and_pid(keys: Keys, worker: str) -> Generator[Request, Any, tuple[str, str]]:
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
class DueResult:
    """What due did; `next_ms` is how long until the next one, None where nothing is waiting."""

    moved: int
    passed: int
    next_ms: int | None


def due(keys: Keys, *, batch: int = 500, now: str = "") -> Generator[Request, Any, DueResult]:
    reply = yield DUE.call(keys.at, now=now, batch=batch)
    upcoming = text(reply[3])
    return DueResult(int(reply[1]), int(reply[2]), int(upcoming) - int(reply[4]) if upcoming else None)


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


def count_coordinators(keys: Keys) -> Generator[Request, Any, int]:
    """How many coordinators were there in the last minute."""
    count = yield read(keys.at, "ZCARD", keys.coordinators())
    return int(count)


def count_suspects(keys: Keys) -> Generator[Request | list[Request], Any, int]:
    """How many runs wait for a worker that holds nothing."""
    routes = yield read(keys.at, "SMEMBERS", keys.routes())
    counts = yield [read(keys.at, "ZCARD", keys.suspect(text(route))) for route in routes]
    return sum(count for count in counts if isinstance(count, int))
