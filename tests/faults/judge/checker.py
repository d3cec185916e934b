"""The judge: check histories, journal and the final state of the server against the promises. Pure code without I/O.

Each rule is a function that yields one sentence for each breach. test_checker.py has an invented history for each rule
that breaks it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from coordinator.model.limits import BACKSTOP, STRIKES
from tests.e2e.processes import Event
from tests.faults.judge import child_rules, feature_rules, order_rules, record_rules, signal_rules
from tests.faults.judge.evidence import ACCEPTED, ENDED, Claim, Evidence, Save, epoch_of
from tests.faults.judge.history import Operation

OWNERS = ("checkpoint", "note", "complete", "fail", "release", "retry", "reject", "suspend", "extend", "kill")
ENDINGS = ("complete", "fail", "release", "retry", "reject", "suspend")


# ---- the rules ---------------------------------------------------------------------------------------------------------


def nothing_lost(see: Evidence) -> Iterator[str]:
    for id in sorted(see.acknowledged - see.discarded - set(see.final.runs)):
        yield f"run {id} was acknowledged and is gone"


def nothing_invented(see: Evidence) -> Iterator[str]:
    for id in sorted((set(see.final.runs) | set(see.claims)) - see.invoked):
        yield f"run {id} exists although no process enqueued it"


def liveness(see: Evidence) -> Iterator[str]:
    for id, run in see.final.runs.items():
        if run.status not in ENDED:
            yield f"run {id} is {run.status} long after the last fault"


def ended_as_it_should(see: Evidence) -> Iterator[str]:
    """Each run has the right ending.

    A run is dead only if its strikes are used up, and cancelled only if a cancel was requested. Otherwise its ending is
    the one of its handler. For a discarded run, the expected ending is no longer known.
    """
    asked = {op.id for op in see.history.of("cancel")} | order_rules.overtaken(see)
    asked |= child_rules.dropped(see, asked)
    for id, run in see.final.runs.items():
        if run.bare:
            continue
        if run.status == "dead" and (run.counters.strikes >= STRIKES or run.counters.recoveries >= BACKSTOP):
            continue
        if run.status == "cancelled" and id in asked:
            continue
        if run.status == "failed" and run.may_fail:
            continue
        if run.status in ENDED and run.status != run.expected_status:
            yield f"run {id} ended as {run.status} instead of {run.expected_status}"


def died_alone(see: Evidence) -> Iterator[str]:
    """A run becomes dead only after a crash in which it was alone in its process, so that no other run is affected."""
    for id, run in see.final.runs.items():
        if run.status != "dead" or run.counters.strikes < STRIKES:
            continue
        for claim in see.claims.get(
            id, ()
        ):  # The answer of the last claim may have been lost together with its sender.
            if claim.attempt == run.counters.attempt and not claim.alone:
                yield f"run {id} became dead under {claim.token} but was not alone in its process"


def one_ending(see: Evidence) -> Iterator[str]:
    """In one life, one owner's ending is accepted, no worker gets the run afterwards, and this ending is stored."""
    endings: dict[tuple[str, int], dict[str, Operation]] = defaultdict(dict)
    for op in see.history.of("complete", "fail"):
        if op.word == "ok" and op.id not in see.excused:
            endings[op.id, see.life_of.get((op.id, op.token), 1)].setdefault(op.token, op)
    for (id, life), accepted in endings.items():
        if len(accepted) > 1:
            yield f"run {id} was ended {len(accepted)} times in its life {life}: by {', '.join(accepted)}"
        first = min(op.ended for op in accepted.values())
        for claim in see.claims.get(id, ()):
            if claim.life == life and claim.invoked > first:
                yield f"run {id} was given to {claim.token} after its ending"
        token, op = next(iter(accepted.items()))
        run = see.final.runs.get(id)
        if run and run.counters.life == life and not run.last.startswith(f"{token} {op.script} "):
            yield f"run {id} was ended by {token} {op.script}, but {run.last!r} is stored"


def one_owner(see: Evidence) -> Iterator[str]:
    owners: dict[tuple[str, str], set[int]] = defaultdict(set)
    for event in see.events:
        owners[event.run, event.token].add(event.pid)
    for (id, token), pids in owners.items():
        if len(pids) > 1:
            yield f"run {id} was executed by the processes {sorted(pids)} under one token, {token}"


