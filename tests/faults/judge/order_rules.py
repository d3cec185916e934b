"""The judge's rules about orders: schedules, pauses, revives, discards, deadlines. Pure code without I/O.

An order without an acknowledgement may have been executed, or may be executed later. An acknowledged order must hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from coordinator.model.policies.schedule import run_id
from tests.faults.judge.evidence import Evidence
from tests.faults.judge.history import NEVER, Operation

MOVED = ("fired", "skipped", "moved")


# ---- runs --------------------------------------------------------------------------------------------------------------


def discarded_for_good(see: Evidence) -> Iterator[str]:
    """No worker gets a discarded run, and only its tombstone is left. Runs that were not discarded are complete."""
    for op in see.history.of("discard"):
        if op.word == "discarded":
            if any(claim.invoked > op.ended for claim in see.claims.get(op.id, ())):
                yield f"run {op.id} was discarded and then given to a worker"
            if op.id in see.final.runs and not see.final.runs[op.id].bare:
                yield f"run {op.id} was discarded but still exists"
    for id, run in see.final.runs.items():
        if run.bare and id not in see.discarded:
            yield f"run {id} is gone although no discard was sent"


def revived_once(see: Evidence) -> Iterator[str]:
    """Each acknowledged revive adds one life, however often it was sent, and there are no other lives."""
    asked: dict[str, set[str]] = defaultdict(set)
    told: dict[str, set[str]] = defaultdict(set)
    for op in see.history.of("revive"):
        if op.word == "queued":
            told[op.id].add(str(op.given["operation"]))
        if op.word == "queued" or op.outcome == "unknown":
            asked[op.id].add(str(op.given["operation"]))
    for id, run in see.final.runs.items():
        most, least = 1 + len(asked[id]), 1 + len(told[id])
        if not least <= run.counters.life <= most:
            yield f"run {id} has life {run.counters.life} but was revived {least - 1} to {most - 1} times"


def revived_from_start(see: Evidence, id: str, since: int, until: int) -> bool:
    """Return whether a run may have been revived from the start between two moments."""
    return any(op.ended > since and op.invoked < until for op in see.from_start.get(id, ()))


def killed_for_good(see: Evidence) -> Iterator[str]:
    """A run that its deadline killed is not queued again in this life."""
    for op in see.history.of("kill"):
        if op.word == "ok":
            life = see.life_of.get((op.id, op.token))
            for claim in see.claims.get(op.id, ()):
                if claim.life == life and claim.invoked > op.ended:
                    yield f"run {op.id} was killed by its deadline under {op.token} and then given to {claim.token}"


# ---- pauses ------------------------------------------------------------------------------------------------------------


def paused_stays(see: Evidence) -> Iterator[str]:
    """No run of a paused kind is claimed.

    There are two exceptions. A claim that was first sent before the pause may be answered again. And an unpause without
    a reply may take effect at any time.
    """
    first: dict[tuple[str, str], int] = {}
    for op in see.history.of("claim"):
        first.setdefault((str(op.given.get("worker")), str(op.given.get("number"))), op.invoked)
    given_out = [
        (first[_asking(op)], op.ended, row)
        for op in see.history.of("claim")
        if op.word in ("ok", "suspect")
        for row in op.answer[1]
    ]
    for name, since, until in _pauses(see):
        for asked, ended, row in given_out:
            if since < asked and ended < until and name == f"kind:{_kind(row.get('route', ''))}":
                yield f"run {row['id']} was given to {row['token']} while {name} was paused"


def _asking(op: Operation) -> tuple[str, str]:
    return str(op.given.get("worker")), str(op.given.get("number"))


def _kind(route: str) -> str:
    return route.partition(":")[2].rpartition("@")[0]


def _pauses(see: Evidence) -> Iterator[tuple[str, int, int]]:
    """Return the intervals in which each kind was certainly paused."""
    ends = list(see.history.of("unpause"))
    for op in see.history.of("pause"):
        name = str(op.given["name"])
        of_it = [end for end in ends if end.given["name"] == name]
        # The answer `changed` only says with what the caller has to ask again.
        if op.word in ("ok", "again") and not any(end.invoked < op.ended and end.ended > op.invoked for end in of_it):
            yield name, op.ended, min((end.invoked for end in of_it if end.invoked > op.ended), default=NEVER)


# ---- schedules ---------------------------------------------------------------------------------------------------------


def overtaken(see: Evidence) -> set[str]:
    """Return the runs that the next run of their schedule may have cancelled."""
    cancels = {op.given.get("name") for op in see.history.of("schedule") if op.given.get("overlap") == "cancel"}
    fired: dict[str, list[Operation]] = defaultdict(list)
    for op in see.history.of("fire"):
        if op.id and op.given["name"] in cancels:
            fired[str(op.given["name"])].append(op)
    found: set[str] = set()
    for steps in fired.values():
        newest = max(int(op.given["at"]) for op in steps)
        found |= {op.id for op in steps if int(op.given["at"]) < newest}
    return found


def fired_once(see: Evidence) -> Iterator[str]:
    """A fire time has exactly one run, however many coordinators fire it, and no fire time is skipped."""
    steps: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for op in see.history.of("fire"):
        name, at = str(op.given["name"]), str(op.given.get("at", ""))
        steps[name, str(op.given["generation"])].append(op)
        if at and op.id != run_id(name, int(at), int(op.id.rpartition("-")[2])):
            yield f"schedule {name} tried to enqueue {op.id} for fire time {at}, which has a different run id"
        if op.word == "fired" and str(op.answer[1]) != op.id:
            yield f"schedule {name} fired run {op.answer[1]} for fire time {at} instead of {op.id}"
    for (name, _), of_it in steps.items():
        expected = {int(op.given["expected"]) for op in of_it if op.given.get("expected")}
        for op in of_it:
            then = int(op.given["next"])
            if op.word in MOVED and then not in expected and then < max(expected, default=0):
                yield f"schedule {name} skipped its fire time {then}"


def fires_on_time(see: Evidence) -> Iterator[str]:
    """A schedule fires at the times of its rules, and not while it is paused or after it was removed."""
    rules: dict[str, set[int]] = defaultdict(set)
    changes: dict[str, list[Operation]] = defaultdict(list)
    for op in see.history.of("schedule", "pause_schedule", "unschedule"):
        changes[str(op.given["name"])].append(op)
        if op.given.get("rules"):
            rules[str(op.given["name"])].add(round(op.given["rules"] * 1000))
    for op in see.history.of("fire"):
        if op.word != "fired":
            continue
        name, at = str(op.given["name"]), int(op.given["at"])
        if not any(at % every == 0 for every in rules[name]):
            yield f"schedule {name} fired at {at}, which is not one of its times"
        for stop in changes[name]:
            if _stops(stop) and stop.ended < op.invoked and not _taken_back(stop, changes[name], op):
                yield f"schedule {name} fired at {at}, after {stop.script} was acknowledged"


def _stops(op: Operation) -> bool:
    return op.word == "ok" and (op.script == "unschedule" or str(op.given.get("paused")) == "1")


def _taken_back(stop: Operation, changes: list[Operation], fired: Operation) -> bool:
    """Return whether a later call set or unpaused the schedule. A call that was sent before the stop is refused."""
    return any(op.invoked > stop.invoked and not _stops(op) and op.invoked < fired.ended for op in changes)
