"""A model of all scripts in plain Python: it says what each script must do and answer.

A run is one object and a namespace is a few dicts. The model was written from the design, not from the Lua code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coordinator.model.limits import FAR_FUTURE, PARTING_GRACE_MS
from coordinator.model.policies.budget import NOTHING, Amount
from coordinator.model.run_id import child_id, made_at
from tests.lua.outputs import ModelOutput, Said

DAY = 86_400_000
KEPT = {"completed": DAY, "failed": 7 * DAY, "cancelled": 7 * DAY, "dead": 7 * DAY}
ENDED = tuple(KEPT)
STEP = 2**43
SIGNAL_COUNT = 1000
LARGE = 4096  # smaller specs are taken whatever the budget


@dataclass
class Checkpoint:
    """The stored checkpoint of a run."""

    seq: int = 0
    generation: int = 0
    iteration: int = 0
    peak: int = 0
    progress: int = 0
    schema: int = 0
    appended: int = 0
    messages: list[bytes] = field(default_factory=list)
    state: bytes = b""
    phases: dict[str, bytes] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    emitted: int = 0


@dataclass
class Save:
    """The content of a delta."""

    seq: int
    acked: int
    generation: int
    base: int
    messages: list[bytes]
    iteration: int
    schema: int
    state: bytes | None
    phases: dict[str, bytes]
    received: dict[str, int] | None = None  # None: as it was
    effects: dict[str, bytes] = field(default_factory=dict)  # effects that are new or have changed
    finished: tuple[str, ...] = ()  # effects that are not begun any more
    emitted: int = 0  # the number of the last event that it covers; it is sent with `received`
    said: Said | None = None


@dataclass
class Wait:
    """What a waiting run waits for."""

    since: int
    deadline: int | None
    received: dict[str, int]  # for each topic, the number of the last signal that was received

    @property
    def text(self) -> str:
        parts = [f"s:{topic}:{number}" for topic, number in self.received.items()]
        return " ".join([str(self.since), "-" if self.deadline is None else str(self.deadline), *parts])


@dataclass
class Stored:
    """A stored signal."""

    at: int
    order: int
    payload: bytes


@dataclass
class Box:
    """The signals of a run: those that are stored, and the marks by which a repeated send is recognised."""

    stored: dict[tuple[str, int], Stored] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    order: int = 0
    count: int = 0
    operations: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)

    def next(self, topic: str, received: int) -> tuple[int, Stored] | None:
        """Return the signal that follows those that were received."""
        number = max(received + 1, self.first.get(topic, 1))
        found = self.stored.get((topic, number))
        return (number, found) if found else None

    def clear(self) -> None:
        """Delete the signals. The marks stay."""
        self.stored, self.first, self.last, self.order, self.count = {}, {}, {}, 0, 0


@dataclass
class Spend:
    """What a run has spent.

    Attributes:
        settled: The amount of earlier attempts and of children that have ended.
        epoch: The epoch of the last attempt that has spent something.
        last: The amount of this attempt.
        rolled: The amount that was added to the parent.
    """

    settled: Amount = NOTHING
    epoch: int = 0
    last: Amount = NOTHING
    rolled: Amount = NOTHING

    @property
    def total(self) -> Amount:
        return self.settled.plus(self.last)

    @property
    def text(self) -> str:
        return " ".join(map(str, (*self.settled, self.epoch, *self.last, *self.rolled)))

    def report(self, epoch: int, amount: Amount) -> None:
        """Store the total of an attempt. The total of the same attempt never falls."""
        if self.epoch != epoch:
            self.settled, self.epoch, self.last = self.total, epoch, NOTHING
        self.last = Amount(*map(max, self.last, amount))


@dataclass
class Steps:
    """The children that a run waits for: for each step their number, and the indexes of those that have ended, in order."""

    counts: dict[str, int] = field(default_factory=dict)
    ended: dict[str, list[int]] = field(default_factory=dict)
    called: tuple[int, str] | None = None  # the order and the token of the last announcement
    announced: bool = False  # it has announced a step at some time
    noted: int = 0  # the number of endings when the run was last lost

    def clear(self) -> None:
        self.counts, self.ended = {}, {}


class Joined(NamedTuple):
    """The place of a child: a step of its parent's life."""

    parent: str
    life: int
    base: str
    number: int