def epochs_grow(see: Evidence) -> Iterator[str]:
    for id, claims in see.claims.items():
        done = sorted(claims, key=lambda claim: claim.ended)
        highest, token, at = -1, "", 0
        for claim in claims:  # in the order of the requests: every epoch that was answered earlier must be lower
            while at < len(done) and done[at].ended < claim.invoked:
                if done[at].epoch > highest:
                    highest, token = done[at].epoch, done[at].token
                at += 1
            if claim.epoch <= highest and claim.token != token:
                yield f"run {id} was given out under {claim.token} after {token}"


def resumed_fresh(see: Evidence) -> Iterator[str]:
    """A resumed run starts from the newest acknowledged save, unless it was revived from the start since then."""
    for id, saves in see.saves.items():
        for claim in see.claims.get(id, ()):
            kept = [save for save in saves if not order_rules.revived_from_start(see, id, save.invoked, claim.ended)]
            before = [save.seq for save in kept if save.ended < claim.invoked]
            if before and claim.seq is not None and claim.seq < max(before):
                yield f"run {id} was given to {claim.token} at save {claim.seq} although {max(before)} was acknowledged"
    saved: dict[str, list[Event]] = defaultdict(list)
    for event in sorted(see.events, key=lambda event: event.at):
        if event.what == "saved":
            saved[event.run].append(event)
        elif event.what == "start":  # For a stale owner, only earlier saves count.
            before = [one.number for one in saved[event.run] if _is_before(see, one, event)]
            if event.number < (most := max(before, default=0)):
                yield f"run {event.run} started with {event.number} messages under {event.token} after {most} were saved"


def _is_before(see: Evidence, saved: Event, start: Event) -> bool:
    """Return whether a save must be present at a start."""
    if epoch_of(saved.token) >= epoch_of(start.token):
        return False
    return not order_rules.revived_from_start(see, start.run, round(saved.at * 1e9), round(start.at * 1e9))


def bytes_kept(see: Evidence) -> Iterator[str]:
    for event in see.events:
        if event.what == "damaged":
            yield f"run {event.run} found a transcript under {event.token} that no process wrote"
    for id, run in see.final.runs.items():
        if run.status == "completed" and not run.bare and run.result != run.expected:
            yield f"run {id} has the result {run.result!r} instead of {run.expected!r}"


def chunks_kept(see: Evidence) -> Iterator[str]:
    """The next owner gets exactly the bytes that were acknowledged last. A revive from the start begins with new bytes."""
    for id, claims in see.claims.items():
        for claim in claims:
            for save in see.saves.get(id, ()):
                if order_rules.revived_from_start(see, id, save.invoked, claim.ended):
                    continue
                if save.count and save.ended < claim.invoked and _untouched(save, see.saves[id], claim):
                    there = claim.chunks.get(str(save.base))
                    if there != save.chunk:
                        yield f"run {id}: messages from {save.base} on were saved as {save.chunk}, but {claim.token} got {there}"


def _untouched(save: Save, saves: Sequence[Save], claim: Claim) -> bool:
    """Return whether no later save may have replaced these messages, answered or not."""
    if not claim.chunks or save.generation != claim.generation:
        return False
    return claim.seq == save.seq and not any(other.seq > save.seq and other.invoked < claim.ended for other in saves)


def no_stale_write(see: Evidence) -> Iterator[str]:
    """A write is refused if it was sent after another owner got the run. A repeated ending gets its old answer."""
    asked: dict[tuple[str, str, str], int] = {}
    for op in see.history.of(*OWNERS):
        first = asked.setdefault((op.script, op.id, op.token), op.invoked)
        if op.word not in ACCEPTED:
            continue
        newer = [c.ended for c in see.claims.get(op.id, ()) if c.epoch > epoch_of(op.token)]
        begun = first if op.script in ENDINGS else op.invoked
        if newer and begun > min(newer):
            yield f"run {op.id}: {op.script} of {op.token} was accepted after another owner had the run"


def recovered_workers_stay_out(see: Evidence) -> Iterator[str]:
    gone: dict[str, int] = {}
    for op in see.history.of("abandon", "recover"):
        if op.word == "ok":
            worker = str(op.given["worker"])
            gone[worker] = min(gone.get(worker, op.ended), op.ended)
    for op in see.history.of("claim", "heartbeat", "join"):
        worker = str(op.given.get("worker", ""))
        if op.word in ("ok", "suspect") and op.invoked > gone.get(worker, op.invoked):
            yield f"worker {worker} was recovered, but its {op.script} was answered {op.word}"


