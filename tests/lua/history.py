"""Random histories of script calls, compared with the model.

Calls are made in any order, repeated, and delivered late. The clock moves forwards and backwards.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Protocol, TypeVar

from coordinator.encoding.codec import decode
from coordinator.model.limits import FAR_FUTURE, OUTPUT_BYTES
from coordinator.model.policies.budget import NOTHING, Amount, Budget, sum_spend
from coordinator.model.run import Counters
from coordinator.model.run_id import child_id
from coordinator.store.formats import OUTPUT, SPEND
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import doctor as doctor_plans
from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.plans import output as output_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.plans.attempts import Delta
from coordinator.store.plans.clients import NewRun
from coordinator.store.plans.workers import Claimed, HeartbeatReply, WorkerRecord
from coordinator.store.replies import pairs, word
from tests.lua.model import ENDED, SIGNAL_COUNT, Joined, Model, ModelRun, Save
from tests.lua.outputs import Reader, Said
from tests.lua.store import HEAD, LEASE, ROUTES, Store

T = TypeVar("T")

TICK = 1000
SHOWN_CALLS = 12
LONGEST_HISTORY = 50.0  # real seconds: tombstones and locks expire after 60
STEPS = [1, 1, 500, 500, 1000, 1000, 2000, 2000, 3500, LEASE, 8 * 86_400_000, -1, -2500, -3_600_000]
KEYS = [None, None, ("a", "d1", "-"), ("a", "d1", "0"), ("a", "d2", "-"), ("b", "d1", "-")]  # key, digest, key_ttl


TOPICS = ("a", "b")
BUDGET = Budget(requests=9)  # of each run, with its children
MOST_AT_ONCE = 3  # requests that a handler makes before it looks at its budget again


class Choose(Protocol):
    """A function that chooses one of several options: hypothesis or a random generator."""

    def __call__(self, options: Sequence[T], /) -> T: ...


@dataclass
class Owner:
    """The state of a process that claimed a run: the save that the server acknowledged, and the messages in memory."""

    run: Claimed
    seq: int = 0
    acked: int = 0
    generation: int = 1
    acked_generation: int = 1
    base: int = 0
    iteration: int = 0
    messages: list[bytes] = field(default_factory=list)
    state: bytes = b""
    phases: dict[str, bytes] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOPICS, 0))
    effects: dict[str, bytes] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)  # effects that were begun before, and are done
    emitted_before: int = 0  # the number of the last event that the checkpoint covered when the process claimed the run
    said: list[int] = field(default_factory=list)  # the values of the events that it emitted
    stored: int = 0  # the number of the last event that the server acknowledged, or that was dropped
    spent: Amount = NOTHING  # the total of this attempt
    settled: Amount = NOTHING  # what earlier attempts and children had spent, when the server last answered it
    orders: int = 0  # the number of announcements
    bases: list[str] = field(default_factory=list)  # the announced steps

    @property
    def life(self) -> int:
        return Counters.parse(self.run.counters).life

    @property
    def position(self) -> int:
        return self.emitted_before + len(self.said)


@dataclass
class Sent:
    """A call that was made once and can be repeated later, on the server and on the model."""

    what: str
    really: Callable[[], Any]
    expected: Callable[[], Any]


class History:
    """A sequence of calls in any order. Each call is made on the server and on the model."""

    def __init__(self, url: str) -> None:
        self.store = Store(url, f"t{uuid.uuid4().hex[:10]}")
        self.model = Model()
        self.owners: list[Owner] = []
        self.sent: list[Sent] = []
        self.epochs: dict[str, int] = {}
        self.acked: dict[str, tuple[int, int]] = {}  # run -> life and seq of the last acknowledged save
        self.endings: dict[tuple[str, int], str] = {}
        self.counter = 0
        self.signals: dict[tuple[str, str], list[bytes]] = {}  # run and topic -> payloads, in the order of sending
        self.said: dict[int, int] = {}  # the value of each event that was ever emitted -> the epoch of the attempt
        self.readers: dict[str, list[Reader]] = {}
        self.accepted: dict[
            tuple[str, str], int
        ] = {}  # run and token -> the largest number of requests that was accepted
        self.began = time.monotonic()
        self.answers: list[str] = []

    def close(self) -> None:
        self.store.close()

    # -- making calls

    def make(self, what: str, really: Callable[[], Any], expected: Callable[[], Any]) -> Any:
        """Make a call now, compare its answer with the model's, and remember it for a later repetition."""
        self.sent.append(Sent(what, really, expected))
        return self._compare(self.sent[-1])

    def _compare(self, sent: Sent) -> Any:
        answer, wanted = sent.really(), sent.expected()
        self.answers.append(f"{self.now} {sent.what}: {answer!r:.100}")
        assert answer == wanted, self._describe(f"{sent.what} answered {answer}; expected: {wanted}")
        return answer

    def _describe(self, problem: str) -> str:
        """Return the problem with the calls before it, so that a failure can be understood without repeating it."""
        last = "\n  ".join(self.answers[-SHOWN_CALLS:])
        seconds = time.monotonic() - self.began
        return (
            f"{problem}\nafter {len(self.answers)} calls in {seconds:.1f} s; the last, with time and answer:\n  {last}"
        )

    @property
    def outlasts_the_server(self) -> bool:
        """Whether the history is so long that keys expire on the server, whose TTLs do not follow the test clock.

        Then the store can't be compared with the model any more. This happens only on a machine that is very busy.
        """
        return time.monotonic() - self.began > LONGEST_HISTORY

    def resend_an_earlier_call(self, choose: Choose) -> None:
        self._compare(choose(self.sent))

    def move_the_clock(self, choose: Choose) -> None:
        self.store.later(choose(STEPS))

    def fresh(self) -> str:
        self.counter += 1
        return str(self.counter)

    @property
    def now(self) -> int:
        return self.store.now

    # -- producers

    def start_some_runs(self, choose: Choose) -> None:
        self.lock(choose)
        self.tick_for_one_lease(choose)
        for action in (self.enqueue, self.enqueue, self.enqueue, self.join, self.join, self.claim):
            action(choose)

    def one_of(self, choose: Choose, *weighted: tuple[Callable[[Choose], None], int]) -> None:
        choose([action for action, weight in weighted for _ in range(weight)])(choose)

    def call_as_producer(self, choose: Choose) -> None:
        self.one_of(
            choose, (self.enqueue, 12), (self.cancel, 8), (self.revive, 12), (self.wait, 4), (self.discard, 2),
            (self.pause, 1), (self.unpause, 4), (self.send, 12), (self.fill_box, 1), (self.listen, 2), (self.look, 4),
        )  # fmt: skip

    def call_as_worker(self, choose: Choose) -> None:
        self.one_of(choose, (self.join, 4), (self.beat, 6), (self.claim, 16), (self.leave, 2), (self.drain, 1))

    def call_as_owner(self, choose: Choose) -> None:
        if self.owners:
            self.one_of(
                choose,
                (self.save, 10),
                (self.load, 2),
                (self.extend, 2),
                (self.kill, 2),
                (self.note, 1),
                (self.receive, 6),
                (self.emit, 8),
                (self.spend, 4),
                (self.announce, 2),
                (self.spawn, 2),
            )

    def end_an_attempt(self, choose: Choose) -> None:
        if self.owners:
            self.one_of(
                choose, (self.complete, 1), (self.fail, 2), (self.retry, 2), (self.reject, 2), (self.release, 4),
                (self.suspend, 8),
            )  # fmt: skip

    def wait_and_signal(self, choose: Choose) -> None:
        """Make a call that concerns waiting runs, so that many histories have several of them."""
        calls = [(self.send, 6), (self.claim, 3), (self.due, 2), (self.fill_box, 1)]
        if self.owners:
            calls += [(self.receive, 5), (self.save, 4), (self.suspend, 4)]
        self.one_of(choose, *calls)

    def emit_and_look(self, choose: Choose) -> None:
        """Make a call that concerns outputs, so that many histories have attempts that emit and attempts that do not."""
        calls = [(self.look, 6), (self.claim, 4), (self.listen, 1), (self.fill_output, 1), (self.revive, 1)]
        if self.owners:
            calls += [(self.emit, 8), (self.save, 5), (self.release, 2), (self.suspend, 2), (self.retry, 1)]
            calls += [(self.complete, 1), (self.abandon, 2)]
        self.one_of(choose, *calls)

    def spend_and_join(self, choose: Choose) -> None:
        """Make a call that concerns children and spending, so that many histories have parents whose children spend."""
        calls = [
            (self.claim, 12),
            (self.due, 2),
            (self.revive, 6),
            (self.join, 4),
            (self.enqueue, 8),
            (self.abandon, 1),
        ]
        if self.owners:
            calls += [(self.spend, 10), (self.announce, 3), (self.spawn, 10), (self.end_a_child, 8), (self.complete, 1)]
            calls += [(self.fail, 1), (self.release, 1), (self.retry, 1)]
        self.one_of(choose, *calls)

    def call_as_coordinator(self, choose: Choose) -> None:
        self.one_of(
            choose, (self.due, 12), (self.recover, 9), (self.abandon, 6), (self.judge, 6), (self.trim, 3), (self.lock, 3),
            (self.ring, 2), (self.cap, 1), (self.repair, 4),
        )  # fmt: skip

    def let_time_pass(self, choose: Choose) -> None:
        self.tick_for_one_lease(choose)

    def enqueue(self, choose: Choose) -> None:
        priority = choose([0, 0, 0, 5, -5])
        delay = choose([0, 0, 0, 1000])
        expires = choose([None, None, None, None, 3000])
        once = choose(KEYS)
        retention = choose([None, None, None, 0, 5000])
        schema = choose([0, 0, 2])
        size = choose([4, 4, 6000])
        if sum(not run.ended for run in self.model.runs.values()) >= 5 or len(self.model.runs) >= 25:
            return
        key, digest, key_ttl = once or ("", "", "-")
        run = NewRun(
            self.store.id(), ROUTES[schema], b"s" * size, priority, f"+{delay}" if delay else "",
            "" if expires is None else str(expires), key, digest, key_ttl, "" if retention is None else str(retention),
        )  # fmt: skip
        self.make(
            "enqueue",
            lambda: self.store.ask_enqueue(run),
            lambda: self.model.enqueue(self.now, run.id, schema, priority, delay, expires, once, retention, size),
        )

    def cancel(self, choose: Choose) -> None:
        grace = choose([1000, 10_000])
        aware = choose([False, True])
        run = choose(list(self.model.runs.values()))
        operation, life = f"o{self.fresh()}", run.life if aware else None
        self.make(
            "cancel",
            lambda: self.store.cancel(run.id, operation, grace / 1000, life),
            lambda: self.model.cancel(self.now, run.id, operation, grace, life),
        )

    def revive(self, choose: Choose) -> None:
        from_start = choose([False, True])
        aware = choose([False, True])
        ended = [run for run in self.model.runs.values() if run.ended]
        if not ended:
            return
        run = choose(ended)
        operation, life = f"r{self.fresh()}", run.life if aware else None
        known = [name.partition(":")[2] for name in run.effects]
        options: list[bool | list[str]] = [False, False, True, known[:1], [*known[:1], "other"]]
        forget = choose(options)
        self.make(
            "revive",
            lambda: self.store.revive(run.id, operation, life=life, from_start=from_start, forget_effects=forget),
            lambda: self.model.revive(self.now, run.id, operation, life, from_start, forget),
        )

    def send(self, choose: Choose) -> None:
        """Send a signal; in some cases with a key that may have been used before."""
        topic, key = choose(TOPICS), choose(["", "", "k1", "k2"])
        runs = list(self.model.runs.values())
        run = choose([run for run in runs if not run.ended] * 4 + runs)
        operation, payload = f"s{self.fresh()}", f"p{self.fresh()}".encode()
        sent = self.signals.setdefault((run.id, topic), [])

        def really() -> list[str]:
            answer = self.store.send(run.id, topic, payload, operation, key)
            if answer == ["sent"] and payload not in sent:
                sent.append(payload)
            return answer

        self.make("send", really, lambda: self.model.send(self.now, run.id, topic, payload, key, operation))

    def fill_box(self, choose: Choose) -> None:
        """Let the box of a run seem full, so that the next send removes what was received."""
        boxes = [run for run in self.model.runs.values() if run.box.stored]
        if boxes:
            run = choose(boxes)
            run.box.count = SIGNAL_COUNT
            self.store.client.hset(self.store.keys.signals(run.id), "count", SIGNAL_COUNT)

    def wait(self, choose: Choose) -> None:
        run = choose(list(self.model.runs.values()))
        self.make("wait", lambda: self.store.wait(run.id)[:2], lambda: ["ended" if run.ended else "open", run.status])

    def listen(self, choose: Choose) -> None:
        run = choose(list(self.model.runs.values()))
        self.make(
            "listen",
            lambda: self.store.do(output_plans.listen(self.store.keys, run.id))[:2],
            lambda: self.model.listen(run.id),
        )

    def look(self, choose: Choose) -> None:
        """Let a reader look at the output of a run; in some cases it comes back with the id of its last item."""
        returns, settled = choose([False, False, True]), choose([0, 1])
        runs = [run for run in self.model.runs.values() if run.output.exists and not run.bare]
        if runs:
            run = choose(runs)
            if run.id not in self.readers:
                self.readers[run.id] = [Reader(self.store, run.id, settled=which) for which in (False, True)]
            reader = self.readers[run.id][settled]
            reader.look(returns=returns)
            self.answers.append(f"{self.now} look, returns={returns}, settled={settled}: {reader.text!r:.100}")
            try:
                reader.assert_matches(run.output)
            except AssertionError as error:
                raise AssertionError(self._describe(str(error))) from error

    def fill_output(self, choose: Choose) -> None:
        """Let the output of a run seem full, so that the next write removes what is stored."""
        runs = [run for run in self.model.runs.values() if run.output.writer and not run.ended]
        if runs:
            run = choose(runs)
            run.output.full = True
            numbers = self.store.run(run.id)["output"].split()
            numbers[OUTPUT.index("bytes")] = str(OUTPUT_BYTES + 1)
            self.store.client.hset(self.store.keys.run(run.id), "output", " ".join(numbers))

    def discard(self, choose: Choose) -> None:
        aware = choose([False, True])
        run = choose(list(self.model.runs.values()))
        life = run.life if aware else None
        self.make(
            "discard",
            lambda: self.store.do(client_plans.discard(self.store.keys, run.id, life)),
            lambda: self.model.discard(run.id, life),
        )

    def pause(self, choose: Choose) -> None:
        name = choose(["queue:default", "kind:k"])
        operation = self.fresh()
        self.make(
            "pause",
            lambda: self.store.do(client_plans.pause(self.store.keys, name, operation)),
            lambda: self.model.change_pause(name, operation, pause=True),
        )

    def unpause(self, choose: Choose) -> None:
        name = choose(["queue:default", "kind:k"])
        operation = self.fresh()
        self.make(
            "unpause",
            lambda: self.store.do(client_plans.unpause(self.store.keys, name, operation)),
            lambda: self.model.change_pause(name, operation, pause=False),
        )

    # -- workers

    def drain(self, choose: Choose) -> None:
        name = self.some_worker(choose)
        self.make(
            "drain",
            lambda: self.store.do(fleet_plans.drain(self.store.keys, name, now=self.store.at)),
            lambda: self.model.drain(name),
        )

    def join(self, choose: Choose) -> None:
        lease = choose([LEASE, LEASE, 40_000])
        if sum(not worker.gone for worker in self.model.workers.values()) >= 4:
            return
        name = f"w{self.fresh()}"
        member = WorkerRecord(name, lease, "host", 1, "s", "fleet", "c1", 10, ROUTES)
        self.make(
            "join",
            lambda: self.store.do(worker_plans.join(self.store.keys, "b1", member, now=self.store.at)),
            lambda: self.model.join(self.now, name, lease),
        )

    def some_worker(self, choose: Choose) -> str:
        """Return the name of a worker, in most cases of one that is registered."""
        there = [worker.name for worker in self.model.workers.values() if not worker.gone]
        return choose(there * 5 + list(self.model.workers))

    def leave(self, choose: Choose) -> None:
        name = self.some_worker(choose)
        self.make("leave", lambda: sorted(self.store.leave(name)), lambda: self.model.leave(name))

    def beat(self, choose: Choose) -> None:
        gives_up = choose([False, False, False, True])
        name = self.some_worker(choose)
        worker = self.model.workers[name]
        floor = worker.claim + 1 if gives_up else 0
        held = [(owner.run.id, owner.run.token) for owner in self.owners if owner.run.token.endswith(f"-{name}")]

        def really() -> Any:
            keys = self.store.keys
            beat = self.store.do(
                worker_plans.heartbeat(keys, name, lease_ms=worker.lease, floor=floor, held=held, now=self.store.at)
            )
            return beat and parts_of_reply(beat)

        self.make("heartbeat", really, lambda: self.model.beat(self.now, name, floor, held))

    def claim(self, choose: Choose) -> None:
        want = choose(range(1, 4))
        alone = choose([False, True])
        tight = choose([False, True])
        name = self.some_worker(choose)
        worker = self.model.workers[name]
        number = max(worker.claim, worker.floor) + 1
        budget = 10_000 if tight else 1024 * 1024
        limits: dict[str, Any] = {"budget": budget, "inline": 0} if tight else {}

        def really() -> tuple[str, list[tuple[str, str]]]:
            word, runs = self.store.claim(name, want, number=number, alone=alone, **limits)
            for run in runs:
                self.remember_owner(run)
            return word, sorted((run.id, run.token) for run in runs)

        self.make("claim", really, lambda: self.model.claim(self.now, name, number, want, alone, budget))

    def remember_owner(self, run: Claimed) -> None:
        """Remember the owner of a claimed run, and check that it received at least the last acknowledged checkpoint."""
        owner = Owner(run)
        parts = self.store.load(run) if run.checkpoint == "paged" else run.checkpoint
        if parts is not None:
            owner.effects = pairs(parts[2]) if len(parts) > 2 else {}
            assert owner.effects == self.model.runs[run.id].effects, "an effect was lost"
        if parts is not None and parts[0]:
            fields = pairs(parts[0])
            head = dict(zip(HEAD, map(int, fields["head"].split()), strict=True))
            chunks = sorted((int(index), chunk) for index, chunk in pairs(parts[1]).items())
            owner.messages = [message for _, chunk in chunks for message in chunk.split(b";")[:-1]]
            assert len(owner.messages) == head["length"]
            owner.seq = owner.acked = head["seq"]
            owner.generation = owner.acked_generation = head["generation"]
            owner.base, owner.iteration, owner.state = head["length"], head["iteration"], fields.get("state", b"")
            owner.phases = {name: output for name, output in fields.items() if name.startswith("phase:")}
            received, emitted = read_more(fields.get("more", b""))
            owner.received |= received
            owner.emitted_before = owner.stored = emitted
        owner.settled = sum_spend(run.spend)
        spend = self.model.runs[run.id].spend
        assert owner.settled == (spend.total if spend else NOTHING), "an owner does not know what its run has spent"
        life, seq = self.acked.get(run.id, (0, 0))
        assert owner.seq >= seq or life != self.model.runs[run.id].life, "an acknowledged checkpoint was lost"
        self.owners = [known for known in self.owners if (known.run.id, known.run.token) != (run.id, run.token)]
        self.owners.append(owner)

    # -- calls of the owner of a run

    def some_owner(self, choose: Choose) -> Owner:
        """Return a process that believes to own a run, in most cases one that really owns it."""
        true = [owner for owner in self.owners if self.is_owner(owner)]
        honest = choose([True, True, True, False])
        return choose(true if true and honest else self.owners)

    def is_owner(self, owner: Owner) -> bool:
        """Return whether a process really owns its run."""
        return self.model.runs[owner.run.id].token == owner.run.token

    def next_save(self, choose: Choose, owner: Owner) -> tuple[Delta, Save]:
        """Return the next save of an owner.

        The save has some new messages with a turn, a state or a phase, or the whole transcript in a new generation.
        """
        for _ in range(choose(range(3))):
            owner.messages.append(f"m{self.fresh()}".encode())
        change = choose(["", "", "turn", "state", "phase", "effect", "replace", "fallen back"])
        owner.seq += 1
        phases: dict[str, bytes] = {}
        if change == "turn":
            owner.iteration += 1
        if change == "state":
            owner.state = f"s{self.fresh()}".encode()
        if change == "phase":
            phases = {f"phase:-:p#{self.fresh()}": b"o"}
            owner.phases |= phases
        effects = self.change_an_effect(choose, owner) if change == "effect" else {}
        if change in ("replace", "fallen back"):
            owner.generation += 1
            owner.acked = owner.acked if change == "replace" else 0
        whole = owner.acked == 0
        base = 0 if whole or owner.generation != owner.acked_generation else owner.base
        new = owner.messages[base:]
        state = owner.state if whole or change == "state" or owner.seq - owner.acked > 1 else None
        phases = dict(owner.phases) if whole or owner.seq - owner.acked > 1 else phases
        effects = dict(owner.effects) if whole or owner.seq - owner.acked > 1 else effects
        finished = tuple(sorted(owner.finished))
        schema = choose([1, 1, 1, 2])
        # Without this part of a save, the stored counts stay.
        received = dict(owner.received) if choose([True, True, False]) else None
        if choose([False, True]):
            self.say(choose, owner)
        said = None if received is None else self.unsent(owner, owner.position)
        save = Save(
            owner.seq, owner.acked, owner.generation, base, new, owner.iteration, schema, state, phases, received, effects,
            finished, owner.position, said,
        )  # fmt: skip
        chunk = b"".join(message + b";" for message in new)
        delta = Delta(
            owner.seq,
            owner.acked,
            owner.generation,
            base,
            len(new),
            chunk,
            owner.iteration,
            schema,
            state,
            (*phases.items(), *((f"effect:{name}", value) for name, value in effects.items())),
            tuple(f"effect:{name}" for name in finished),
            more=None if received is None else write_more(received, owner.position),
            output=said.wire() if said else None,
        )
        return delta, save

    def say(self, choose: Choose, owner: Owner) -> None:
        """Let the handler emit some events. In some cases the process drops events, because too many are not sent yet."""
        for _ in range(choose([1, 1, 2, 3])):
            owner.said.append(int(self.fresh()))
            self.said[owner.said[-1]] = int(owner.run.token.split("-")[0])
        if choose([False] * 9 + [True]):
            owner.stored = owner.position - 1

    def unsent(self, owner: Owner, settled: int = 0) -> Said | None:
        """Return the events that the server may not have stored; None if there are none, and nothing new is settled."""
        values = tuple(owner.said[owner.stored - owner.emitted_before :])
        if not values and settled <= owner.emitted_before:
            return None
        return Said(owner.stored + 1, owner.emitted_before, settled, values)

    def emit(self, choose: Choose) -> None:
        reply_is_lost = choose([False, True])
        owner = self.some_owner(choose)
        self.say(choose, owner)
        run, said = owner.run, self.unsent(owner)
        assert said
        answer = self.make(
            "emit",
            lambda: self.store.emit(run, said.output()),
            lambda: self.model.emit(run.id, run.token, said),
        )
        if answer == "ok" and not reply_is_lost:
            owner.stored = max(owner.stored, said.last)

    def change_an_effect(self, choose: Choose, owner: Owner) -> dict[str, bytes]:
        """Begin an effect, or finish one that is begun, and return it."""
        begun, finishes = [name for name in owner.effects if name.startswith("begun:")], choose([True, False])
        if begun and finishes:
            name = choose(begun)
            del owner.effects[name]
            owner.finished.add(name)
            new = {name.replace("begun:", "done:", 1): self.fresh().encode()}
        else:
            new = {f"begun:e{self.fresh()}": owner.run.token.encode()}
        owner.effects |= new
        return new

    def save(self, choose: Choose) -> None:
        reply_is_lost = choose([False, True])
        owner = self.some_owner(choose)
        delta, save = self.next_save(choose, owner)
        length = len(owner.messages)
        run = owner.run
        word = self.make(
            "checkpoint", lambda: self.store.save(run, delta), lambda: self.model.save(run.id, run.token, save)
        )
        if word == "ok" and not reply_is_lost:
            owner.acked, owner.base, owner.acked_generation = save.seq, length, save.generation
            owner.stored = max(owner.stored, save.said.last if save.said else 0)
            self.acked[run.id] = (self.model.runs[run.id].life, save.seq)
        if word == "gap":
            owner.acked, owner.generation = 0, owner.generation + 1

    def load(self, choose: Choose) -> None:
        run = self.some_owner(choose).run
        owns = self.model.runs[run.id].token == run.token
        assert (self.store.load(run) == "fenced") == (not owns)

    def receive(self, choose: Choose) -> None:
        """Look for a signal, and receive it: it must be the next one that was sent."""
        topics = choose([("a",), ("b",), TOPICS])
        deadline, timeout = choose([(None, None), (None, 0), (None, 1000), (0, None), (500, None), (-1, None)])
        owner = self.some_owner(choose)
        run, received = owner.run, {topic: owner.received[topic] for topic in topics}
        till = None if deadline is None else self.now + deadline
        answer, _, _, topic, number, _ = self.make(
            "receive",
            lambda: astuple(self.store.receive(run, till, timeout, **received)),
            lambda: self.model.receive(self.now, run.id, run.token, till, timeout, received),
        )
        if answer == "signal":
            assert number > received[topic], "a signal was received twice"
            owner.received[topic] = number

    def suspend(self, choose: Choose) -> None:
        topics = choose([(), ("a",), ("b",), TOPICS])
        deadline = choose([None, None, 500, 1000, 3500, 0])
        owner = self.some_owner(choose)
        run, (last, save) = owner.run, self.last_save(choose, owner)
        received = {topic: owner.received[topic] for topic in topics}
        till = self.now + 1000 if deadline is None and not topics else None if deadline is None else self.now + deadline
        self.make(
            "suspend",
            lambda: self.store.suspend(run, last, till, **received),
            lambda: self.model.suspend(self.now, run.id, run.token, till, received, save),
        )

    def extend(self, choose: Choose) -> None:
        run, number = self.some_owner(choose).run, choose([1, 2])
        self.make(
            "extend",
            lambda: self.store.extend(run, number, 60),
            lambda: self.model.extend(run.id, run.token, number, 60_000),
        )

    def note(self, choose: Choose) -> None:
        run, note = self.some_owner(choose).run, self.fresh().encode()
        self.make(
            "note",
            lambda: self.store.do(attempt_plans.note(self.store.keys, run.id, run.token, note)),
            lambda: self.model.note(run.id, run.token, note),
        )

    def spend(self, choose: Choose) -> None:
        """Let a handler spend something unless its budget is spent, and report the total of its attempt."""
        requests = choose([0, 1, 1, MOST_AT_ONCE])
        owner = self.some_owner(choose)
        run = owner.run
        if BUDGET.is_spent(owner.settled.plus(owner.spent), NOTHING):
            return
        amount = owner.spent = owner.spent.plus(Amount(1000 * requests, 10 * requests, requests))

        def really() -> tuple[str, Amount]:
            answer = self.store.do(attempt_plans.spend(self.store.keys, run.id, run.token, amount))
            if answer[0] == "ok":
                before = self.accepted.get((run.id, run.token), 0)
                self.accepted[run.id, run.token] = max(before, amount.requests)
            return answer

        answer, settled = self.make("spend", really, lambda: self.model.spend(run.id, run.token, amount))
        if answer == "ok":
            owner.settled = settled

    def announce(self, choose: Choose) -> None:
        """Announce a step, or one of the last steps again, and in some cases in a call that arrives late."""
        count, again, late = choose([1, 2, 3]), choose([False, False, True]), choose([False] * 5 + [True])
        owner = self.some_owner(choose)
        run = owner.run
        # The ids of new runs count up, so the base of a step is far from them.
        new = child_id(self.store.id(), 1000 * int(self.fresh()))
        base = choose(owner.bases) if again and owner.bases else new
        owner.orders += 1
        order = max(1, owner.orders - 2) if late else owner.orders
        answer, _ = self.make(
            "join_children",
            lambda: self.store.join_children(run, base, count, order),
            lambda: self.model.join_children(run.id, run.token, order, base, count),
        )
        if answer == "ok" and base not in owner.bases:
            owner.bases.append(base)

    def spawn(self, choose: Choose) -> None:
        """Enqueue a child of an announced step."""
        parents = [owner for owner in self.owners if owner.bases]
        present = [owner for owner in parents if self.is_owner(owner)]
        if not parents or sum(not run.ended for run in self.model.runs.values()) >= 6 or len(self.model.runs) >= 25:
            return
        owner = choose(present * 4 + parents)
        joined = Joined(owner.run.id, owner.life, choose(owner.bases), choose([0, 1, 2]))
        child = NewRun(child_id(joined.base, joined.number), ROUTES[0], b"spec", parent=" ".join(map(str, joined)))
        self.make(
            "enqueue a child",
            lambda: self.store.ask_enqueue(child),
            lambda: self.model.enqueue(self.now, child.id, 0, 0, 0, None, None, None, joined=joined),
        )

    def kill(self, choose: Choose) -> None:
        run, why = self.some_owner(choose).run, self.fresh()
        self.make(
            "kill",
            lambda: self.store.kill(run, why.encode()),
            lambda: self.model.kill(run.id, run.token, why),
        )

    def end_a_child(self, choose: Choose) -> None:
        """Complete or fail a child by its owner."""
        completes = choose([True, True, False])
        runs = self.model.runs
        children = [owner for owner in self.owners if runs[owner.run.id].joined and self.is_owner(owner)]
        if children:
            owner = choose(children)
            if completes:
                self.complete(choose, owner)
            else:
                self.fail(choose, owner)

    def complete(self, choose: Choose, owner: Owner | None = None) -> None:
        owner = owner or self.some_owner(choose)
        run, said = owner.run, self.unsent(owner)
        output = said.wire() if said else b""
        self.make(
            "complete",
            lambda: self.store.complete(run, output=output),
            lambda: self.model.complete(self.now, run.id, run.token, said),
        )

    def last_save(self, choose: Choose, owner: Owner) -> tuple[bytes, Save | None]:
        if choose([False, True]):
            return b"", None
        delta, save = self.next_save(choose, owner)
        return delta.wire(), save

    def fail(self, choose: Choose, owner: Owner | None = None) -> None:
        owner = owner or self.some_owner(choose)
        run, (last, save) = owner.run, self.last_save(choose, owner)
        self.make(
            "fail", lambda: self.store.fail(run, last=last), lambda: self.model.fail(self.now, run.id, run.token, save)
        )

    def retry(self, choose: Choose) -> None:
        delay, asked, from_start = choose([0, 1000, 5000]), choose([False, True]), choose([False, False, True])
        owner = self.some_owner(choose)
        run, (last, save) = owner.run, self.last_save(choose, owner)
        answer = self.make(
            "retry from the start" if from_start else "retry",
            lambda: self.store.retry(run, delay / 1000, last=last, asked=asked, from_start=from_start),
            lambda: self.model.retry(self.now, run.id, run.token, delay, save, asked, from_start),
        )
        if answer == "ok" and from_start:
            self.acked.pop(run.id, None)

    def reject(self, choose: Choose) -> None:
        proven = choose([False, True])
        run = self.some_owner(choose).run
        self.make(
            "reject",
            lambda: self.store.reject(run, proven),
            lambda: self.model.reject(self.now, run.id, run.token, proven),
        )

    def release(self, choose: Choose) -> None:
        mode = choose(["stopping", "stopping", "unasked"])
        owner = self.some_owner(choose)
        run, (last, save) = owner.run, self.last_save(choose, owner)
        self.make(
            "release",
            lambda: self.store.release(run, mode, last=last),
            lambda: self.model.release(self.now, run.id, run.token, mode, save),
        )

    # -- coordinators

    def lock(self, choose: Choose) -> None:
        assert self.store.lock("recovery", "t1", ttl=3600)

    def judge(self, choose: Choose) -> None:
        def really() -> tuple[list[str], int, int]:
            plan = coordinator_plans.judge(self.store.keys, "c1", tick=TICK / 1000, now=self.store.at)
            workers, held, rest = self.store.do(plan)
            return sorted(workers), held, rest

        self.make("judge", really, lambda: self.model.judge(self.now, TICK))

    def tick_for_one_lease(self, choose: Choose) -> None:
        """Let a coordinator tick for one lease, while some of the workers keep their leases.

        Without this, recovery would be held for most of a history.
        """
        alive = [worker.name for worker in self.model.workers.values() if choose([True, True, False])]
        for _ in range(LEASE // TICK):
            self.store.later(TICK)
            self.store.judge(TICK / 1000)
            self.model.judge(self.now, TICK)
        for name in alive:
            self.store.beat(name, self.model.workers[name].lease)
            self.model.beat(self.now, name, 0, [])

    def recover(self, choose: Choose) -> None:
        batch = choose([1, 100])
        name = self.some_worker(choose)
        taken: list[str] = []

        def really() -> str:
            before = self.store.members(self.store.keys.owned(name))
            word = self.store.recover(name, batch).word
            taken[:] = before - self.store.members(self.store.keys.owned(name))
            return word

        self.make("recover", really, lambda: self.model.recover(self.now, TICK, name, taken))

    def abandon(self, choose: Choose) -> None:
        batch = choose([1, 100])
        name = self.some_worker(choose)
        taken: list[str] = []

        def really() -> str:
            before = self.store.members(self.store.keys.owned(name))
            call = next(coordinator_plans.abandon(self.store.keys, name, batch=batch, now=self.store.at))
            answer = word(self.store.wire.ask([call])[0])
            taken[:] = before - self.store.members(self.store.keys.owned(name))
            return answer

        self.make("abandon", really, lambda: self.model.abandon(self.now, name, taken))

    def repair(self, choose: Choose) -> None:
        """Damage the owner of a run, or remove the run from its queue, and let the doctor repair it."""
        fault = choose(["token", "token", "queue"])
        runs = [run for run in self.model.runs.values() if not run.ended]
        if not runs:
            return
        run = choose(runs)
        keys, client = self.store.keys, self.store.client
        if run.status == "running":
            fault = "tokenless"
            client.srem(keys.owned(run.owner), run.id)
            client.hdel(keys.worker(run.owner), f"cancel:{run.id}")  # the doctor can't know which worker has it
            client.hset(keys.run(run.id), "token", str(run.fence))
        elif fault == "token":
            fault = "held"
            run.token = f"{run.epoch}-1-w0"
            client.hset(keys.run(run.id), "token", run.token)
        elif run.status == "queued":
            fault = "lineless"
            route = f"default:k@{run.schema}"
            client.zrem(keys.suspect(route) if run.place.startswith("suspect") else keys.ready(route), run.id)
        else:
            return
        answer = self.store.do(doctor_plans.repair_runs(keys, [(run.id, fault)], now=self.store.at))
        self.answers.append(f"{self.now} repair {fault}: {answer}")
        assert answer == ["repaired"], self._describe(f"the doctor answered {answer}")
        self.model.repair(self.now, run.id)

    def due(self, choose: Choose) -> None:
        def really() -> tuple[int, int]:
            moved = self.store.due()
            return moved.moved, moved.passed

        self.make("due", really, lambda: self.model.due(self.now))

    def ring(self, choose: Choose) -> None:
        """Ring the bells. This changes nothing else."""

        def really() -> None:
            self.store.do(coordinator_plans.ring(self.store.keys))

        self.make("ring", really, lambda: None)

    def cap(self, choose: Choose) -> None:
        status, keep = choose(ENDED), choose([0, 1, 3])
        self.make(
            "cap",
            lambda: self.store.do(coordinator_plans.cap(self.store.keys, status, keep=keep, batch=2)),
            lambda: self.model.cap(status, keep, 2),
        )

    def trim(self, choose: Choose) -> None:
        self.make("trim", self.store.trim, lambda: self.model.trim(self.now))

    # -- invariants

    def assert_store_matches_model(self) -> None:
        """Assert that the server stores exactly what the model contains."""
        try:
            self._assert_store_matches_model()
        except (AssertionError, KeyError) as error:
            if self.outlasts_the_server:
                return
            problem = f"the server lacks {error}" if isinstance(error, KeyError) else str(error)
            raise AssertionError(self._describe(problem)) from error

    def _assert_store_matches_model(self) -> None:
        stored = {key.split("}:", 1)[1]: value for key, (_, value, _) in self.store.dump().items()}
        for run in self.model.runs.values():
            fields = {name: value.decode() for name, value in stored[f"run:{run.id}"].items()}
            self._assert_one_place(run.id, run.place, stored)
            assert (fields["status"], fields["counters"], fields.get("token", "")) == (
                run.status,
                run.counters,
                run.token,
            )
            assert fields["route"] == f"default:k@{run.schema}"
            assert ("cancel" in fields) == run.cancel
            assert (fields.get("kill", ""), fields.get("killed", "")) == (run.kill, run.killed)
            used, _, _, extensions, extended = map(int, fields.get("spent", "0 0 0 0 0").split())
            assert (used, extensions, extended) == (run.used, run.extensions, run.extended)
            if run.reasons and fields["cause"] in [f"wake {reason}" for reason in run.reasons]:
                run.cause = fields["cause"]
            assert fields.get("cause", "") == run.cause
            assert fields.get("note", "") == run.note.decode()
            assert ("spec" in fields) == (not run.bare)
            self._assert_checkpoint(run, stored)
            assert stored.get(f"effects:{run.id}", {}) == run.effects
            self._assert_signals(run, fields, stored)
            self._assert_output(run, fields, stored)
            self._assert_children_and_spending(run, fields, stored)
            if run.due is not None:
                assert stored["delayed"][run.id] == run.due
            self._assert_epochs_and_endings(run.id, fields)
        assert stored.get("waiting", {}) == {
            run.id: FAR_FUTURE if run.wait.deadline is None else run.wait.deadline
            for run in self.model.runs.values()
            if run.wait
        }
        assert stored.get("live", set()) == {run.id for run in self.model.runs.values() if run.started}
        assert {key for key in stored if key.startswith("run:")} == {f"run:{id}" for id in self.model.runs}
        assert {key for key in stored if key.startswith("owned:")} == {
            f"owned:{run.owner}" for run in self.model.runs.values() if run.token
        }
        deadlines = {f"cancel:{run.id}": run.force_at for run in self.model.runs.values() if run.force_at is not None}
        deadlines |= {f"expire:{run.id}": run.expires for run in self.model.runs.values() if run.expires is not None}
        assert stored.get("deadlines", {}) == deadlines
        assert {key: value.decode() for key, value in stored.items() if key.startswith("once:")} == {
            f"once:k:{key}": f"{id} {digest}" for key, (id, digest) in self.model.once.items()
        }
        there = {
            worker.name: 0 if worker.condemned else worker.deadline
            for worker in self.model.workers.values()
            if not worker.gone
        }
        assert stored.get("workers", {}) == there
        assert stored.get("paused", set()) == self.model.paused
        assert set(stored.get("parting", {})) == {f"{base} {count}" for base, count in self.model.parting}
        assert "aside" not in stored

    def _assert_one_place(self, id: str, place: str, stored: dict[str, Any]) -> None:
        kinds = ("ready:", "suspect:", "delayed", "owned:", "ended:", "waiting")
        places = [key for key, value in stored.items() if key.startswith(kinds) and id in value]
        assert places == ([place] if place else [])

    def _assert_signals(self, run: Any, fields: dict[str, str], stored: dict[str, Any]) -> None:
        """Assert that the box is the model's; and, without the model, that no signal is lost, doubled or in the wrong order."""
        assert fields.get("wait") == (run.wait.text if run.wait else None)
        assert (fields["status"] == "waiting") == (run.wait is not None)
        assert set(stored.get(f"signal-keys:{run.id}", {})) == run.box.keys
        assert set(stored.get(f"signal-operations:{run.id}", {})) == run.box.operations
        box = stored.get(f"signals:{run.id}", {})
        wanted = {
            f"{number}:{topic}": b"%d %d %s" % (signal.at, signal.order, signal.payload)
            for (topic, number), signal in run.box.stored.items()
        }
        assert {name: text for name, text in box.items() if name[0].isdigit()} == wanted
        assert int(box.get("count", 0)) == run.box.count
        for topic in TOPICS:
            sent = self.signals.get((run.id, topic), [])
            numbers = sorted(number for its, number in run.box.stored if its == topic)
            assert [box[f"{number}:{topic}"].split(b" ", 2)[2] for number in numbers] == [
                sent[number - 1] for number in numbers
            ]
            if wanted and numbers:
                assert numbers == list(range(numbers[0], len(sent) + 1)), "a signal was lost"
            if run.wait and topic in run.wait.received:
                assert not [number for number in numbers if number > run.wait.received[topic]], "a wake-up was lost"

    def _assert_children_and_spending(self, run: ModelRun, fields: dict[str, str], stored: dict[str, Any]) -> None:
        """Assert that the steps and the spending are the model's.

        And, without the model: everything that an owner has spent counts once for its run, everything that was added to a
        parent counts once for the parent, and a run without children exceeds its budget only by what it makes at once.
        """
        steps = run.steps
        joins = {base: f"{count} {len(steps.ended[base])}".encode() for base, count in steps.counts.items()}
        assert stored.get(f"joins:{run.id}", {}) == joins
        results = stored.get(f"results:{run.id}", {})
        assert {name: index for name, index in results.items() if "#" in name} == {
            f"{base}#{order}": str(index).encode()
            for base, ended in steps.ended.items()
            for order, index in enumerate(ended, 1)
        }
        assert fields.get("spend") == (run.spend.text if run.spend else None)
        own = sum(requests for (id, _), requests in self.accepted.items() if id == run.id)
        children = [child.id for child in self.model.runs.values() if child.joined and child.joined.parent == run.id]
        rolled = sum(spend_numbers(stored, child)["rolled_requests"] for child in children)
        total = sum_spend(fields.get("spend", "")).requests
        assert total == own + rolled, "something that was spent does not count once"
        limit = BUDGET.requests
        assert limit is not None
        assert children or total < limit + MOST_AT_ONCE, "a budget was exceeded"

    def _assert_output(self, run: ModelRun, fields: dict[str, str], stored: dict[str, Any]) -> None:
        """Assert that a reader that comes now gets the events of the model, and each settled event once and in order.

        And, without the model: no checkpoint is stored whose events are not, each event is from the attempt that emitted it,
        and the stored bytes are counted.
        """
        entries = [(id, *content.items()) for id, content in stored.get(f"output:{run.id}", [])]
        if run.bare:
            assert run.output.end or not entries
            return
        for settled in (False, True):
            reader = Reader(self.store, run.id, settled)
            reader.take(entries)
            reader.assert_matches(run.output)
            assert (reader.folder.ended or "") == run.output.end
        numbers = dict(zip(OUTPUT, map(int, fields.get("output", "0 0 0 0 0 0").split()), strict=True))
        _, emitted = read_more(stored.get(f"ckpt:{run.id}", {}).get("more", b""))
        assert emitted <= numbers["position"], "a checkpoint was stored before its events"
        events = [(id, value) for id, (name, value) in entries if name[:1] in (b"e", b"n")]
        for id, value in events:
            said = decode(value.partition(b" ")[2], "an event")  # a note is a list of its text and its numbers
            assert self.said[said[1] if isinstance(said, list) else said] == int(id.split(b"-")[0]), (
                "an event of another attempt"
            )
        assert run.output.full or numbers["bytes"] == sum(len(value) for _, value in events)

    def _assert_checkpoint(self, run: Any, stored: dict[str, Any]) -> None:
        fields, have = stored.get(f"ckpt:{run.id}"), run.checkpoint
        generations = [key for key in stored if key.startswith(f"messages:{run.id}:")]
        if have is None:
            assert fields is None
            assert generations == []
            return
        assert fields is not None
        head = dict(zip(HEAD, map(int, fields["head"].split()), strict=True))
        assert (head["seq"], head["generation"], head["length"]) == (have.seq, have.generation, len(have.messages))
        assert (head["iteration"], head["peak"], head["progress"]) == (have.iteration, have.peak, have.progress)
        assert fields.get("state", b"") == have.state
        assert read_more(fields.get("more", b"")) == (have.received, have.emitted)
        assert {name: output for name, output in fields.items() if name.startswith("phase:")} == have.phases
        assert generations == ([f"messages:{run.id}:{have.generation}"] if have.messages else [])
        found: list[bytes] = []
        for index, chunk in sorted(
            (int(index), chunk) for index, chunk in (stored[generations[0]] if generations else {}).items()
        ):
            assert index == len(found)
            found += chunk.split(b";")[:-1]
        assert found == have.messages

    def _assert_epochs_and_endings(self, id: str, fields: dict[str, str]) -> None:
        """Assert, without the model, that epochs never fall and that each life has one ending."""
        life, _, epoch = map(int, fields["counters"].split()[:3])
        assert epoch >= self.epochs.get(id, 0), "an epoch never falls"
        self.epochs[id] = epoch
        if fields["status"] in ENDED:
            assert self.endings.setdefault((id, life), fields["status"]) == fields["status"], "one ending for each life"
        else:
            assert (id, life) not in self.endings, "an ended life does not continue"


def spend_numbers(stored: dict[str, Any], id: str) -> dict[str, int]:
    """Return the numbers of the stored field `spend` of a run; all are 0 if it has none."""
    text = stored[f"run:{id}"].get("spend", b" ".join([b"0"] * len(SPEND)))
    return dict(zip(SPEND, map(int, text.split()), strict=True))


def parts_of_reply(beat: HeartbeatReply) -> tuple[list[str], list[tuple[str, str]], list[tuple[str, str]]]:
    return sorted(beat.cancels), list(beat.lost), sorted(beat.strays)


def write_more(received: dict[str, int], emitted: int) -> bytes:
    counts = {f"received:{topic}": number for topic, number in received.items()} | (
        {"emitted": emitted} if emitted else {}
    )
    return attempt_plans.netstrings(part for name, number in counts.items() for part in (name.encode(), b"%d" % number))


def read_more(more: bytes) -> tuple[dict[str, int], int]:
    """Return the number of the last received signal of each topic, and the number of the last event that is covered."""
    parts: list[bytes] = []
    while more:
        size, rest = more.split(b":", 1)
        parts, more = [*parts, rest[: int(size)]], rest[int(size) :]
    counts = {name.decode(): int(number) for name, number in zip(parts[::2], parts[1::2], strict=True)}
    emitted = counts.pop("emitted", 0)
    return {name.removeprefix("received:"): number for name, number in counts.items()}, emitted