@dataclass
class ModelRun:
    """A run as the model sees it."""

    id: str
    status: str
    schema: int
    asked: int
    score: int
    created: int
    retention: int | None
    once: tuple[str, str, str] | None  # key, digest, key_ttl
    size: int = 4  # bytes of its spec
    due: int | None = None
    expires: int | None = None
    life: int = 1
    attempt: int = 0
    epoch: int = 0
    releases: int = 0
    recoveries: int = 0
    losses: int = 0  # without progress
    lost_at: int = 0  # the progress counter at the last loss
    strikes: int = 0
    failures: int = 0
    backoffs: int = 0
    struck: int = 0
    failed: int = 0
    token: str = ""
    last: tuple[str, str, str] | None = None
    cancel: bool = False
    kill: str = ""
    killed: str = ""
    note: bytes = b""
    used: int = 0
    extensions: int = 0
    extended: int = 0
    begun: int = 0
    force_at: int | None = None
    cause: str = ""
    operation: str = ""
    revival: str = ""
    started: bool = False
    listed: int | None = None
    bare: bool = False
    checkpoint: Checkpoint | None = None
    endings: int = 0
    wait: Wait | None = None
    rewoken: int = -1  # the progress counter at the last suspend whose condition held already
    box: Box = field(default_factory=Box)
    effects: dict[str, bytes] = field(default_factory=dict)  # begun:<name> or done:<name>; they outlive the checkpoint
    reasons: list[str] = field(default_factory=list)  # every reason for the last wake-up; the script names one of them
    output: ModelOutput = field(default_factory=ModelOutput)
    spend: Spend | None = None
    joined: Joined | None = None
    steps: Steps = field(default_factory=Steps)

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def owner(self) -> str:
        return self.token.split("-", 2)[2] if self.token else ""

    @property
    def fence(self) -> int:
        """The epoch of the owner's token."""
        return int(self.token.split("-")[0])

    @property
    def progress(self) -> int:
        return self.checkpoint.progress if self.checkpoint else 0

    @property
    def counters(self) -> str:
        return (
            f"{self.life} {self.attempt} {self.epoch} {self.releases} {self.recoveries} {self.strikes} {self.failures} "
            f"{self.backoffs} {self.struck} {self.failed} {self.score} {self.created}"
        )

    @property
    def place(self) -> str:
        """The one set or list that must contain the run."""
        if self.status == "queued":
            return f"{'suspect' if self.strikes >= 2 else 'ready'}:default:k@{self.schema}"
        if self.status == "running":
            return f"owned:{self.owner}"
        if self.ended:
            return f"ended:{self.status}" if self.listed else ""
        return self.status


@dataclass
class ModelWorker:
    """A registered worker as the model sees it."""

    name: str
    lease: int
    deadline: int
    claim: int = 0
    floor: int = 0
    suspect: int = 0
    condemned: str = ""
    seen: int | None = None
    gone: bool = False
    spared: tuple[int, int, bool] | None = None  # for which deadline, until when, and whether that was prolonged

    def protected(self, now: int, hold_until: int) -> bool:
        """Whether a pause of recovery protects the worker, whose lease has expired."""
        if now >= hold_until:
            return False
        return not self.spared or self.spared[0] != self.deadline or now < self.spared[1]

    def spare(self, now: int, hold_until: int, after_gap: bool) -> None:
        """Protect the worker with the first pause after its expiry, and after one more gap for a third of its lease."""
        of, till, prolonged = self.spared or (0, 0, False)
        last_chance = now + self.lease // 3
        if of != self.deadline or till > hold_until:
            self.spared = (self.deadline, hold_until, False)
        elif after_gap and not prolonged and till < last_chance:
            self.spared = (self.deadline, last_chance, True)

    def condemn(self, how: str) -> None:
        """Mark the worker as lost. `how` says whether its runs get a strike."""
        if not self.condemned:
            self.seen = self.deadline - self.lease
        self.condemned = how