def effects_once(see: Evidence) -> Iterator[str]:
    done = Counter((e.run, e.token, e.what, e.number) for e in see.events if e.what in ("start", "step", "end"))
    for (run, token, what, number), count in done.items():
        if count > 1:
            yield f"run {run}: {what} {number} was done {count} times under {token}"


def structure(see: Evidence) -> Iterator[str]:
    yield from (f"doctor: {finding}" for finding in see.final.findings)


def no_leaks(see: Evidence) -> Iterator[str]:
    yield from (f"key {key} is left behind" for key in see.final.leaks)


RULES: dict[str, Callable[[Evidence], Iterator[str]]] = {
    rule.__name__: rule
    for rule in (
        nothing_lost, nothing_invented, liveness, ended_as_it_should, died_alone, one_ending, one_owner, epochs_grow, resumed_fresh,
        bytes_kept, chunks_kept, no_stale_write, recovered_workers_stay_out, effects_once, structure, no_leaks,
        order_rules.discarded_for_good, order_rules.revived_once, order_rules.killed_for_good, order_rules.paused_stays,
        order_rules.fired_once, order_rules.fires_on_time,
        signal_rules.signals_stored_once, signal_rules.signals_received_in_order, signal_rules.signals_kept,
        signal_rules.answers_in_order,
        child_rules.children_end_once, child_rules.endings_only_grow,
        feature_rules.events_settled_once, feature_rules.effects_never_repeated, feature_rules.budgets_hold,
        feature_rules.groups_hold, feature_rules.rates_hold,
        record_rules.records_fresh, record_rules.records_owned, record_rules.records_kept,
    )
}  # fmt: skip


# ---- the judgement -----------------------------------------------------------------------------------------------------


@dataclass
class Judgement:
    """The breaches by rule, and the counts of what was judged."""

    breaches: dict[str, list[str]] = field(default_factory=dict)
    counts: dict[str, int | float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.breaches


def judge(see: Evidence, *, faults: int, waived: Sequence[str] = ()) -> Judgement:
    """Apply all rules except those that are not promised under these faults."""
    breaches = {name: found for name, rule in RULES.items() if name not in waived and (found := list(rule(see)))}
    return Judgement(breaches, counts(see, faults))


def costs_nothing(see: Evidence) -> Iterator[str]:
    """Graceful faults cause no recovery, no strike and no repeated step."""
    for id, run in see.final.runs.items():
        if run.counters.recoveries or run.counters.strikes:
            yield f"run {id} has {run.counters.recoveries} recoveries and {run.counters.strikes} strikes"
    done: dict[tuple[str, int], str] = {}
    for event in see.events:
        if event.what == "step":
            first = done.setdefault((event.run, event.number), event.token)
            if first != event.token:
                yield f"run {event.run}: step {event.number} was done by {first} and by {event.token}"


def counts(see: Evidence, faults: int) -> dict[str, int | float]:
    steps: dict[tuple[str, int], set[str]] = defaultdict(set)
    for event in see.events:
        if event.what == "step":
            steps[event.run, event.number].add(event.token)
    runs = see.final.runs
    return {
        "faults": faults,
        "attempts": len({(c.id, c.token) for claims in see.claims.values() for c in claims}),
        "acknowledged": len(see.acknowledged),
        "finished": sum(runs[id].status in ENDED for id in see.acknowledged & set(runs)),
        "dead": sum(run.status == "dead" for run in runs.values()),
        "lost": sum(1 for _ in nothing_lost(see)),
        "duplicated": sum(1 for _ in one_ending(see)),
        "stale": sum(1 for _ in no_stale_write(see)),
        "fenced": sum(op.word == "fenced" for op in see.history.of(*OWNERS)),
        "recovered": sum(run.counters.recoveries for run in runs.values()),
        "released": sum(run.counters.releases for run in runs.values()),
        "fired": sum(op.word == "fired" for op in see.history.of("fire")),
        "records": len({op.id for op in see.history.of("record_save") if op.word == "ok"}),
        "events_settled": sum(len(run.events or ()) for run in runs.values() if run.status == "completed"),
        "effects": sum(event.what == "effect" for event in see.events),
        "calls": sum(op.word == "ok" for op in see.history.of("acquire")),
        "unanswered": sum(op.outcome == "unknown" for op in see.history.operations),
        "steps": len(steps),
        "steps_redone": sum(len(tokens) - 1 for tokens in steps.values()),
        "bound_95": round(3 / faults, 6) if faults else 1.0,
    }
