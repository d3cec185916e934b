"""The board: the present state of a whole namespace, for `coordinator top` and the page. This module does no I/O."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coordinator.feed.depths import Depths
from coordinator.feed.events import RunEvent, RunLook
from coordinator.feed.lateness import Lateness, describe_lateness
from coordinator.model.names import parse_route
from coordinator.model.run import ENDED, Status
from coordinator.model.slots import SlotUse
from coordinator.views.namespace_display import describe_attention, group_by_process
from coordinator.views.namespace_view import Overview, WorkerView

HISTORY = 300  # seconds of rates that are kept
RECENT = 200  # events that are kept
RATE_WINDOW = 10  # seconds over which the shown rate is averaged


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One worker process, with the runs that it executes.

    Attributes:
        id: The id of one of its workers.
        host: Its host.
        pid: Its process id.
        fleet: Its fleet.
        code: The version of its code.
        slots: The number of handlers that it runs at the same time.
        state: working, draining, silent (its lease has expired) or gone (a coordinator has declared it lost).
        lease_age: Seconds since its last heartbeat.
        lease: Seconds without a heartbeat after which it counts as lost.
        memory: Bytes that it used; 0 if unknown.
        runs: Its runs, oldest attempt first; a run that the feed has not seen has only its id.
    """

    id: str
    host: str
    pid: int
    fleet: str
    code: str
    slots: int
    state: str
    lease_age: float
    lease: float
    memory: int
    runs: tuple[RunLook | str, ...]

    @property
    def use(self) -> SlotUse:
        """The numbers of busy slots, of all slots, and of runs that are finishing."""
        return SlotUse.of(len(self.runs), self.slots)


@dataclass(frozen=True, slots=True)
class QueueRow:
    """The runs of one kind in one queue.

    Attributes:
        queue: The queue.
        kind: The kind.
        queued: The number of queued runs.
        running: The number of runs that workers execute.
        age: Seconds since the oldest queued run was queued; None if none is queued.
        rate: The number of runs that ended per second.
        workers: The number of live processes that take these runs.
        paused: Whether the queue or the kind is paused.
        history: The number of runs that ended in each of the last seconds, oldest first.
        depths: The number of queued runs in the last steps of three seconds, oldest first.
        ages: The age of the oldest queued run in these steps, in seconds.
    """

    queue: str
    kind: str
    queued: int
    running: int
    age: float | None
    rate: float
    workers: int
    paused: bool
    history: tuple[int, ...]
    depths: tuple[int, ...]
    ages: tuple[int, ...]


