"""Judge every step at the server from outside: the request, the answer, and the effect on the runs.

The watcher knows the promises and the table of moves, but not how the scripts implement them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.model.policies.budget import TOPIC
from coordinator.model.run import ENDED, MOVES, Status
from tests.faults.simulation.facts import Facts
from tests.faults.simulation.laws.budgets import Budgets
from tests.faults.simulation.laws.children import Children
from tests.faults.simulation.laws.groups import Groups
from tests.faults.simulation.laws.rates import Rates
from tests.faults.simulation.laws.step import Broken, Given, Seen, Step
from tests.faults.simulation.laws.step import words as _answers

# calls of an owner that do not end its ownership
GO_ON = ("checkpoint", "note", "extend", "kill", "emit", "spend", "join_children", "collect")
OWNERS_CALLS = ("complete", "fail", "retry", "release", "reject", "suspend", *GO_ON)
TICK_MS = 1000
QUIET_TICKS = 8  # a coordinator may judge half as often only while every lease holds for longer


@dataclass(slots=True)
class Member:
    """A worker, according to the executed calls."""

    lease: int
    until: int
    condemned: bool = False
    gone: bool = False
    floor: int = 0
    claims: dict[int, set[str]] = field(default_factory=dict)
    spared: tuple[int, int, bool] = (0, 0, False)  # when its lease expired, protected until when, and whether prolonged


class Watcher:
    """The rules, one method each."""

    def __init__(self, restarted: Callable[[str, int], None], facts: Facts) -> None:
        self._restarted = restarted
        self.children, self.budgets = Children(), Budgets(facts)
        self._laws = (self.children, self.budgets, Groups(), Rates())
        self.ids: list[bytes] = []
        self._runs: dict[str, Seen | None] = {}
        self._rows: dict[str, Sequence[Any]] = {}  # as received: an unchanged run need not be parsed
        self._endings: dict[tuple[str, int], Status] = {}
        self._accepted: dict[str, tuple[str, str, str]] = {}  # run -> token, call and answer of the last owner's ending
        self._tokens: dict[str, set[str]] = {}
        self._members: dict[str, Member] = {}
        self._judged_at: int | None = None
        self._rest = 0  # ms until the next judgement, as the last one answered
        self._hold_until = 0
        self.created: dict[str, str] = {}  # idempotency key -> run
        self._revivals: dict[str, str] = {}  # run -> the last operation that revived it
        self._signals: dict[tuple[str, str], list[str]] = {}  # run and topic -> payloads in the order of sending
        self._sends: dict[str, set[str]] = {}  # run -> operations and keys of its signals

    def expect(self, ids: Sequence[str]) -> None:
        for id in ids:
            if id not in self._runs:
                self._runs[id] = None
                self.ids.append(id.encode())

    def now(self, id: str) -> Seen | None:
        return self._runs.get(id)

    def has_ended(self, id: str) -> bool:
        return any(run == id for run, _ in self._endings)

    def all(self) -> Iterable[tuple[str, Seen | None]]:
        return self._runs.items()

    # -- one step

    def step(self, now: int, call: str, given: Given, reply: Any, rows: Sequence[Any] | None) -> None:
        if isinstance(reply, Exception):
            raise Broken(f"{call} raised at the server: {reply}")
        before = dict(self._runs)
        if rows is not None:
            # not strict: a later call of the same trip may create a run that is already expected but was not read yet
            for id, row in zip(list(self._runs), rows, strict=False):
                if row != self._rows.get(id):
                    self._rows[id], self._runs[id] = row, Seen.of(row)
                    self._one_run(call, id, before[id], self._runs[id])
        if call in OWNERS_CALLS:
            each = bool(given[1]) and "token" in given[1][0]
            answers = _answers(reply)
            for item, answer in zip(given[1] if each else [given[0]], answers if each else answers[:1], strict=True):
                self._owners_call(call, item, answer, before[item["id"]])
        elif (law := getattr(self, f"_{call}", None)) is not None:
            law(now, given, reply, before)
        if call in ("send", "suspend"):
            self._no_lost_wake_up(call)
        step = Step(now, call, given, reply, before, self._runs)
        for law in self._laws:
            law.see(step)

    # -- what holds for every change of a run

    def _one_run(self, call: str, id: str, before: Seen | None, after: Seen | None) -> None:
        if after is None:
            if call != "trim" and before is not None and before.status not in ENDED:
                raise Broken(f"run {id} was {before.status} and is lost after {call}")
            return
        if before is None:
            if call not in MOVES.get((None, after.status), ()):
                raise Broken(f"{call} created run {id}")
            if any(run == id for run, _ in self._endings):
                raise Broken(f"{call} created run {id} again after it had ended")
            return
        old, new = before.counters, after.counters
        if before.status != after.status and call not in MOVES.get((before.status, after.status), ()):
            raise Broken(f"{call} moved run {id} from {before.status} to {after.status}")
        if new.epoch < old.epoch or new.attempt < old.attempt or new.life < old.life:
            raise Broken(f"{call} decreased the counters of run {id}: {old} to {new}")
        if new.life > old.life and call != "revive":
            raise Broken(f"{call} started a new life of run {id}")
        if (after.status is Status.WAITING) != bool(after.wait):
            raise Broken(f"run {id} is {after.status} and waits for {after.wait!r} after {call}")
        if after.cancel and after.status is not Status.RUNNING and after.status not in ENDED:
            raise Broken(f"run {id} is {after.status} after {call}, although its cancel was requested")
        counts = [(one.releases, one.recoveries, one.failures, one.strikes) for one in (old, new)]
        if Status.WAITING in (before.status, after.status) and any(b > a for a, b in zip(*counts, strict=True)):
            raise Broken(f"{call} counted the wait of run {id} as a failure: {old} to {new}")
        self._one_owner(call, id, before, after)
        self._one_ending(call, id, before, after)

    def _one_owner(self, call: str, id: str, before: Seen, after: Seen) -> None:
        if (after.status is Status.RUNNING) != bool(after.token):
            raise Broken(f"run {id} is {after.status} with token {after.token!r} after {call}")
        if after.token == before.token:
            return
        if after.token:
            if call != "claim" or before.token:
                raise Broken(f"{call} gave run {id} from {before.token!r} to {after.token!r}")
            if after.token in self._tokens.setdefault(id, set()):
                raise Broken(f"run {id} got token {after.token} again")
            if after.counters.epoch <= before.counters.epoch:
                raise Broken(f"the epoch of run {id} did not grow with its claim")
            self._tokens[id].add(after.token)
        elif after.counters.epoch <= before.counters.epoch and call not in ("complete", "fail"):
            raise Broken(f"{call} took run {id} from its owner without a larger epoch")

    def _one_ending(self, call: str, id: str, before: Seen, after: Seen) -> None:
        life = (id, after.counters.life)
        if after.status in ENDED:
            if self._endings.setdefault(life, after.status) is not after.status:
                raise Broken(f"run {id} ended as {self._endings[life]} and then by {call} as {after.status}")
            if before.status in ENDED and (before.result, before.error) != (after.result, after.error):
                raise Broken(f"{call} changed the ending of run {id}")
        elif life in self._endings:
            raise Broken(f"run {id} had ended as {self._endings[life]}, and continues after {call}")
        goes_on = before.head and after.head and before.counters.life == after.counters.life
        if goes_on and (after.head[5] < before.head[5] or after.head[0] < before.head[0]):
            raise Broken(f"{call} moved the checkpoint of run {id} back from {before.head} to {after.head}")

    # -- what an owner asks for

    def _owners_call(self, call: str, item: dict[str, str], answer: str, before: Seen | None) -> None:
        id, token, after = item["id"], item["token"], self._runs[item["id"]]
        owns = before is not None and before.token == token
        if not owns and before != after:
            raise Broken(f"a stale {call} with {token} was executed on run {id}: {before} to {after}")
        last = self._accepted.get(id)
        if not owns and answer not in ("fenced", "gone") and (last is None or last[:2] != (token, call)):
            raise Broken(f"a stale {call} of run {id} with {token} was answered {answer}")
        if last is not None and last[:2] == (token, call) and before is not None and answer != last[2]:
            raise Broken(f"{call} of run {id} was answered {last[2]}, but when repeated {answer}")
        if owns and answer == "fenced":
            raise Broken(f"the owner's {call} of run {id} was fenced")
        if owns and before is not None and before.cancel and call in ("complete", "fail") and answer == "ok":
            raise Broken(f"{call} of run {id} was accepted after a cancel was requested")
        if owns and call not in GO_ON and answer not in ("gap", "fenced", "requested"):
            self._accepted[id] = (token, call, answer)
            assert after is not None
            if after.token:
                raise Broken(f"{call} of run {id} was answered {answer}, but the run is still owned")
            self._carried_along(call, id, item.get("delta", ""), after)

    def _carried_along(self, call: str, id: str, delta: str, after: Seen) -> None:
        """A delta that comes with an ending is saved with it, unless nothing of the run is kept. It begins with its number."""
        seq = int(delta.partition(":")[2][: int(delta.partition(":")[0])]) if delta else 0
        kept = after.head or after.status not in ENDED
        if kept and seq > (after.head[0] if after.head else 0):
            raise Broken(f"{call} of run {id} contained save {seq}, but the checkpoint is {after.head}")

    # -- signals

    def _send(self, now: int, given: Given, reply: Any, before: dict[str, Seen | None]) -> None:
        """A signal is stored once for each operation and each key, and only for a run that has not ended."""
        id, word = given[0]["id"], _answers(reply)[0]
        marks = {f"operation {given[0]['operation']}", *([f"key {given[0]['key']}"] if given[0]["key"] else ())}
        known, run = self._sends.setdefault(id, set()), before.get(id)
        if word == "sent" and not marks & known:
            kept = given[0]["topic"] == TOPIC and run is not None and run.status is not Status.COMPLETED  # for a revive
            if not kept and (run is None or run.status in ENDED):
                raise Broken(f"send to run {id} was answered {word}, but the run is {run}")
            self._signals.setdefault((id, given[0]["topic"]), []).append(given[0]["payload"])
            known |= marks
        elif word in ("ended", "missing", "full") and run is not None and run.status not in ENDED:
            raise Broken(f"send to run {id} was answered {word}, but the run is {run.status}")
        elif word == "found" and not marks & known:
            raise Broken(f"send to run {id} found a key that was never sent")

    def _receive(self, now: int, given: Given, reply: Any, before: dict[str, Seen | None]) -> None:
        """A receive answers the next signal of a topic, to the owner only, and misses none that was stored before the deadline."""
        id, run, word = given[0]["id"], self._runs.get(given[0]["id"]), _answers(reply)[0]
        owns = run is not None and run.token == given[0]["token"]
        if owns != (word != "fenced"):
            raise Broken(f"receive of run {id} with {given[0]['token']} was answered {word}, and the run is {run}")
        waiting = {item["topic"]: int(item["received"]) for item in given[1]}
        if word == "signal":
            topic, number, payload = reply[3].decode(), int(reply[4]), reply[5].decode(errors="replace")
            sent = self._signals.get((id, topic), [])
            if number != waiting[topic] + 1 or sent[number - 1 : number] != [payload]:
                raise Broken(
                    f"run {id} received signal {number} of {topic} after {waiting[topic]}: {payload!r} of {sent}"
                )
        elif owns and not given[0]["deadline"]:
            for topic, received in waiting.items():
                if len(self._signals.get((id, topic), [])) > received:
                    raise Broken(
                        f"receive of run {id} was answered {word}, but signal {received + 1} of {topic} is stored"
                    )

    def _no_lost_wake_up(self, call: str) -> None:
        """No run waits for a signal that is stored."""
        for id, run in self._runs.items():
            for part in run.wait.split()[2:] if run is not None and run.wait else ():
                what, topic, received = part.split(":")
                if what == "s" and len(self._signals.get((id, topic), [])) > int(received):
                    raise Broken(f"run {id} waits for {part} after {call}, but the signal is stored")

    # -- producers

    def _enqueue(self, now: int, given: Given, reply: Any, before: dict[str, Seen | None]) -> None:
        for item, row in zip(given[1], reply, strict=True):
            word, id = row[0].decode(), row[1].decode()
            if before.get(item["id"]) is not None and word != "created":
                raise Broken(f"enqueue of the existing run {item['id']} was answered {word}")
            joined = " " in item["parent"]  # Its ending may have been kept from an earlier life of the parent.
            if word == "created" and self._runs[item["id"]] is None and not joined:
                raise Broken(f"enqueue of {item['id']} was answered created, but the run does not exist")
            if not item["once"] or word not in ("created", "found"):
                continue
            if word == "created" and before.get(id) is not None:
                continue  # A repeated call gets the answer of the first one, whichever run has the key now.
            named = self.created.get(item["once"], id)
            holds = self._runs.get(named)
            if named != id and holds is not None and holds.status not in ENDED:
                raise Broken(f"key {item['once']} names {named}, but {id} was {word} too")
            self.created[item["once"]] = id

    def _revive(self, now: int, given: Given, reply: Any, before: dict[str, Seen | None]) -> None:
        id, operation, after = given[0]["id"], given[0]["operation"], self._runs[given[0]["id"]]
        word = _answers(reply)[0]
        if self._revivals.get(id) == operation and before[id] is not None and (word != "queued" or before[id] != after):
            raise Broken(f"revive {operation} of run {id} was repeated and answered {word}: {before[id]} to {after}")
        if word == "queued":
            self._revivals[id] = operation
        if given[0]["from_start"] == "1" and after is not None and before[id] != after:
            self._restarted(id, after.counters.epoch)

    # -- workers

    def _join(self, now: int, given: Given, reply: Any, before: dict[str, Seen | None]) -> None:
        name, word = given[0]["worker"], _answers(reply)[0]
        member = self._members.get(name)
        if word == "ok":
            if member is not None and (member.condemned or member.gone):
                raise Broken(f"worker {name} joined after it was recovered")
            lease = int(given[0]["lease"])
            self._members[name] = replace(member, until=now + lease) if member else Member(lease, now + lease)
            self._rest = 0  # Its lease may be short, so three ticks without a judgement are a gap from now on.

    def _heartbeat(self, now: int, given: Given, reply: Any, before: dict[str, Seen | None]) -> None:
        member = self._members.get(given[0]["worker"])
        if _answers(reply)[0] == "ok":
            if member is None or member.condemned or member.gone:
                raise Broken(f"worker {given[0]['worker']} was renewed after it was recovered")
            member.until, member.floor = now + member.lease, max(member.floor, int(given[0]["floor"]))
        elif member is not None and not member.condemned and not member.gone:
            raise Broken(f"worker {given[0]['worker']} is gone although no process recovered it")

    def _leave(self, now: int, given: Given, reply: Any, before: dict[str, Seen | None]) -> None:
        if _answers(reply)[0] == "ok":
            self._members.setdefault(given[0]["worker"], Member(0, 0)).gone = True
            self._holds_nothing(given[0]["worker"], "left")

    def _holds_nothing(self, worker: str, what: str) -> None:
        for id, run in self._runs.items():
            if run is not None and run.token.endswith(f"-{worker}"):
                raise Broken(f"worker {worker} {what} but still owns run {id}")

    def _claim(self, now: int, given: Given, reply: Any, before: dict[str, Seen | None]) -> None:
        name, number, word = given[0]["worker"], int(given[0]["number"]), _answers(reply)[0]
        member = self._members.get(name)
        taken = {id for id, run in self._runs.items() if run is not None and run != before[id]}
        told = {row[0].decode() for row in reply[1]} if word in ("ok", "suspect") else set()
        if taken and (member is None or member.condemned or member.gone):
            raise Broken(f"worker {name} took {taken} after it was recovered")
        if member is None:
            return
        if word in ("ok", "suspect") and (member.condemned or member.gone):
            raise Broken(f"claim {number} of {name} was answered {word} after the worker was recovered")
        if taken and number <= member.floor:
            raise Broken(f"claim {number} of {name} took {taken} although claims up to {member.floor} were abandoned")
        if taken and now >= member.until:
            raise Broken(f"worker {name} took {taken} after its lease had expired")
        if number in member.claims:
            if taken:
                raise Broken(f"claim {number} of {name} was repeated and took {taken} in addition")
            held = {id for id in member.claims[number] if self._held_by_claim(id, name, number)}
            if word in ("ok", "suspect") and told != held:
                raise Broken(f"claim {number} of {name} was repeated and answered {told}, but owns {held}")
        elif word in ("ok", "suspect"):
            if told != taken:
                raise Broken(f"claim {number} of {name} took {taken} but answered {told}")
            member.claims[number] = taken

    def _held_by_claim(self, id: str, worker: str, number: int) -> bool:
        run = self._runs[id]
        return run is not None and run.token.endswith(f"-{number}-{worker}")

    # -- recovery of workers

    def _abandon(self, now: int, given: Given, reply: Any, before: dict[str, Seen | None]) -> None:
        self._members.setdefault(given[0]["worker"], Member(0, 0)).condemned = True
        self._only_of(given[0]["worker"], before)
        if int(reply[6]) == 0:
            self._holds_nothing(given[0]["worker"], "was swept")

    def _recover(self, now: int, given: Given, reply: Any, before: dict[str, Seen | None]) -> None:
        name, word = given[0]["worker"], _answers(reply)[0]
        if word == "unlocked":
            return
        self._judge_leases(now)
        if word != "ok":
            return
        member = self._members.setdefault(name, Member(0, 0))
        if not member.condemned:
            if now < member.until:
                raise Broken(f"worker {name} was recovered {member.until - now} ms before its lease expired")
            until = self._protected_until(member)
            if now < until:
                raise Broken(f"worker {name} was recovered {until - now} ms before the end of a pause of recovery")
        member.condemned = True
        self._only_of(name, before)

    def _only_of(self, worker: str, before: dict[str, Seen | None]) -> None:
        for id, run in self._runs.items():
            was = before[id]
            if run is None:
                continue  # its retention is over; see _one_run
            if run != was and (was is None or not was.token.endswith(f"-{worker}")):
                raise Broken(f"run {id} was recovered with worker {worker} although it was {was}")

    def _judge(self, now: int, given: Given, reply: Any, before: dict[str, Seen | None]) -> None:
        """A coordinator may judge half as often only while recovery is not paused and no lease ends soon."""
        self._judge_leases(now)
        self._rest = int(reply[4])
        leased = [member for member in self._members.values() if not member.gone and not member.condemned]
        soonest = min((member.until for member in leased), default=None)
        if self._rest > TICK_MS and soonest is not None and soonest - now <= QUIET_TICKS * TICK_MS:
            raise Broken(f"the next judgement is in {self._rest} ms, although a lease ends in {soonest - now} ms")

    def _judge_leases(self, now: int) -> None:
        """Workers must not be declared lost if no coordinator looked for three rests, or if most leases expired together.

        A worker that joins shortens the rest to one tick, as the coordinators did not know its lease at their last judgement.
        """
        there = [member for member in self._members.values() if not member.gone]
        leased = [member for member in there if not member.condemned]
        unwatched = self._judged_at is None or now - self._judged_at > 3 * max(TICK_MS, self._rest)
        expired = [member for member in leased if (self._judged_at or 0) < member.until <= now]
        if unwatched or (len(expired) >= 3 and 2 * len(expired) > len(leased)):
            self._hold_until = now + min((member.lease for member in leased), default=0)
        if unwatched:
            for member in there:
                self._after_gap(now, member)
        if now < self._hold_until:
            for member in there:
                if member.until <= now and member.spared[0] != member.until:
                    member.spared = (member.until, self._hold_until, False)
        self._judged_at = now

    def _after_gap(self, now: int, member: Member) -> None:
        """Protect a worker that was expired before the gap for a third of its lease more, once."""
        expired, until, prolonged = member.spared
        if expired == member.until and not prolonged and until < now + member.lease // 3:
            member.spared = (expired, now + member.lease // 3, True)

    def _protected_until(self, member: Member) -> int:
        """Return when a worker may be recovered: each expiry of its lease is protected by one pause of recovery."""
        return member.spared[1] if member.spared[0] == member.until else self._hold_until


class Watchers:
    """One watcher for each partition: no rule spans two partitions."""

    def __init__(self, tags: Sequence[str], restarted: Callable[[str, int], None], facts: Facts) -> None:
        self._of = {tag: Watcher(restarted, facts) for tag in tags}

    def of(self, tag: str) -> Watcher:
        return self._of[tag]

    def now(self, id: str) -> Seen | None:
        return next((seen for watcher in self._of.values() if (seen := watcher.now(id)) is not None), None)

    def has_ended(self, id: str) -> bool:
        return any(watcher.has_ended(id) for watcher in self._of.values())

    def all(self) -> Iterable[tuple[str, Seen | None]]:
        return [pair for watcher in self._of.values() for pair in watcher.all()]

    def granted(self, id: str) -> int:
        """Return the requests that were granted to a run."""
        return sum(watcher.budgets.granted[id] for watcher in self._of.values())

    def check_wake_ups(self, now: int, calm_since: int) -> None:
        for watcher in self._of.values():
            watcher.children.check_wake_ups(now, calm_since)

    def check_totals(self) -> None:
        for watcher in self._of.values():
            watcher.budgets.check_totals({id: run.requests for id, run in watcher.all() if run is not None})