class Model:
    """A namespace with one partition. Every public method models one script and returns the answer that the script must give."""

    def __init__(self) -> None:
        self.runs: dict[str, ModelRun] = {}
        self.workers: dict[str, ModelWorker] = {}
        self.once: dict[str, tuple[str, str]] = {}
        self.judged_at = 0
        self.clamped_at = 0
        self.rest = 0
        self.hold_until = 0
        self.paused: set[str] = set()
        self.pauses: dict[str, dict[str, bool]] = {}  # the last changes of each name and their answers, oldest first
        self.parting: set[tuple[str, int]] = set()  # steps that were dropped, with the number of their children

    def owned(self, worker: str) -> list[ModelRun]:
        return [run for run in self.runs.values() if run.token and run.owner == worker]

    # -- producers

    def enqueue(
        self,
        now: int,
        id: str,
        schema: int,
        priority: int,
        delay: int,
        expires: int | None,
        once: Any,
        retention: int | None,
        size: int = 4,
        joined: Joined | None = None,
    ) -> tuple[str, str]:
        if id in self.runs:
            return "created", id
        if joined and not self._is_awaited(joined):
            return "stale", joined.parent
        if once and once[0] in self.once:
            other, digest = self.once[once[0]]
            return ("created", id) if other == id else ("found" if digest == once[1] else "conflict", other)
        kept, age = 86_400_000 if retention is None else max(retention, 60_000), now - made_at(id)
        if not joined and not -0.4 * kept <= age <= 0.6 * kept:
            return "untimely", str(now)
        start = now + delay
        run = ModelRun(
            id, "delayed" if delay else "queued", schema, schema, start - priority * STEP, now, retention, once, size
        )
        run.due = start if delay else None
        run.expires = None if expires is None else now + expires
        run.joined = joined
        self.runs[id] = run
        if once:
            self.once[once[0]] = (id, once[1])
        return "created", id

    def _is_awaited(self, joined: Joined) -> bool:
        """Return whether the parent of a child still waits for it."""
        parent = self.runs[joined.parent]
        if parent.ended or parent.life != joined.life:
            return False
        return joined.number < parent.steps.counts.get(joined.base, 0)

    def cancel(self, now: int, id: str, operation: str, grace: int, life: int | None) -> list[str]:
        run = self.runs[id]
        if run.operation == operation:
            if run.status == "running" and run.cancel:
                return ["cancelling"]
            if run.status == "cancelled":
                return ["cancelled"]
            return ["ended", run.status] if run.ended else ["changed"]
        if life is not None and life != run.life:
            return ["changed"]
        if run.ended:
            return ["ended", run.status]
        run.operation = operation
        return [self._cancel(now, run, grace)]

    def _cancel(self, now: int, run: ModelRun, grace: int) -> str:
        """Cancel a run, or let its owner stop it."""
        if run.status == "running":
            run.cancel = True
            run.force_at = min(run.force_at or now + grace, now + grace)
            return "cancelling"
        self._finish(now, run, "cancelled")
        return "cancelled"

    def revive(
        self, now: int, id: str, operation: str, life: int | None, from_start: bool, forget: bool | list[str] = False
    ) -> str:
        run = self.runs[id]
        if run.revival == operation:
            return "queued"
        if life is not None and life != run.life:
            return "changed"
        if run.status == "completed":
            return "completed"
        if not run.ended:
            return "running"
        if run.bare:
            return "missing"
        if run.once:
            key, digest, _ = run.once
            if self.once.get(key, (id, digest)) != (id, digest):
                return "conflict"
        forgotten = [] if isinstance(forget, bool) else forget
        for name in forgotten:
            if name not in {effect.partition(":")[2] for effect in run.effects}:
                return f"unknown {name}"
        if run.once:
            self.once[run.once[0]] = (id, run.once[1])
        if from_start or run.checkpoint is None:
            run.checkpoint, run.schema = None, run.asked
            run.steps.clear()
        run.steps.called, run.steps.noted = None, 0
        run.output.end = ""
        run.effects = {
            name: value
            for name, value in run.effects.items()
            if forget is not True and name.partition(":")[2] not in forgotten
        }
        run.revival, run.life, run.cancel, run.cause, run.expires, run.listed = (
            operation,
            run.life + 1,
            False,
            "revive",
            None,
            None,
        )
        run.strikes = run.failures = run.recoveries = run.backoffs = run.losses = run.lost_at = 0
        run.kill, run.killed = "", run.kill
        run.used = run.extensions = run.extended = 0
        run.rewoken = -1
        run.struck = run.failed = run.progress
        run.status, run.endings = "queued", 0
        self._raise_epoch(now, run)
        self._rescore(run, now)
        return "queued"

    def send(self, now: int, id: str, topic: str, payload: bytes, key: str, operation: str) -> list[str]:
        run = self.runs[id]
        box = run.box
        if operation in box.operations:
            return ["sent"]
        if key and key in box.keys:
            return ["found"]
        if run.ended:
            return ["ended", run.status]
        if box.count >= SIGNAL_COUNT:
            self._remove_received(run)
        if box.count >= SIGNAL_COUNT and not (run.wait and topic in run.wait.received):
            return ["full"]
        number = box.last.get(topic, 0) + 1
        box.first.setdefault(topic, number)
        box.last[topic] = number
        box.order += 1
        box.count += 1
        box.stored[topic, number] = Stored(now, box.order, payload)
        box.operations.add(operation)
        if key:
            box.keys.add(key)
        if run.wait and (reasons := self._find_reasons(now, run, run.wait)):
            self._wake(run, reasons)
        return ["sent"]

    def _remove_received(self, run: ModelRun) -> None:
        for topic, received in (run.checkpoint.received if run.checkpoint else {}).items():
            for number in range(run.box.first.get(topic, received + 1), received + 1):
                del run.box.stored[topic, number]
                run.box.count -= 1
                run.box.first[topic] = number + 1

    def _find_reasons(self, now: int, run: ModelRun, wait: Wait) -> list[str]:
        """Return every reason why the condition of a run holds; of several topics, the script names any."""
        topics = [topic for topic, received in wait.received.items() if run.box.next(topic, received)]
        if topics:
            return [f"signal {topic}" for topic in topics]
        return ["time"] if wait.deadline is not None and now >= wait.deadline else []

    def _wake(self, run: ModelRun, reasons: list[str]) -> None:
        run.wait = None
        self._requeue(run, f"wake {reasons[0]}", None)
        run.reasons = reasons

    def listen(self, id: str) -> tuple[str, str]:
        run = self.runs[id]
        run.output.exists = run.output.exists or not run.ended
        return "ended" if run.ended else "open", run.status

    def discard(self, id: str, life: int | None) -> list[str]:
        run = self.runs[id]
        if not run.ended:
            return ["open", run.status]
        if life is not None and life != run.life:
            return ["changed"]
        self._forget(run)
        return ["discarded", run.status]

    def change_pause(self, name: str, operation: str, *, pause: bool) -> bool:
        """Pause or unpause. One of the last eight operations gets its first answer again."""
        changes = self.pauses.setdefault(name, {})
        if operation not in changes:
            changes[operation] = (name in self.paused) != pause
            (self.paused.add if pause else self.paused.discard)(name)
            if len(changes) > 8:
                del changes[next(iter(changes))]
        return changes[operation]

    # -- workers

    def drain(self, name: str) -> bool:
        return self._live_worker(name) is not None

    def join(self, now: int, name: str, lease: int) -> str:
        worker = self.workers.get(name)
        if worker and (worker.gone or worker.condemned):
            return "gone"
        if not worker:
            worker = self.workers[name] = ModelWorker(name, lease, 0)
        worker.deadline = now + lease
        self.rest = 0
        return "ok"

    def _live_worker(self, name: str) -> ModelWorker | None:
        worker = self.workers.get(name)
        return None if worker is None or worker.gone or worker.condemned else worker

    def leave(self, name: str) -> list[tuple[str, str]]:
        if owned := self.owned(name):
            return sorted((run.id, run.token) for run in owned)
        self.workers.setdefault(name, ModelWorker(name, 0, 0)).gone = True
        return []

    def beat(self, now: int, name: str, floor: int, held: list[tuple[str, str]]) -> Any:
        worker = self._live_worker(name)
        if worker is None:
            return None
        worker.deadline, worker.floor = now + worker.lease, max(worker.floor, floor)
        owned = self.owned(name)
        tokens = {run.id: run.token for run in self.runs.values()}
        cancels = sorted(run.id for run in owned if run.cancel)
        lost = [(id, token) for id, token in held if tokens.get(id) != token]
        strays = sorted((run.id, run.token) for run in owned if run.id not in dict(held))
        return cancels, lost, strays

    def claim(
        self, now: int, name: str, number: int, want: int, alone: bool, budget: int = 1024 * 1024
    ) -> tuple[str, list[tuple[str, str]]]:
        """Model claim.lua. `budget` is the number of bytes of all specs; the model's answer has no checkpoints."""
        worker = self._live_worker(name)
        if worker is None:
            return "gone", []
        if number < worker.claim or number <= worker.floor:
            return "old", []
        if number == worker.claim:
            mine = sorted((run.id, run.token) for run in self.owned(name) if run.token.split("-", 2)[1] == str(number))
            return "suspect" if worker.suspect == number else "ok", mine
        if now >= worker.deadline:
            return "expired", []
        worker.claim = number
        queued = [] if self.paused else [run for run in self.runs.values() if run.status == "queued"]
        waiting = sorted(queued, key=lambda run: (run.score, run.id))
        ready = [run for run in waiting if run.strikes < 2]
        suspects = [run for run in waiting if run.strikes >= 2]
        word, taken = "ok", list[ModelRun]()
        for run in ready[:want]:
            if taken and run.size > LARGE and sum(before.size for before in taken) + run.size > budget:
                break
            taken.append(run)
        if alone and not self.owned(name) and suspects and not (ready and ready[0].score < suspects[0].score):
            word, taken, worker.suspect = "suspect", suspects[:1], number
        for run in taken:
            self._raise_epoch(now, run)
            run.attempt += 1
            run.begun = now
            run.status, run.token, run.started, run.expires = "running", f"{run.epoch}-{number}-{name}", True, None
        return word, sorted((run.id, run.token) for run in taken)

    # -- calls of the owner of a run

    def save(self, id: str, token: str, save: Save) -> str:
        run = self.runs[id]
        return self._save(run, save) if run.token == token else "fenced"

    def _save(self, run: ModelRun, save: Save) -> str:
        answer = self._store_checkpoint(run, save)
        if answer == "ok" and save.said:
            run.output.write(run.fence, save.said)
        return answer

    def _store_checkpoint(self, run: ModelRun, save: Save) -> str:
        have = run.checkpoint
        seq = have.seq if have else 0
        if have and save.seq == seq and save.generation == have.generation:
            return "ok"
        if have and save.seq < seq:
            return "old"
        fresh = have is None or save.generation > have.generation
        if save.acked > seq or (have and save.generation < have.generation) or (fresh and save.base):
            return "gap"
        if have and not fresh and (save.base > len(have.messages) or (save.acked == 0 and save.base)):
            return "gap"
        self._apply(run, have or Checkpoint(), save, fresh=fresh, replaced=have is not None)
        return "ok"

    def _apply(self, run: ModelRun, have: Checkpoint, save: Save, *, fresh: bool, replaced: bool) -> None:
        length = save.base + len(save.messages)
        appended = have.appended if fresh and replaced else have.appended + max(0, length - len(have.messages))
        turned = save.iteration > have.peak
        stated = save.state is not None and save.state != have.state
        progressed = (
            turned or bool(save.phases or save.effects) or stated or (save.iteration == 0 and appended > have.appended)
        )
        whole = replaced and save.acked == 0
        run.effects = {name: value for name, value in run.effects.items() if name not in save.finished} | save.effects
        run.checkpoint = Checkpoint(
            seq=save.seq,
            generation=save.generation,
            iteration=save.iteration,
            peak=max(have.peak, save.iteration),
            progress=have.progress + progressed,
            schema=save.schema,
            appended=appended,
            messages=([] if fresh else have.messages[: save.base]) + save.messages,
            state=save.state if save.state is not None else b"" if whole else have.state,
            phases=save.phases if whole else have.phases | save.phases,
            received=have.received if save.received is None else save.received,
            emitted=have.emitted if save.received is None else save.emitted,
        )
        run.schema = save.schema

    def _answer_to_non_owner(self, run: ModelRun, token: str, call: str) -> str | None:
        """Return None if the token is the owner's. Otherwise return the answer to the call."""
        if run.token == token:
            return None
        if run.last and run.last[:2] == (token, call):
            return run.last[2]
        return "fenced"

    def _remember_answer(self, run: ModelRun, call: str, answer: str) -> str:
        run.last = (run.token, call, answer)
        return answer

    def _clear_owner(self, run: ModelRun) -> None:
        if run.token:
            run.output.leave(run.fence, run.checkpoint.emitted if run.checkpoint else 0)
        run.token, run.force_at = "", None

    def emit(self, id: str, token: str, said: Said) -> str:
        run = self.runs[id]
        if run.token != token:
            return "fenced"
        run.output.write(run.fence, said)
        return "ok"

    def complete(self, now: int, id: str, token: str, said: Said | None = None) -> str:
        run = self.runs[id]
        if answer := self._answer_to_non_owner(run, token, "complete"):
            return answer
        if said:
            run.output.write(run.fence, said)
        if run.cancel:
            return self.release(now, id, token, "stopping", None)
        self._remember_answer(run, "complete", "ok")
        self._clear_owner(run)
        self._finish(now, run, "completed")
        return "ok"

    def fail(self, now: int, id: str, token: str, save: Save | None) -> str:
        run = self.runs[id]
        if answer := self._answer_to_non_owner(run, token, "fail"):
            return answer
        if save and self._save(run, save) == "gap":
            return "gap"
        status, answer = ("cancelled", "cancelled") if run.cancel else ("failed", "ok")
        self._remember_answer(run, "fail", answer)
        self._clear_owner(run)
        self._add_used_time(run, now)
        self._reset_after_progress(run)
        run.failures += 1
        self._finish(now, run, status)
        return answer

    def retry(
        self,
        now: int,
        id: str,
        token: str,
        delay: int,
        save: Save | None,
        asked: bool = False,
        from_start: bool = False,
    ) -> str:
        run = self.runs[id]
        if answer := self._answer_to_non_owner(run, token, "retry"):
            return answer
        if save and self._save(run, save) == "gap":
            return "gap"
        self._add_used_time(run, now)
        self._raise_epoch(now, run)
        failures = run.failures
        self._reset_after_progress(run)
        if from_start:
            run.failures = failures
        if not asked:
            run.failures, run.failed = run.failures + 1, FAR_FUTURE if from_start else run.progress
        if answer := self._end_as_requested(now, run, "retry"):
            return answer
        answer = self._remember_answer(run, "retry", "ok")
        self._clear_owner(run)
        if from_start:
            run.checkpoint, run.schema, run.rewoken = None, run.asked, -1
            self._drop_steps(run)
            run.steps.clear()
        self._rescore(run, now + delay)
        self._requeue(run, "retry", now + delay)
        return answer

    def reject(self, now: int, id: str, token: str, proven: bool) -> str:
        run = self.runs[id]
        if answer := self._answer_to_non_owner(run, token, "reject"):
            return answer
        self._add_used_time(run, now)
        self._raise_epoch(now, run)
        self._reset_after_progress(run)
        if answer := self._end_as_requested(now, run, "reject"):
            return answer
        if proven:
            self._strike(run)
        if self._must_die(run):
            return self._end_as_dead(now, run, "reject")
        answer = self._remember_answer(run, "reject", "delayed")
        self._clear_owner(run)
        due = now + self._back_off(run)
        self._rescore(run, due)
        self._requeue(run, run.cause, due)
        return answer

    def release(self, now: int, id: str, token: str, mode: str, save: Save | None) -> str:
        run = self.runs[id]
        if answer := self._answer_to_non_owner(run, token, "release"):
            return answer
        if save and self._save(run, save) == "gap":
            return "gap"
        self._add_used_time(run, now)
        self._raise_epoch(now, run)
        self._reset_after_progress(run)
        if answer := self._end_as_requested(now, run, "release"):
            return answer
        if mode == "stopping":
            run.releases += 1
            answer = self._remember_answer(run, "release", "ok")
            self._clear_owner(run)
            self._requeue(run, "release", None)
            return answer
        news = self._note_new_endings(run)
        self._strike(run, news=news)
        run.recoveries += 1
        self._count_loss(run, news=news)
        if self._must_die(run):
            return self._end_as_dead(now, run, "release")
        answer = self._remember_answer(run, "release", "delayed")
        self._clear_owner(run)
        self._requeue(run, "release", now + self._back_off(run))
        return answer

    def suspend(
        self, now: int, id: str, token: str, deadline: int | None, received: dict[str, int], save: Save | None
    ) -> str:
        run = self.runs[id]
        if answer := self._answer_to_non_owner(run, token, "suspend"):
            return answer
        if save and self._save(run, save) == "gap":
            return "gap"
        self._add_used_time(run, now)
        self._raise_epoch(now, run)
        self._reset_after_progress(run)
        if answer := self._end_as_requested(now, run, "suspend"):
            return answer
        wait = Wait(now, deadline, dict(received))
        reasons = self._find_reasons(now, run, wait)
        spins = bool(reasons) and run.progress <= run.rewoken
        answer = self._remember_answer(run, "suspend", "delayed" if spins else "ok" if reasons else "waiting")
        self._clear_owner(run)
        if not reasons:
            run.status, run.wait = "waiting", wait
            return answer
        run.rewoken = run.progress
        self._requeue(run, f"wake {reasons[0]}", now + self._back_off(run) if spins else None)
        run.reasons = reasons
        return answer

    def receive(
        self, now: int, id: str, token: str, deadline: int | None, timeout: int | None, received: dict[str, int]
    ) -> tuple[str, int, int | None, str, int, bytes]:
        run = self.runs[id]
        if run.token != token:
            return "fenced", 0, None, "", 0, b""
        known = deadline is not None
        if deadline is None and timeout is not None:
            deadline = now + timeout
        found = [(topic, signal) for topic, number in received.items() if (signal := run.box.next(topic, number))]
        if known and deadline is not None:
            found = [(topic, signal) for topic, signal in found if signal[1].at < deadline]
        if found:
            topic, (number, stored) = min(found, key=lambda each: each[1][1].order)
            return "signal", now, deadline, topic, number, stored.payload
        return "timeout" if deadline is not None and now >= deadline else "none", now, deadline, "", 0, b""

    def extend(self, id: str, token: str, number: int, ms: int) -> str:
        run = self.runs[id]
        if run.token != token:
            return "fenced"
        if number > run.extensions:
            run.extensions, run.extended = number, run.extended + ms
        return "ok"

    def spend(self, id: str, token: str, amount: Amount) -> tuple[str, Amount]:
        run = self.runs[id]
        if run.token != token:
            return "fenced", NOTHING
        run.spend = run.spend or Spend()
        run.spend.report(run.fence, amount)
        return "ok", run.spend.settled

    def join_children(self, id: str, token: str, order: int, base: str, count: int) -> tuple[str, int]:
        run = self.runs[id]
        steps = run.steps
        if run.token != token:
            return "fenced", 0
        if steps.called and steps.called[1] == token and order < steps.called[0]:
            return "late", 0
        steps.called, steps.announced = (order, token), True
        steps.counts[base] = max(count, steps.counts.get(base, 0))
        return "ok", len(steps.ended.setdefault(base, []))

    def note(self, id: str, token: str, note: bytes) -> str:
        run = self.runs[id]
        if run.token != token:
            return "fenced"
        run.note = note
        return "ok"

    def kill(self, id: str, token: str, error: str) -> str:
        run = self.runs[id]
        if run.token != token:
            return "fenced"
        run.kill = run.kill or error
        return "ok"

    # -- coordinators

    def _judge(self, now: int, tick: int, *, plans: bool = False) -> None:
        there = [worker for worker in self.workers.values() if not worker.gone]
        pause = now < self.hold_until
        clamps = now < self.judged_at or now - self.clamped_at >= (tick / 2 if pause else 10 * tick)
        self.clamped_at = now if clamps else self.clamped_at
        for worker in there:
            if clamps and not worker.condemned:
                worker.deadline = min(worker.deadline, now + worker.lease) if worker.deadline > now else worker.deadline
        alive = [worker for worker in there if not worker.condemned]
        passed = sum(max(self.judged_at, 1) < worker.deadline <= now for worker in alive)
        gap = now - self.judged_at
        unwatched, most = gap < 0 or gap > 3 * max(tick, self.rest), passed >= 3 and passed * 2 > len(alive)
        if unwatched or most:
            self.hold_until = now + max((worker.lease for worker in there), default=0)
        if now < self.hold_until and (unwatched or most or clamps):
            for worker in alive:
                if worker.deadline <= now:
                    worker.spare(now, self.hold_until, unwatched)
        first = min((0 if worker.condemned else worker.deadline for worker in there), default=None)
        quiet = now >= self.hold_until and (first is None or first - now > 8 * tick)
        if plans:
            self.rest = 2 * tick if quiet else tick
        else:
            self.rest = self.rest or tick
        self.judged_at = now

    def judge(self, now: int, tick: int) -> tuple[list[str], int, int]:
        self._judge(now, tick, plans=True)
        taken = [
            worker.name
            for worker in self.workers.values()
            if not worker.gone
            and (worker.condemned or (worker.deadline <= now and not worker.protected(now, self.hold_until)))
        ]
        return sorted(taken), max(0, self.hold_until - now), self.rest

    def recover(self, now: int, tick: int, name: str, taken: list[str]) -> str:
        """Recover a worker. `taken` lists its runs that were in the batch."""
        self._judge(now, tick)
        worker = self.workers.get(name)
        if worker is None or worker.gone:
            return "gone"
        if not worker.condemned:
            if worker.deadline > now:
                return "alive"
            if worker.protected(now, self.hold_until):
                return "held"
            # A heartbeat that was in transit while the server was frozen is executed just after the hold began.
            worker.condemn("excused" if worker.deadline < self.hold_until + tick else "struck")
        self._take_runs(now, worker, taken)
        return "ok"

    def abandon(self, now: int, name: str, taken: list[str]) -> str:
        worker = self.workers.setdefault(name, ModelWorker(name, 0, 0, gone=True))
        worker.condemn("struck")
        self._take_runs(now, worker, taken)
        return "ok"

    def _take_runs(self, now: int, worker: ModelWorker, taken: list[str]) -> None:
        for id in taken:
            run = self.runs[id]
            self._clear_owner(run)
            self._add_used_time(run, min(now, run.begun if worker.seen is None else worker.seen))
            self._raise_epoch(now, run)
            if run.cancel or run.kill:
                self._finish(now, run, "cancelled" if run.cancel else "failed")
                continue
            run.recoveries += 1
            self._reset_after_progress(run)
            news = self._note_new_endings(run)
            if worker.condemned == "struck":
                self._strike(run, news=news)
                self._count_loss(run, news=news)
            if self._must_die(run):
                self._finish(now, run, "dead")
                continue
            self._requeue(run, "recover", now + 1500 if run.strikes >= 2 else None)
        if not self.owned(worker.name):
            worker.gone = True

    def due(self, now: int) -> tuple[int, int]:
        moved = [
            run for run in self.runs.values() if run.status == "delayed" and run.due is not None and run.due <= now
        ]
        for run in moved:
            run.status, run.due = "queued", None
        over = [
            run for run in self.runs.values() if run.wait and run.wait.deadline is not None and run.wait.deadline <= now
        ]
        for run in over:
            self._wake(run, ["time"])
        passed = self._part_children(now)
        for run in self.runs.values():
            if not run.ended and run.expires is not None and run.expires <= now:
                passed += 1
                self._finish(now, run, "cancelled")
            elif run.force_at is not None and run.force_at <= now:
                passed += 1
                self._add_used_time(run, now)
                self._clear_owner(run)
                self._raise_epoch(now, run)
                self._finish(now, run, "cancelled")
        return len(moved) + len(over), passed

    def repair(self, now: int, id: str) -> None:
        """Take a run from an owner that it must not have, or whose token can't be read, and put it where its status says."""
        run = self.runs[id]
        running = run.status == "running"
        if run.token:
            self._clear_owner(run)
            self._raise_epoch(now, run)
        if running and (run.cancel or run.kill):
            self._finish(now, run, "cancelled" if run.cancel else "failed")
        elif running:
            self._requeue(run, "recover", None)
        elif run.wait and (reasons := self._find_reasons(now, run, run.wait)):
            self._wake(run, reasons)

    def trim(self, now: int) -> int:
        over = [run for run in self.runs.values() if run.listed is not None and run.listed <= now]
        for run in over:
            run.listed = None
        return len(over)

    def cap(self, status: str, keep: int, batch: int) -> int:
        listed = [run for run in self.runs.values() if run.status == status and run.listed is not None]
        listed.sort(key=lambda run: (run.listed, run.id))
        beyond = listed[: max(0, min(len(listed) - keep, batch))]
        for run in beyond:
            self._forget(run)
        return len(beyond)

    # -- children and spending

    def _part_children(self, now: int) -> int:
        """Cancel the open children of the first step that was dropped. Return the number of its children."""
        if not self.parting:
            return 0
        base, count = min(self.parting, key=lambda step: f"{step[0]} {step[1]}")
        self.parting.remove((base, count))
        for index in range(count):
            child = self.runs.get(child_id(base, index))
            if child and child.joined and not child.ended:
                self._cancel(now, child, PARTING_GRACE_MS)
        return count

    def _drop_steps(self, run: ModelRun) -> None:
        """Let the children of a run go that have not ended."""
        steps = run.steps
        self.parting |= {(base, count) for base, count in steps.counts.items() if len(steps.ended[base]) < count}

    def _note_new_endings(self, run: ModelRun) -> bool:
        """Return whether the number of ended children has changed since the run was last lost."""
        count, before = sum(map(len, run.steps.ended.values())), run.steps.noted
        if run.steps.announced:
            run.steps.noted = count
        return run.steps.noted != before

    def _report_ending(self, child: ModelRun) -> None:
        """Add the spending of a child to its parent, and count its ending."""
        if child.joined is None:
            return
        self._add_to_parent(child)
        parent, base, number = self.runs[child.joined.parent], child.joined.base, child.joined.number
        if self._is_awaited(child.joined) and number not in parent.steps.ended[base]:
            parent.steps.ended[base].append(number)

    def _add_to_parent(self, run: ModelRun) -> None:
        """Add what a run has spent to its parent. If the parent has ended, add it to the parent's parent too, and so on."""
        while run.joined and run.spend:
            parent, total = self.runs[run.joined.parent], run.spend.total
            new = Amount(*(now - before for now, before in zip(total, run.spend.rolled, strict=True)))
            run.spend.rolled = total
            parent.spend = parent.spend or Spend()
            parent.spend.settled = parent.spend.settled.plus(new)
            if not parent.ended:
                return
            run = parent

    # -- shared helpers

    def _forget(self, run: ModelRun) -> None:
        """Reduce a run to a bare tombstone, which answers clients that repeat their enqueue."""
        run.bare, run.listed, run.checkpoint, run.effects = True, None, None, {}
        run.box.clear()
        self._drop_steps(run)
        run.steps.clear()
        run.output.clear()
        run.kill = run.killed = ""
        run.note = b""
        if run.once and self.once.get(run.once[0], ("",))[0] == run.id:
            del self.once[run.once[0]]

    def _raise_epoch(self, now: int, run: ModelRun) -> None:
        run.epoch = max(run.epoch + 1, now)

    def _rescore(self, run: ModelRun, ms: int) -> None:
        run.score = run.score // STEP * STEP + ms

    def _reset_after_progress(self, run: ModelRun) -> None:
        if run.progress > run.struck:
            run.strikes = run.backoffs = 0
        if run.progress > run.failed:
            run.failures = 0

    def _strike(self, run: ModelRun, *, news: bool = False) -> None:
        """Count a loss. New endings of children (`news`) count like progress."""
        if news:
            run.strikes = run.backoffs = 0
        if run.progress > run.struck or news:
            run.struck = max(run.struck, run.progress)
        else:
            run.strikes += 1

    def _must_die(self, run: ModelRun) -> bool:
        return run.strikes >= 3 or run.losses >= 100

    def _count_loss(self, run: ModelRun, *, news: bool = False) -> None:
        run.losses = 0 if run.progress > run.lost_at or news else run.losses + 1
        run.lost_at = run.progress

    def _back_off(self, run: ModelRun) -> int:
        run.backoffs += 1
        return min(2000 << (run.backoffs - 1), 300_000)

    def _requeue(self, run: ModelRun, cause: str, due: int | None) -> None:
        run.status, run.cause, run.due = "queued" if due is None else "delayed", cause, due
        run.reasons = []

    def _end_as_requested(self, now: int, run: ModelRun, call: str) -> str:
        """End the run if a cancel or a kill was requested. Return its new status, or "" if nothing was requested."""
        if not run.cancel and not run.kill:
            return ""
        status = "cancelled" if run.cancel else "failed"
        self._remember_answer(run, call, status)
        self._clear_owner(run)
        self._finish(now, run, status)
        return status

    def _add_used_time(self, run: ModelRun, till: int) -> None:
        run.used += max(0, till - run.begun)

    def _end_as_dead(self, now: int, run: ModelRun, call: str) -> str:
        self._remember_answer(run, call, "dead")
        self._clear_owner(run)
        self._finish(now, run, "dead")
        return "dead"

    def _finish(self, now: int, run: ModelRun, status: str) -> None:
        assert not run.ended, "one ending per life"
        run.status, run.started, run.due, run.expires, run.wait = status, False, None, None, None
        run.endings += 1
        run.output.finish(status)
        kept = KEPT[status] if run.retention is None else run.retention
        kept = max(kept, 60_000) if kept else 0
        run.bare, run.listed = not kept, now + kept if kept else None
        self._drop_steps(run)
        if status == "completed" or not kept:
            run.checkpoint, run.effects = None, {}
            run.box.clear()
            run.steps.clear()
        self._report_ending(run)
        if not kept:
            run.kill = run.killed = ""
            run.note = b""
        if run.once and self.once.get(run.once[0], ("",))[0] == run.id and (run.once[2] == "0" or not kept):
            del self.once[run.once[0]]