class Rates:
    """Counts of ended runs by second, queue, kind and status, for the last HISTORY seconds."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, Counter[tuple[str, str, Status]]]] = deque()
        self.first = 0  # the first second that was counted as a whole

    def add(self, events: Iterable[RunEvent], now: float) -> None:
        """Count the events in which a run ended, in the second of `now`. Forget seconds that are older than HISTORY."""
        second = int(now)
        self.first = self.first or second + 1
        if not self._seconds or self._seconds[-1][0] < second:
            self._seconds.append((second, Counter()))
        counts = self._seconds[-1][1]
        for event in events:
            if event.status in ENDED:
                counts[event.queue, event.kind, event.status] += 1
        while self._seconds and self._seconds[0][0] < second - HISTORY:
            self._seconds.popleft()

    def kinds(self) -> set[tuple[str, str]]:
        """Return each queue and kind with runs that ended within the last HISTORY seconds."""
        return {(queue, kind) for _, counts in self._seconds for queue, kind, _ in counts}

    def history(self, now: float, queue: str | None = None, kind: str | None = None, seconds: int = 120) -> list[int]:
        """Return how many runs ended in each of the last whole seconds, oldest first. None matches every queue or kind.

        Args:
            now: The present Unix time.
            queue: Only runs of this queue.
            kind: Only runs of this kind.
            seconds: The number of seconds; the list is shorter if counting began later.
        """
        last = int(now)
        row = [0] * seconds
        for second, counts in self._seconds:
            if last - seconds <= second < last:
                row[second - last + seconds] = sum(
                    number for (q, k, _), number in counts.items() if queue in (None, q) and kind in (None, k)
                )
        return row[min(seconds, max(0, self.first - (last - seconds))) :]

    def rate(self, now: float, queue: str | None = None, kind: str | None = None) -> float:
        """Return the number of runs that ended per second, averaged over the last ten seconds."""
        row = self.history(now, queue, kind, RATE_WINDOW)
        return sum(row) / len(row) if row else 0.0


@dataclass(slots=True)
class Board:
    """The newest facts of a namespace, gathered from its overview and its feed.

    Attributes:
        overview: The last overview; None until one was read.
        now: The server's time of the last change.
        oldest: For each route, when its oldest queued run was queued.
        owned: The ids of the runs that each worker owns, by the worker's id.
        looks: The last look at each run that the feed knows, by the run's id.
        events: The last events, newest first.
        rates: The endings of the last minutes.
        depths: The depths and the ages of the queues of the last minutes.
        late: The schedules, the delayed and waiting runs, and the groups that are late.
        error: Why the server can't be reached; empty if it can.
    """

    overview: Overview | None = None
    now: float = 0.0
    oldest: Mapping[str, float] = field(default_factory=dict)
    owned: Mapping[str, list[str]] = field(default_factory=dict)
    looks: Mapping[str, RunLook] = field(default_factory=dict)
    events: deque[RunEvent] = field(default_factory=lambda: deque(maxlen=RECENT))
    rates: Rates = field(default_factory=Rates)
    depths: Depths = field(default_factory=Depths)
    late: Lateness = field(default_factory=Lateness)
    error: str = ""

    def add(self, events: Iterable[RunEvent], now: float) -> None:
        """Add events, oldest first, and set the server's time."""
        self.now = now
        known = list(events)
        self.rates.add(known, now)
        self.events.extendleft(known)
        self._move(known)

    def _move(self, events: Iterable[RunEvent]) -> None:
        """Move the runs of the events between the workers in `owned`, until the watcher reads `owned` from the server again."""
        for run in {event.run for event in events}:
            look = self.looks.get(run)
            for worker, ids in self.owned.items():
                if run in ids and (look is None or look.status is not Status.RUNNING or look.worker != worker):
                    ids.remove(run)
            if look is not None and look.status is Status.RUNNING and look.worker in self.owned:
                own = self.owned[look.worker]
                if run not in own:
                    own.append(run)

    def processes(self) -> list[ProcessRow]:
        """Return the worker processes, in a stable order: by fleet, host and process id."""
        if self.overview is None:
            return []
        return [self._process(group) for group in group_by_process(self.overview.workers)]

    def _process(self, group: list[WorkerView]) -> ProcessRow:
        one = group[0]
        ids = [id for worker in group for id in self.owned.get(worker.id, ())]
        runs = sorted((self.looks.get(id, id) for id in ids), key=lambda run: (isinstance(run, str), _started(run)))
        age = max(worker.lease_age for worker in group)
        state = "gone" if one.condemned else "silent" if one.expired else "draining" if one.draining else "working"
        memory = max(worker.memory for worker in group)
        return ProcessRow(
            one.id, one.host, one.pid, one.fleet, one.code, one.slots, state, age, one.lease, memory, tuple(runs)
        )

    def queues(self) -> list[QueueRow]:
        """Return the queues and kinds that have runs or workers, or in which runs ended within HISTORY seconds, sorted by name."""
        if self.overview is None:
            return []
        queued, oldest = self._waiting(self.overview)
        running = Counter(
            (run.queue, run.kind) for row in self.processes() for run in row.runs if isinstance(run, RunLook)
        )
        workers = self._able()
        known = {*queued, *running, *workers, *self.rates.kinds()}
        return [self._queue(*one, queued[one], running[one], oldest.get(one), workers[one]) for one in sorted(known)]

    def measure_queues(self) -> None:
        """Add the present depths and ages of the queues to their history."""
        if self.overview is not None:
            self.depths.add(self.now, *self._waiting(self.overview))

    def _waiting(self, overview: Overview) -> tuple[Counter[tuple[str, str]], dict[tuple[str, str], float]]:
        """Return the number of queued runs of each queue and kind, and when the oldest of them was queued."""
        queued: Counter[tuple[str, str]] = Counter()
        oldest: dict[tuple[str, str], float] = {}
        for route, number in overview.queues.items():
            queue, kind, _ = parse_route(route)
            queued[queue, kind] += number
            if route in self.oldest:
                oldest[queue, kind] = min(self.oldest[route], oldest.get((queue, kind), self.oldest[route]))
        return queued, oldest

    def _able(self) -> Counter[tuple[str, str]]:
        assert self.overview is not None
        alive = [worker for worker in self.overview.workers if not (worker.expired or worker.condemned)]
        return Counter(
            one
            for group in group_by_process(alive)
            for one in {parse_route(route)[:2] for worker in group for route in worker.routes}
        )

    def _queue(self, queue: str, kind: str, queued: int, running: int, oldest: float | None, workers: int) -> QueueRow:
        assert self.overview is not None
        paused = f"queue:{queue}" in self.overview.paused or f"kind:{kind}" in self.overview.paused
        age = None if oldest is None else max(0.0, self.now - oldest)
        rate = self.rates.rate(self.now, queue, kind)
        history = tuple(self.rates.history(self.now, queue, kind))
        depths, ages = self.depths.history(self.now, (queue, kind))
        return QueueRow(queue, kind, queued, running, age, rate, workers, paused, history, tuple(depths), tuple(ages))

    def attention(self) -> list[str]:
        """Return a sentence for each problem that needs attention."""
        if self.overview is None:
            return [self.error] if self.error else []
        found = [*describe_attention(self.overview), *describe_lateness(self.late)]
        for row in self.queues():
            if row.queued and not row.workers and not row.paused:
                runs = "1 queued run" if row.queued == 1 else f"{row.queued:,} queued runs"
                found.append(f"no live worker takes kind {row.kind} of queue {row.queue}: {runs}")
        return [f"the board is not up to date: {self.error}", *found] if self.error else found


def _started(run: RunLook | str) -> str:
    return run if isinstance(run, str) else f"{run.started:017.3f}{run.id}"
