"""Plans of coordinator processes: recovery, due runs, retention, bells and locks."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.errors import BadName
from coordinator.model import names
from coordinator.store.keys import Keys, Namespace
from coordinator.store.replies import require_all, text, word
from coordinator.store.script import Request, read
from coordinator.store.scripts import ABANDON, CAP, DUE, JUDGE, LOCK, RECOVER, RING, TAKE_ENDINGS, TRIM, TRIM_CHILDREN

CHILDREN_ROUNDS = 20  # calls of trim_children in one plan


@dataclass(frozen=True, slots=True)
class Recovered:
    """The numbers of runs that were taken from a worker that is gone, by their new status.

    Attributes:
        word: `ok`, or why no run was taken: `unlocked` (another coordinator has the lock), `gone` (the worker is not registered),
            `alive` (its lease has not expired), `held` (recovery is paused) or `renewed` (see `abandon`).
        queued: Runs that were requeued.
        delayed: Runs that were delayed.
        dead: Runs that are dead after their last strike.
        cancelled: Runs whose cancel was requested before, and which are cancelled now.
        aside: Damaged entries that were set aside.
        left: Runs that the next batch has to take.
        failed: Runs that a deadline had killed before, and which are failed now.
    """

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
        """The number of runs that were taken from the worker."""
        return self.queued + self.delayed + self.dead + self.cancelled + self.failed + self.aside

    @property
    def by_status(self) -> dict[str, int]:
        """The numbers of runs by their new status; `aside` for damaged entries."""
        return {
            "queued": self.queued, "delayed": self.delayed, "dead": self.dead, "cancelled": self.cancelled,
            "failed": self.failed, "aside": self.aside,
        }  # fmt: skip


def judge(
    keys: Keys, coordinator: str, *, tick: float, most: int = 100, now: str = ""
) -> Generator[Request, Any, tuple[list[str], int, int]]:
    """Check the leases of a partition, and record that the coordinator is alive.

    Args:
        keys: The keys of the partition.
        coordinator: The name under which the coordinator announces itself (see model/features.py).
        tick: Seconds between two checks.
        most: The largest number of workers to return.
        now: The time in ms, for namespaces with the test clock.

    Returns:
        The workers to recover now, for how many ms the recovery of all others is paused, and the ms until the next check.
    """
    reply = yield JUDGE.call(keys.at, now=now, coordinator=coordinator, tick=round(tick * 1000), most=most)
    return [text(worker) for worker in reply[1]], max(0, int(reply[2]) - int(reply[3])), int(reply[4])


def read_host_and_pid(keys: Keys, worker: str) -> Generator[Request, Any, tuple[str, str]]:
    """Return the host and the process id of a worker; empty texts if the server does not know them."""
    reply = yield read(keys.at, "HMGET", keys.worker(worker), "host", "pid")
    return text(reply[0] or ""), text(reply[1] or "")


def recover(
    keys: Keys, worker: str, *, lock: str, token: str, tick: float, batch: int, jitter: float, now: str = ""
) -> Generator[Request, Any, Recovered]:
    """Take a batch of runs from a worker whose lease expired, and return the counts. The caller must hold the lock.

    Args:
        keys: The keys of the partition.
        worker: The worker.
        lock: The name of the lock.
        token: The token with which the caller has taken the lock.
        tick: Seconds between two checks of the leases.
        batch: The largest number of runs to take.
        jitter: A number from 0 to 1, which spreads delays.
        now: The time in ms, for namespaces with the test clock.
    """
    reply = yield RECOVER.call(
        keys.at,
        now=now,
        lock=lock,
        token=token,
        worker=worker,
        tick=round(tick * 1000),
        batch=batch,
        jitter=str(jitter),
    )
    return _recovered(reply)


def abandon(
    keys: Keys, worker: str, *, batch: int = 200, blame: str = "", jitter: float = 0.5, deadline: str = "", now: str = "",
) -> Generator[Request, Any, Recovered]:  # fmt: skip
    """Declare a worker lost, and take all its runs, batch by batch. Return the counts.

    Args:
        keys: The keys of the partition.
        worker: The worker.
        batch: The largest number of runs that one call takes.
        blame: The only run that gets a strike; `nobody` if no run gets one; empty if each run without progress gets one.
        jitter: A number from 0 to 1, which spreads delays.
        deadline: The end of the worker's lease when the caller last looked. If the worker has renewed its lease since, no run is
            taken, and the answer is `renewed`. Empty if the caller has seen the process end.
        now: The time in ms, for namespaces with the test clock.
    """
    total = Recovered("ok")
    while True:
        reply = yield ABANDON.call(
            keys.at, now=now, worker=worker, batch=batch, blame=blame, jitter=str(jitter), deadline=deadline
        )
        part = _recovered(reply)
        if part.word != "ok":
            return part
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
    """The result of a call of `due`.

    Attributes:
        moved: The number of delayed and waiting runs that were queued.
        passed: The number of deadlines that had passed (of expiries and of requested cancels), plus the number of children that
            were examined because their parent has dropped them.
        next_ms: Milliseconds until the next run is due; None if no run waits for its time.
    """

    moved: int
    passed: int
    next_ms: int | None


def due(keys: Keys, *, batch: int = 500, now: str = "") -> Generator[Request, Any, DueResult]:
    """Queue delayed and waiting runs that are due, and cancel runs that expired or did not stop in time. Return the counts.

    Args:
        keys: The keys of the partition.
        batch: The largest number of runs to handle.
        now: The time in ms, for namespaces with the test clock.
    """
    reply = yield DUE.call(keys.at, now=now, batch=batch)
    upcoming = text(reply[3])
    return DueResult(int(reply[1]), int(reply[2]), int(upcoming) - int(reply[4]) if upcoming else None)


def ring(keys: Keys, most: int = 200) -> Generator[Request, Any, int]:
    """Ring the bells of up to `most` routes that have queued runs. Return the number of routes with queued runs."""
    reply = yield RING.call(keys.at, most=most)
    return int(reply[1])


@dataclass(frozen=True, slots=True)
class UnreportedEnding:
    """The end of a run that no worker reports.

    Attributes:
        id: The id of the run.
        life: The life that ended.
        attempts: The number of attempts, over all lives.
        status: The status in which the run ended.
        ended: When the run ended, in Unix seconds.
        kind: The kind of the run; empty if its route is damaged, or if a process of an older version noted the ending.
    """

    id: str
    life: int
    attempts: int
    status: str
    ended: float
    kind: str


@dataclass(frozen=True, slots=True)
class TakenEndings:
    """The endings that a coordinator has taken, oldest first.

    Attributes:
        for_spans: The endings to report as spans.
        for_counts: The endings to count.
    """

    for_spans: list[UnreportedEnding]
    for_counts: list[UnreportedEnding]


def take_endings(keys: Keys, *, most: int, spans: bool, counts: bool) -> Generator[Request, Any, TakenEndings]:
    """Take endings of runs that no worker reports from the lists of the partition, and return them.

    The call also makes the scripts record further endings, for the next five minutes at least.

    Args:
        keys: The keys of the partition.
        most: The largest number of endings to take from each list.
        spans: True if the caller reports spans.
        counts: True if the caller counts endings.
    """
    reply = yield TAKE_ENDINGS.call(keys.at, most=most, spans=int(spans), counts=int(counts))
    return TakenEndings(_read_endings(reply[1]), _read_endings(reply[2]))


def _read_endings(entries: Sequence[Any]) -> list[UnreportedEnding]:
    """Return the endings, without the entries that only keep a list."""
    # The route is the only part that may be damaged. It must not stop the other endings of the batch. Processes of an older version
    # note endings without the route.
    parts = (entry.decode(errors="replace").split(" ", 5) for entry in entries)
    return [
        UnreportedEnding(part[0], int(part[1]), int(part[2]), part[3], int(part[4]) / 1000, _kind_of("".join(part[5:])))
        for part in parts
        if len(part) >= 5
    ]


def _kind_of(route: str) -> str:
    """Return the kind that a route names; an empty text if the route is damaged or empty."""
    try:
        return names.name(names.parse_route(route)[1], "kind")
    except (ValueError, BadName):
        return ""


def lock(keys: Keys, name: str, token: str, ttl: float) -> Generator[Request, Any, bool]:
    """Take or renew a lock for `ttl` seconds. Return True if the token holds the lock now."""
    reply = yield LOCK.call(keys.at, lock=name, token=token, ttl=round(ttl * 1000))
    return word(reply) == "ok"


def trim(keys: Keys, *, cap: int = 10_000, now: str = "") -> Generator[Request, Any, int]:
    """Remove ended runs whose retention is over from the lists of ended runs. Return the number of removed runs.

    Args:
        keys: The keys of the partition.
        cap: The largest number of entries to keep that were set aside as damaged.
        now: The time in ms, for namespaces with the test clock.
    """
    reply = yield TRIM.call(keys.at, now=now, cap=cap)
    return int(reply[1])


def cap(keys: Keys, status: str, *, keep: int, batch: int) -> Generator[Request, Any, int]:
    """Remove the ended runs of a status beyond the number to keep, at most `batch`. Return the number of removed runs.

    Runs whose retention ends first are removed first.
    """
    reply = yield CAP.call(keys.at, status=status, keep=keep, batch=batch)
    return int(reply[1])


def trim_children(space: Namespace, keys: Keys, *, most: int, now: str = "") -> Generator[Any, Any, int]:
    """Remove the ids of deleted runs from the sets of children in a partition. Return the number of removed ids.

    The id of a deleted run stays in its set while the run has children itself, in any partition.

    Args:
        space: The namespace.
        keys: The keys of the partition.
        most: The largest number of children that one call of the script examines.
        now: The time in ms, for namespaces with the test clock.
    """
    total, items = 0, list[tuple[str, str]]()
    for _ in range(CHILDREN_ROUNDS):
        _, removed, found = yield TRIM_CHILDREN.call(keys.at, items, now=now, most=most)
        total += int(removed)
        if items and not removed:  # the rest can't be removed now
            break
        pairs = list(zip(map(text, found[::2]), map(text, found[1::2]), strict=True))
        if not pairs:
            break
        items = yield from _without_children(space, keys, pairs)
        if not items:
            break
    return total


def _without_children(
    space: Namespace, keys: Keys, pairs: Sequence[tuple[str, str]]
) -> Generator[list[Request], Any, list[tuple[str, str]]]:
    """Return those pairs of a parent and a child in which the child has no children in any other partition."""
    others = [other for other in space.everywhere() if other.partition != keys.partition]
    if not others:
        return list(pairs)
    counts = require_all((yield [read(other.at, "EXISTS", other.children(id)) for _, id in pairs for other in others]))
    width = len(others)
    return [pair for i, pair in enumerate(pairs) if not any(counts[i * width : (i + 1) * width])]


def find_existing(keys: Keys, sets: Sequence[Sequence[str]]) -> Generator[Request | list[Request], Any, list[bool]]:
    """Return, for each set of keys, True if one of its keys exists. If no key of any set exists, one command is sent."""
    if not (yield read(keys.at, "EXISTS", *(key for one in sets for key in one))):
        return [False] * len(sets)
    if len(sets) == 1:
        return [True]
    counts = require_all((yield [read(keys.at, "EXISTS", *one) for one in sets]))
    return [count > 0 for count in counts]


def count_coordinators(keys: Keys) -> Generator[Request, Any, int]:
    """Return the number of coordinators that were seen in the last minute."""
    count = yield read(keys.at, "ZCARD", keys.coordinators())
    return int(count)


def count_suspects(keys: Keys) -> Generator[Request | list[Request], Any, int]:
    """Return the number of suspects that wait for a worker that holds no other run."""
    routes = yield read(keys.at, "SMEMBERS", keys.routes())
    counts = yield [read(keys.at, "ZCARD", keys.suspect(text(route))) for route in routes]
    return sum(count for count in counts if isinstance(count, int))
