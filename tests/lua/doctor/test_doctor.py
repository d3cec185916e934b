"""doctor: each kind of damage is planted, found, described and repaired; sound data is not touched."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from typing import Any

import pytest

from coordinator import Status
from coordinator.doctor import page_examiner
from coordinator.doctor.examiner import examine
from coordinator.doctor.findings import Finding
from coordinator.doctor.report import DoctorReport
from coordinator.model import limits
from coordinator.model.policies.budget import Amount, sum_spend
from coordinator.store import scripts
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import doctor as doctor_plans
from coordinator.store.plans.workers import Claimed
from coordinator.store.replies import pairs
from coordinator.store.script import Call
from coordinator.views.run_view import run_view
from tests.lua.store import LEASE, NOW, ROUTES, Store, delta

LINE = ROUTES[0]
DAY = 86_400_000


def examine_store(store: Store, repair: bool = False) -> DoctorReport:
    return store.do(examine(store.ns, repair=repair, now=store.at))


def words(report: DoctorReport) -> list[str]:
    return sorted(f"{finding.subject} {finding.fault}" for finding in report.findings)


def busy(store: Store) -> dict[str, str]:
    """Create a run in each place that a sound namespace has."""
    store.join("w9")
    ended = {}
    for status in ("completed", "failed", "cancelled", "dead"):
        run = store.running(once=f"key-{status}", digest="d")
        store.save(run, delta(1, count=2, state=b"s"))
        store.send(run.id, key="k")
        ended[status] = run.id
        match status:
            case "completed":
                store.complete(run)
            case "failed":
                store.fail(run)
            case "cancelled":
                store.cancel(run.id)
                store.release(run)
            case _:
                store.client.hset(store.keys.run(run.id), "counters", f"1 1 {NOW} 0 99 2 0 0 9 0 {NOW} {NOW}")
                store.abandon()
                assert store.status(run.id) == "dead"
                store.client.delete(store.keys.worker("w1"))
    tombstone = store.running("w2", retention="0")
    store.complete(tombstone)
    running = store.running("w3", once="key-running", digest="d")
    store.save(running, delta(1, count=1, state=b"s"))
    store.cancel(running.id)
    retried = store.running("w2")
    store.save(retried, delta(1, count=1))
    store.retry(retried, delay=5)
    waiting = store.running("w2")
    store.save(waiting, delta(1, count=1))
    store.send(waiting.id, "other", key="k")
    store.suspend(waiting, deadline=NOW + DAY, approval=0)
    endless = store.running("w2")
    store.suspend(endless, approval=0)
    suspect = store.running("w2")
    store.client.hset(store.keys.run(suspect.id), "counters", f"1 1 {NOW} 0 1 2 0 0 9 0 {NOW} {NOW}")
    store.release(suspect)
    return {
        **ended,
        "tombstone": tombstone.id,
        "running": running.id,
        "delayed": retried.id,
        "waiting": waiting.id,
        "endless": endless.id,
        "suspect": suspect.id,
        "later": store.enqueue(due="+9000", expires="20000"),
        "queued": store.enqueue(expires="20000"),
    }


def test_doctor_finds_nothing_in_a_sound_namespace(store: Store) -> None:
    busy(store)
    with store.unchanged():
        report = examine_store(store)
        assert [finding.sentence for finding in report.findings] == []
        assert report.healthy
        assert (report.runs, report.found) == (12, 0)
    with store.unchanged():
        assert examine_store(store, repair=True).healthy


# ---- damage --------------------------------------------------------------------------------------------------------------


Plant = Callable[[Store, dict[str, str]], Any]


@dataclasses.dataclass(frozen=True)
class Damage:
    """A kind of damage, its description, and where the run is after the repair."""

    plant: Plant
    said: tuple[str, ...]
    sentence: str
    run: str = ""
    places: Callable[[Store], list[str]] | list[str] | None = None
    status: str = ""


def spend(which: str, text: str | bytes | None, beside: str = "sb") -> Plant:
    """Set the field `spend` of a run, or remove it."""

    def plant(store: Store, at: dict[str, str]) -> None:
        store.client.hset(store.keys.run(at[which]), "beside", beside)
        if text is None:
            store.client.hdel(store.keys.run(at[which]), "spend")
        else:
            store.client.hset(store.keys.run(at[which]), "spend", text)

    return plant


def spoil_counters(which: str) -> Plant:
    return lambda s, at: s.client.hset(s.keys.run(at[which]), "counters", "garbage")


DAMAGE: dict[str, Damage] = {
    "orphan in live": Damage(
        lambda s, at: s.client.sadd(s.keys.live(), "00000000000000000001-00"),
        ("entry runless",),
        "'live' has an entry '00000000000000000001-00', but this run does not exist",
    ),
    "missing hash of a running run": Damage(
        lambda s, at: s.client.delete(s.keys.run(at["running"])),
        ("entry runless",) * 3 + ("key leaked",) * 3,
        "but this run does not exist",
    ),
    "missing hash of a queued run": Damage(
        lambda s, at: s.client.delete(s.keys.run(at["queued"])), ("entry runless",) * 2, "this run does not exist"
    ),
    "missing hash of a delayed run": Damage(
        lambda s, at: s.client.delete(s.keys.run(at["later"])), ("entry runless",) * 2, "'delayed' has an entry"
    ),
    "missing hash of an ended run": Damage(
        lambda s, at: s.client.delete(s.keys.run(at["completed"])), ("entry runless",), "'ended:completed' has an entry"
    ),
    "queue entry without a run": Damage(
        lambda s, at: s.client.zadd(s.keys.ready(LINE), {"00000000000000000001-00": 1}),
        ("entry runless",),
        f"'ready:{LINE}' has an entry '00000000000000000001-00', but this run does not exist",
    ),
    "entry that is no id": Damage(
        lambda s, at: s.client.zadd(s.keys.ready(LINE), {"no id": 1}), ("entry runless",), "'no id', but this run does not exist"
    ),
    "queued run in another line": Damage(
        lambda s, at: s.client.zadd(s.keys.suspect("other:k@0"), {at["queued"]: 1}),
        ("entry elsewhere",),
        f"this run belongs elsewhere ({LINE})",
        "queued",
        [f"ready:{LINE}"],
        "queued",
    ),
    "queued run missing from its queue": Damage(
        lambda s, at: s.client.zrem(s.keys.ready(LINE), at["queued"]),
        ("run lineless",),
        "is queued, but not in its ready queue: it would wait forever",
        "queued",
        [f"ready:{LINE}"],
        "queued",
    ),
    "suspect missing from its queue": Damage(
        lambda s, at: s.client.zrem(s.keys.suspect(LINE), at["suspect"]),
        ("run lineless",),
        "is queued, but not in the queue of suspects",
        "suspect",
        [f"suspect:{LINE}"],
        "queued",
    ),
    "suspect in the ordinary line": Damage(
        lambda s, at: s.client.zadd(s.keys.ready(LINE), {at["suspect"]: 1}),
        ("run twice",),
        "is also in its ready queue, where it does not belong",
        "suspect",
        [f"suspect:{LINE}"],
        "queued",
    ),
    "line that nobody rings": Damage(
        lambda s, at: s.client.srem(s.keys.routes(), LINE), ("run unrouted",) * 2, "whose bell no coordinator rings", "queued"
    ),
    "owner without a lease": Damage(
        lambda s, at: s.client.zrem(s.keys.workers(), "w3"),
        ("key leaked", "run ownerless"),
        "is running on worker w3, which has no lease",
        "running",
        ["ended:cancelled"],  # it has a requested cancel
        "cancelled",
    ),
    "owner of which nothing is known": Damage(
        lambda s, at: s.client.delete(s.keys.worker("w3")), ("entry stranger",), "worker w3 has a lease, but no record"
    ),
    "running and not owned": Damage(
        lambda s, at: s.client.srem(s.keys.owned("w3"), at["running"]),
        ("run unowned",),
        "is running on worker w3, but is not among the runs that this worker owns",
        "running",
        ["owned:w3"],
        "running",
    ),
    "running and not live": Damage(
        lambda s, at: s.client.srem(s.keys.live(), at["running"]), ("run unlive",), "not in the set of live runs", "running"
    ),
    "running without a token": Damage(
        lambda s, at: s.client.hdel(s.keys.run(at["running"]), "token"),
        ("entry elsewhere", "run tokenless"),
        "is running, but its owner can't be read",
        "running",
        ["ended:cancelled"],
        "cancelled",
    ),
    "owned by two": Damage(
        lambda s, at: s.client.sadd(s.keys.owned("w2"), at["running"]),
        ("entry elsewhere",),
        "'owned:w2' has an entry",
        "running",
        ["owned:w3"],
        "running",
    ),
    "running and queued": Damage(
        lambda s, at: s.client.zadd(s.keys.ready("default:k@1"), {at["running"]: 1}),
        ("run twice",),
        "is also in its ready queue, where it does not belong",
        "running",
        ["owned:w3"],
        "running",
    ),
    "queued and owned": Damage(
        lambda s, at: (
            s.client.hset(s.keys.run(at["queued"]), "token", f"{NOW}-9-w3"),
            s.client.sadd(s.keys.owned("w3"), at["queued"]),
        ),
        ("run held",),
        "is not running, but is still among the runs that worker w3 owns",
        "queued",
        [f"ready:{LINE}"],
        "queued",
    ),
    "delayed run missing from delayed": Damage(
        lambda s, at: s.client.zrem(s.keys.delayed(), at["later"]),
        ("run lineless",),
        "is delayed, but not in the list of delayed runs",
        "later",
        ["delayed"],
        "delayed",
    ),
    "delayed and queued": Damage(
        lambda s, at: s.client.zadd(s.keys.ready(LINE), {at["later"]: 1}),
        ("run twice",),
        "is also in its ready queue",
        "later",
        ["delayed"],
        "delayed",
    ),
    "waiting run missing from its list": Damage(
        lambda s, at: s.client.zrem(s.keys.waiting(), at["waiting"]),
        ("run lineless",),
        "is waiting, but not in the list of waiting runs: it would wait forever",
        "waiting",
        ["waiting"],
        "waiting",
    ),
    "wait that can't be read": Damage(
        lambda s, at: s.client.hset(s.keys.run(at["waiting"]), "wait", "soon"),
        ("run aimless",),
        "is waiting, but what it waits for is not valid ('soon')",
        "waiting",
        ["ready:default:k@1"],
        "queued",
    ),
    "waiting run without a wait": Damage(
        lambda s, at: (s.client.hdel(s.keys.run(at["endless"]), "wait"), s.client.zrem(s.keys.waiting(), at["endless"])),
        ("run aimless", "run lineless"),
        "is waiting, but what it waits for is missing",
        "endless",
        [f"ready:{LINE}"],
        "queued",
    ),
    "waiting run whose signal did not wake it": Damage(
        lambda s, at: s.client.hset(s.keys.signals(at["waiting"]), mapping={"last:approval": "1", "first:approval": "1"}),
        ("run unwoken",),
        "is still waiting, although signal 'approval' has arrived",
        "waiting",
        ["ready:default:k@1"],
        "queued",
    ),
    "waiting until another time": Damage(
        lambda s, at: s.client.zadd(s.keys.waiting(), {at["waiting"]: NOW + 2 * DAY}),
        ("run mistimed",),
        "is waiting, but the list of waiting runs has another time for the end of its wait",
        "waiting",
        ["waiting"],
        "waiting",
    ),
    "waiting and queued": Damage(
        lambda s, at: s.client.zadd(s.keys.ready("default:k@1"), {at["waiting"]: 1}),
        ("run twice",),
        "is also in its ready queue",
        "waiting",
        ["waiting"],
        "waiting",
    ),
    "queued and waiting": Damage(
        lambda s, at: s.client.zadd(s.keys.waiting(), {at["queued"]: 1}),
        ("run twice",),
        "is also in the list of waiting runs, where it does not belong",
        "queued",
        [f"ready:{LINE}"],
        "queued",
    ),
    "ended and waiting": Damage(
        lambda s, at: s.client.zadd(s.keys.waiting(), {at["failed"]: NOW + DAY}),
        ("run twice",),
        "is also in the list of waiting runs",
        "failed",
        ["ended:failed"],
        "failed",
    ),
    "waiting and owned": Damage(
        lambda s, at: (
            s.client.hset(s.keys.run(at["waiting"]), "token", f"{NOW}-9-w3"),
            s.client.sadd(s.keys.owned("w3"), at["waiting"]),
        ),
        ("run held",),
        "is not running, but is still among the runs that worker w3 owns",
        "waiting",
        ["waiting"],
        "waiting",
    ),
    "waiting run with a TTL": Damage(
        lambda s, at: s.client.expire(s.keys.run(at["waiting"]), 1000), ("run mortal",), "a TTL and would vanish", "waiting"
    ),
    "missing hash of a waiting run": Damage(
        lambda s, at: s.client.delete(s.keys.run(at["waiting"])),
        ("entry runless",) * 2 + ("key leaked",) * 5,
        "'waiting' has an entry",
    ),
    "waiting entry without a run": Damage(
        lambda s, at: s.client.zadd(s.keys.waiting(), {"00000000000000000001-00": 1}),
        ("entry runless",),
        "'waiting' has an entry '00000000000000000001-00', but this run does not exist",
    ),
    "counters of a waiting run": Damage(
        spoil_counters("waiting"), ("run unreadable",), "can't be read", "waiting", ["ended:dead"], "dead"
    ),
    "set aside by a coordinator": Damage(
        lambda s, at: s.client.zadd(s.keys.aside(), {"waiting:00000000000000000001-00": NOW}), ("entry aside",), "was set aside"
    ),
    "leaked signals": Damage(
        lambda s, at: s.client.hset(s.keys.signals("00000000000000000001-00"), "count", "1"),
        ("key leaked",),
        "the signals '00000000000000000001-00' are left over: no run uses them",
    ),
    "leaked keys of signals": Damage(
        lambda s, at: s.client.zadd(s.keys.signal_keys("00000000000000000001-00"), {"k": NOW}),
        ("key leaked",),
        "the idempotency keys of signals '00000000000000000001-00' are left over: no run uses them",
    ),
    "leaked sends": Damage(
        lambda s, at: s.client.zadd(s.keys.signal_operations("00000000000000000001-00"), {"o": NOW}),
        ("key leaked",),
        "the list of sends '00000000000000000001-00' is left over: no run uses it",
    ),
    "leaked counts and results of children": Damage(
        lambda s, at: (
            s.client.hset(s.keys.joins("00000000000000000001-00"), "b", "1 0"),
            s.client.hset(s.keys.results(at["completed"]), "b:0", "1 completed "),
        ),
        ("key endless", "key leaked"),
        "the counts of children '00000000000000000001-00' are left over: no run uses them",
    ),
    "leaked graph": Damage(
        lambda s, at: (
            s.client.hset(s.keys.graph("00000000000000000001-00", "t"), "c", "1"),
            s.client.zadd(s.keys.graph_index("00000000000000000001-00", "t"), {"c": 0}),
            s.client.zadd(s.keys.graph_threads(at["completed"]), {"t": NOW}),
        ),
        ("key endless", "key leaked", "key leaked"),
        "the checkpoints of the graph '00000000000000000001-00:t' are left over: no run uses them",
    ),
    "leaked output": Damage(
        lambda s, at: s.client.xadd(s.keys.output("00000000000000000001-00"), {"e0": "1 1"}),
        ("key leaked",),
        "the output '00000000000000000001-00' is left over: no run uses it",
    ),
    "output of an ended run without a TTL, and of an open run with one": Damage(
        lambda s, at: (
            s.client.xadd(s.keys.output(at["failed"]), {"e0": "1 1"}),
            s.client.xadd(s.keys.output(at["waiting"]), {"e0": "1 1"}),
            s.client.hset(s.keys.run(at["waiting"]), "beside", "so"),
            s.client.expire(s.keys.output(at["waiting"]), 1000),
        ),
        ("key endless", "key mortal"),
        "the output",
    ),
    "leaked and endless effects": Damage(
        lambda s, at: (
            s.client.hset(s.keys.effects("00000000000000000001-00"), "begun:a", "t"),
            s.client.hset(s.keys.effects(at["failed"]), "begun:a", "t"),
        ),
        ("key endless", "key leaked"),
        "the effects '00000000000000000001-00' are left over: no run uses them",
    ),
    "spending that can't be read": Damage(
        spend("waiting", "much"),
        ("run misspent",),
        "has a record of its spending that is not valid ('much'), so that its budget does not count all of it",
        "waiting",
        ["waiting"],
        "waiting",
    ),
    "spending of any bytes": Damage(
        spend("running", b"\xff 0 0 0 0 0 0 0 0 0"), ("run misspent",), "that is not valid", "running", ["owned:w3"], "running"
    ),
    "negative spending": Damage(spend("queued", "-1 0 0 0 0 0 0 0 0 0"), ("run misspent",), "that is not valid", "queued"),
    "spending that is too large": Damage(
        spend("delayed", "9" * 400 + " 0 0 0 0 0 0 0 0 0"), ("run misspent",), "that is not valid", "delayed", ["delayed"]
    ),
    "more spending added to the parent than there is": Damage(
        spend("waiting", "1 1 1 0 0 0 0 2 1 1"), ("run misspent",), "that is not valid ('1 1 1 0 0 0 0 2 1 1')", "waiting"
    ),
    "lost spending": Damage(spend("waiting", None), ("run misspent",), "that is missing", "waiting", ["waiting"], "waiting"),
    "spending of an ended run": Damage(
        spend("failed", "much"), ("run misspent",), "that is not valid", "failed", ["ended:failed"], "failed"
    ),
    "spending that the run does not note": Damage(
        spend("waiting", "1 1 1 0 0 0 0 0 0 0", "s"),
        ("run unnoted",),
        "has spending, but its hash does not note it: scripts would ignore it",
        "waiting",
        ["waiting"],
        "waiting",
    ),
    "parent and group that the run does not note": Damage(
        lambda s, at: s.client.hset(
            s.keys.run(at["queued"]), mapping={"joined": f"{at['waiting']} 1 {at['queued']} 0", "group": "k:acme"}
        ),
        ("run unnoted", "run lineless", "run twice"),  # a run of a group waits in the line of the group
        "has a parent that waits for it and a group, but its hash does not note it",
        "queued",
        ["line:k:acme"],
    ),
    "keys that the run does not note": Damage(
        lambda s, at: (
            s.client.hset(s.keys.effects(at["waiting"]), "begun:a", "t"),
            s.client.hset(s.keys.joins(at["endless"]), "b", "1 0"),
            s.client.xadd(s.keys.output(at["running"]), {"e0": "1 1"}),
            s.client.zadd(s.keys.graph_threads(at["waiting"]), {"t": NOW}),
        ),
        ("key unnoted",) * 4,
        "are not noted in the hash of the run: scripts would ignore them",
    ),
    "an entry of steps that were dropped": Damage(
        lambda s, at: s.client.zadd(s.keys.parting(), {"abc-00 3": 0, "no base": 7}),
        ("entry garbled", "entry garbled"),
        "'parting' has an entry 'abc-00 3' that can't be read",
    ),
    "signals of an ended run without a TTL": Damage(
        lambda s, at: (s.client.persist(s.keys.signals(at["failed"])), s.client.persist(s.keys.signal_operations(at["dead"]))),
        ("key endless",) * 2,
        "of an ended run have no TTL",
    ),
    "signals of an open run with a TTL": Damage(
        lambda s, at: (s.client.expire(s.keys.signals(at["waiting"]), 1000), s.client.expire(s.keys.signal_keys(at["waiting"]), 9)),
        ("key mortal",) * 2,
        "of a run that has not ended have a TTL and would vanish",
    ),
    "ended and live": Damage(
        lambda s, at: s.client.sadd(s.keys.live(), at["failed"]), ("run live",), "is still in the set of live runs", "failed"
    ),
    "ended and owned": Damage(
        lambda s, at: (
            s.client.hset(s.keys.run(at["failed"]), "token", f"{NOW}-9-w3"),
            s.client.sadd(s.keys.owned("w3"), at["failed"]),
        ),
        ("run held",),
        "still among the runs that worker w3 owns",
        "failed",
        ["ended:failed"],
        "failed",
    ),
    "ended and in a list of the owner": Damage(
        lambda s, at: s.client.sadd(s.keys.owned("w3"), at["failed"]), ("entry elsewhere",), "'owned:w3'", "failed"
    ),
    "ended without a TTL": Damage(
        lambda s, at: s.client.persist(s.keys.run(at["dead"])),
        ("run endless",),
        "has ended, but its hash has no TTL",
        "dead",
        ["ended:dead"],
        "dead",
    ),
    "ended without a TTL of its checkpoint": Damage(
        lambda s, at: s.client.persist(s.keys.ckpt(at["failed"])),
        ("run endless",),
        "has ended, but its checkpoint has no TTL",
        "failed",
    ),
    "messages of an ended run without a TTL": Damage(
        lambda s, at: s.client.persist(s.keys.messages(at["failed"], "1")), ("key endless",), "of an ended run have no TTL"
    ),
    "ended and in no list": Damage(
        lambda s, at: s.client.zrem(s.keys.ended("failed"), at["failed"]),
        ("run unlisted",),
        "is not in the list of failed runs",
        "failed",
        ["ended:failed"],
        "failed",
    ),
    "listed under another ending": Damage(
        lambda s, at: s.client.zadd(s.keys.ended("completed"), {at["failed"]: NOW + DAY}),
        ("entry elsewhere",),
        "belongs elsewhere (failed)",
        "failed",
        ["ended:failed"],
    ),
    "open run with a TTL": Damage(
        lambda s, at: s.client.expire(s.keys.run(at["queued"]), 1000), ("run mortal",), "a TTL and would vanish", "queued"
    ),
    "checkpoint of an open run with a TTL": Damage(
        lambda s, at: s.client.expire(s.keys.ckpt(at["running"]), 1000), ("run mortal",), "its checkpoint has a TTL"
    ),
    "messages of an open run with a TTL": Damage(
        lambda s, at: s.client.expire(s.keys.messages(at["running"], "1"), 1000), ("key mortal",), "a TTL and would vanish"
    ),
    "leaked checkpoint": Damage(
        lambda s, at: s.client.hset(s.keys.ckpt("00000000000000000001-00"), "head", "x"),
        ("key leaked",),
        "the checkpoint '00000000000000000001-00' is left over: no run uses it",
    ),
    "leaked messages": Damage(
        lambda s, at: s.client.hset(s.keys.messages("00000000000000000001-00", "1"), "0", "x"),
        ("key leaked",),
        "the messages '00000000000000000001-00:1' are left over: no run uses them",
    ),
    "leaked generation": Damage(
        lambda s, at: s.client.hset(s.keys.messages(at["running"], "7"), "0", "x"), ("key leaked",), "left over"
    ),
    "leaked record of a worker": Damage(
        lambda s, at: s.client.hset(s.keys.worker("w77"), "host", "h"), ("key leaked",), "of a worker that is gone has no TTL"
    ),
    "key that belongs to a run that does not exist any more": Damage(
        lambda s, at: s.client.set(s.keys.once("k", "a:b"), "00000000000000000001-00 d"),
        ("key leaked",),
        "the idempotency key 'k:a:b' belongs to a run that does not exist any more",
    ),
    "key of an ended run without a TTL": Damage(
        lambda s, at: s.client.persist(s.keys.once("k", "key-failed")), ("key endless",), "of an ended run has no TTL"
    ),
    "expiry without a deadline": Damage(
        lambda s, at: s.client.zrem(s.keys.deadlines(), f"expire:{at['queued']}"), ("run timeless",), "no deadline for its expiry"
    ),
    "cancel without a deadline": Damage(
        lambda s, at: s.client.zrem(s.keys.deadlines(), f"cancel:{at['running']}"),
        ("run timeless",),
        "no deadline for its requested cancel",
    ),
    "deadline without a run": Damage(
        lambda s, at: s.client.zadd(s.keys.deadlines(), {"expire:00000000000000000001-00": 1}), ("entry runless",), "'deadlines'"
    ),
    "counters of a queued run": Damage(
        spoil_counters("queued"), ("run unreadable",), "can't be read: its counters are not valid", "queued", ["ended:dead"], "dead"
    ),
    "counters of a delayed run": Damage(
        spoil_counters("later"), ("run unreadable",), "can't be read", "later", ["ended:dead"], "dead"
    ),
    "counters of a running run": Damage(
        spoil_counters("running"), ("run unreadable",), "can't be read", "running", ["ended:dead"], "dead"
    ),
    "counters of an ended run": Damage(
        spoil_counters("failed"), ("run unreadable",), "can't be read", "failed", ["ended:failed"], "failed"
    ),
    "status that nobody knows": Damage(
        lambda s, at: s.client.hset(s.keys.run(at["queued"]), "status", "lost"),
        ("run unreadable",),
        "its status is not valid ('lost')",
        "queued",
        ["ended:dead"],
        "dead",
    ),
    "queued run without inputs": Damage(
        lambda s, at: s.client.hdel(s.keys.run(at["queued"]), "spec"),
        ("run unreadable",),
        "its spec is missing",
        "queued",
        [],
        "missing",
    ),
    "running run without a route": Damage(
        lambda s, at: s.client.hset(s.keys.run(at["running"]), "route", "nowhere"),
        ("key leaked",) * 3 + ("run unreadable",),
        "its route is not valid ('nowhere')",
        "running",
        [],
        "missing",
    ),
    "set aside by a claim": Damage(
        lambda s, at: s.client.zadd(s.keys.aside(), {"queued:00000000000000000001-00": NOW}),
        ("entry aside",),
        "entry 'queued:00000000000000000001-00' was set aside because a worker or a coordinator could not read it",
    ),
    "set aside, and still damaged": Damage(
        lambda s, at: (
            spoil_counters("queued")(s, at),
            s.client.zrem(s.keys.ready(LINE), at["queued"]),
            s.client.zadd(s.keys.aside(), {f"queued:{at['queued']}": NOW}),
        ),
        ("entry aside", "run unreadable"),
        "was set aside",
        "queued",
        ["ended:dead"],
        "dead",
    ),
}  # fmt: skip


@pytest.mark.quick_cases(38)
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_described_and_repaired(store: Store, name: str) -> None:
    damage = DAMAGE[name]
    at = busy(store)
    damage.plant(store, at)

    with store.unchanged():
        report = examine_store(store)
    assert not report.healthy
    expected = set(damage.said) - ({"entry runless", "key leaked"} if damage.status == "missing" else set())
    assert expected <= set(words(report)), words(report)
    assert any(damage.sentence in finding.sentence for finding in report.findings), [
        finding.sentence for finding in report.findings
    ]

    repaired = examine_store(store, repair=True)
    assert repaired.healthy, [(finding.sentence, finding.outcome) for finding in repaired.findings]
    assert sorted({*words(repaired)}) == sorted({*damage.said})
    assert all(finding.repaired and finding.remedy for finding in repaired.findings)
    with store.unchanged():
        assert examine_store(store).found == 0
    if damage.run:
        id = at[damage.run]
        if damage.status:
            assert store.status(id) == damage.status
        if damage.places is not None:
            assert store.places(id) == damage.places


KEYS: dict[str, Callable[[Store, dict[str, str]], str]] = {
    "a run": lambda s, at: s.keys.run(at["queued"]),
    "a running run": lambda s, at: s.keys.run(at["running"]),
    "a line": lambda s, at: s.keys.ready(LINE),
    "the suspects": lambda s, at: s.keys.suspect(LINE),
    "live": lambda s, at: s.keys.live(),
    "owned": lambda s, at: s.keys.owned("w3"),
    "workers": lambda s, at: s.keys.workers(),
    "a worker": lambda s, at: s.keys.worker("w3"),
    "delayed": lambda s, at: s.keys.delayed(),
    "deadlines": lambda s, at: s.keys.deadlines(),
    "routes": lambda s, at: s.keys.routes(),
    "an ended list": lambda s, at: s.keys.ended("failed"),
    "a checkpoint": lambda s, at: s.keys.ckpt(at["running"]),
    "messages": lambda s, at: s.keys.messages(at["running"], "1"),
    "waiting": lambda s, at: s.keys.waiting(),
    "signals": lambda s, at: s.keys.signals(at["waiting"]),
    "keys of signals": lambda s, at: s.keys.signal_keys(at["waiting"]),
    "sends": lambda s, at: s.keys.signal_operations(at["waiting"]),
    "counts of children": lambda s, at: s.keys.joins(at["waiting"]),
    "results of children": lambda s, at: s.keys.results(at["waiting"]),
    "output": lambda s, at: s.keys.output(at["waiting"]),
    "effects": lambda s, at: s.keys.effects(at["waiting"]),
    "a graph": lambda s, at: s.keys.graph(at["waiting"], "t"),
    "the index of a graph": lambda s, at: s.keys.graph_index(at["waiting"], "t"),
    "threads of a graph": lambda s, at: s.keys.graph_threads(at["waiting"]),
    "steps that were dropped": lambda s, at: s.keys.parting(),
    "a bell": lambda s, at: s.keys.bell(LINE),
    "aside": lambda s, at: s.keys.aside(),
    "paused": lambda s, at: s.keys.paused(),
}


@pytest.mark.parametrize("name", KEYS)
def test_key_of_another_type_is_set_aside_and_its_content_rebuilt(store: Store, name: str) -> None:
    at = busy(store)
    key = KEYS[name](store, at)
    store.spoil(key)
    short = key.split("}:", 1)[1]
    report = examine_store(store)
    assert any(f"key {short!r} is a string and should be a" in finding.sentence for finding in report.findings)

    repaired = examine_store(store, repair=True)
    assert repaired.healthy, [(finding.sentence, finding.outcome) for finding in repaired.findings]
    assert any(
        f"moved to 'set-aside:{short}', where it is kept for a week" in finding.remedy for finding in repaired.findings
    )
    assert store.client.get(store.keys.set_aside(short)) == b"spoilt"
    assert store.client.pttl(store.keys.set_aside(short)) > 0
    assert examine_store(store).found == 0
    for which in ("queued", "later", "suspect", "delayed"):
        if not (name == "a run" and which == "queued"):
            assert store.status(at[which]) in ("queued", "delayed"), which
    assert [store.status(at[which]) for which in ("waiting", "endless")] == ["waiting"] * 2


def test_idempotency_key_of_another_type_is_set_aside(store: Store) -> None:
    id = store.enqueue(once="a", digest="d")
    store.client.delete(store.keys.once("k", "a"))
    store.client.sadd(store.keys.once("k", "a"), "spoilt")
    assert words(examine_store(store)) == ["type string"]
    assert examine_store(store, repair=True).healthy
    assert store.status(id) == "queued"


def test_entries_and_names_may_be_any_bytes(store: Store) -> None:
    store.client.zadd(store.keys.ready(LINE), {b"\xff\x00": 1})
    store.client.sadd(store.keys.live(), b"\xff\x00")
    store.client.hset(store.keys.ckpt("").encode() + b"\xff", "head", "x")
    assert words(examine_store(store)) == ["entry runless", "entry runless", "key leaked"]
    assert examine_store(store, repair=True).healthy


def test_all_kinds_of_damage_at_once_are_repaired(store: Store) -> None:
    at = busy(store)
    for name, damage in DAMAGE.items():
        if not damage.run or name in ("owner without a lease", "running without a token"):
            damage.plant(store, at)
    for key in (store.keys.ready(LINE), store.keys.live(), store.keys.owned("w3")):
        store.spoil(key)
    assert not examine_store(store).healthy
    repaired = examine_store(store, repair=True)
    assert repaired.healthy, [(finding.sentence, finding.outcome) for finding in repaired.findings]
    assert examine_store(store).found == 0


# ---- effects of a repair on the run ---------------------------------------------------------------------------------------


def test_requeued_run_is_claimed(store: Store) -> None:
    id = store.enqueue()
    store.client.delete(store.keys.ready(LINE), store.keys.bell(LINE), store.keys.routes())
    examine_store(store, repair=True)
    assert store.client.llen(store.keys.bell(LINE)) == 1
    assert store.take().id == id


def test_requeued_run_keeps_its_position(store: Store) -> None:
    first = store.enqueue(priority=3)
    score = store.score(store.keys.ready(LINE), first)
    store.later(1000)
    store.enqueue()
    store.client.zrem(store.keys.ready(LINE), first)
    examine_store(store, repair=True)
    assert store.score(store.keys.ready(LINE), first) == score


@pytest.mark.parametrize("how", ["enqueue", "retry"])
def test_delayed_run_keeps_its_due_time(store: Store, how: str) -> None:
    if how == "enqueue":
        id = store.enqueue(due="+9000", priority=-7)
    else:
        run = store.running(priority=50)
        store.retry(run, delay=9)
        id = run.id
    store.client.delete(store.keys.delayed())
    examine_store(store, repair=True)
    assert store.score(store.keys.delayed(), id) == NOW + 9000


@pytest.mark.parametrize("lost", ["entry", "list", "time"])
def test_waiting_run_keeps_what_it_waits_for(store: Store, lost: str) -> None:
    run = store.running()
    store.suspend(run, deadline=NOW + 9000, approval=0)
    other = store.running()
    store.suspend(other, approval=0)
    store.client.delete(store.keys.coordinator_bell())
    match lost:
        case "entry":
            store.client.zrem(store.keys.waiting(), run.id)
        case "list":
            store.client.delete(store.keys.waiting())
        case _:
            store.client.zadd(store.keys.waiting(), {run.id: limits.FAR_FUTURE})
    examine_store(store, repair=True)
    assert store.score(store.keys.waiting(), run.id) == NOW + 9000
    assert store.score(store.keys.waiting(), other.id) == limits.FAR_FUTURE
    assert store.client.llen(store.keys.coordinator_bell()) == 1, "a coordinator may sleep for longer"
    assert store.send(run.id, "approval") == ["sent"]
    assert (store.status(run.id), store.status(other.id)) == ("queued", "waiting")
    assert examine_store(store).found == 0


@pytest.mark.parametrize(
    ("damage", "reason"), [("aimless", "unknown"), ("unwoken", "signal approval"), ("late", "time")]
)
def test_waiting_run_that_is_queued_by_a_repair_is_claimed_as_woken(store: Store, damage: str, reason: str) -> None:
    run = store.running()
    store.save(run, delta(1, count=1))
    store.suspend(run, deadline=NOW + 9000, approval=0)
    match damage:
        case "aimless":
            store.client.hset(store.keys.run(run.id), "wait", "x")
        case "unwoken":
            store.client.hset(store.keys.signals(run.id), mapping={"last:approval": "1", "first:approval": "1"})
        case _:
            store.client.zrem(store.keys.waiting(), run.id)
            store.later(10_000)
    examine_store(store, repair=True)
    assert "wait" not in store.run(run.id)
    again = store.take("w2")
    assert (again.id, again.cause) == (run.id, f"wake {reason}")
    assert store.transcript(run.id) == ["m0"]
    assert store.counters(run.id).strikes == 0


def test_signals_of_a_run_that_a_repair_ends_do_not_stay(store: Store) -> None:
    run = store.running()
    store.send(run.id, key="k")
    store.suspend(run, approval=0)
    store.client.hset(store.keys.run(run.id), "counters", "garbage")
    store.client.hdel(store.keys.run(run.id), "beside")
    assert store.do(doctor_plans.repair_runs(store.keys, [(run.id, "unreadable")], now=store.at)) == ["repaired"]
    assert store.status(run.id) == "dead"
    for key in (store.keys.signals, store.keys.signal_keys, store.keys.signal_operations):
        assert store.client.pttl(key(run.id)) > 0


def test_wait_that_is_over_is_left_to_the_coordinator(store: Store) -> None:
    run = store.running()
    store.suspend(run, deadline=NOW + 9000, approval=0)
    store.later(DAY)
    assert examine_store(store).found == 0


def test_run_that_waits_for_children_is_examined_by_its_coordinator(store: Store) -> None:
    run = store.running()
    base = store.id()
    store.client.hset(store.keys.joins(run.id), base, "2 0")
    store.client.hset(store.keys.run(run.id), "beside", "r")
    condition = attempt_plans.Condition(None, children={base: 2})
    assert (
        store.do(attempt_plans.suspend(store.keys, run.id, run.token, condition=condition, now=store.at)) == "waiting"
    )
    assert store.score(store.keys.waiting(), run.id) == NOW + limits.CHILDREN_EXAMINED_MS, (
        "a coordinator looks at its children now and then"
    )
    assert examine_store(store).found == 0
    store.client.hset(store.keys.joins(run.id), base, "2 2")
    assert examine_store(store).found == 0, "its coordinator is about to wake it"
    store.client.zadd(store.keys.waiting(), {run.id: limits.FAR_FUTURE})
    assert words(examine_store(store, repair=True)) == ["run mistimed"]
    assert store.status(run.id) == "queued"


def test_owner_of_a_requeued_run_is_fenced(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, count=1, state=b"s"))
    store.client.zrem(store.keys.workers(), "w1")
    examine_store(store, repair=True)
    assert store.status(run.id) == "queued"
    assert store.save(run, delta(2, base=1, count=1)) == "fenced"
    assert store.complete(run) == "fenced"
    again = store.take("w2")
    assert (again.id, again.cause) == (run.id, "recover")
    assert store.transcript(run.id) == ["m0"]
    assert store.counters(run.id).strikes == 0, "nobody knows why the entry is gone: no strike"


def test_owner_of_a_run_that_is_also_queued_is_fenced(store: Store) -> None:
    run = store.running()
    store.client.hset(store.keys.run(run.id), "status", "queued")
    examine_store(store, repair=True)
    assert store.places(run.id) == [f"ready:{LINE}"]
    assert store.complete(run) == "fenced"
    assert store.take("w2").token != run.token


def test_owner_of_a_run_restored_to_its_owned_set_continues(store: Store) -> None:
    run = store.running()
    store.client.delete(store.keys.owned("w1"), store.keys.live())
    examine_store(store, repair=True)
    assert store.save(run, delta(1, count=1)) == "ok"
    assert store.complete(run) == "ok"


def test_repaired_unreadable_run_can_be_revived(store: Store) -> None:
    run = store.running(once="a", digest="d")
    store.save(run, delta(1, count=2, state=b"s"))
    store.client.hset(store.keys.run(run.id), "counters", "1 2 3")
    waiting = store.wait(run.id)
    examine_store(store, repair=True)
    assert waiting == ["open", "running"]
    assert store.client.lrange(store.keys.wake("c1"), 0, -1) == [run.id.encode()], "who waits for it is woken"
    assert store.run(run.id)["reason"] == "it could not be read: counters 1 2 3"
    assert store.complete(run) == "fenced"
    assert store.revive(run.id) == "queued"
    assert examine_store(store).found == 0
    again = store.take("w2")
    assert again.id == run.id
    assert store.transcript(run.id) == ["m0", "m1"]


@pytest.mark.parametrize("field", ["counters", "status"])
def test_repaired_unreadable_run_is_shown_whatever_bytes_it_had(store: Store, field: str) -> None:
    id = store.enqueue()
    store.client.hset(store.keys.run(id), field, b"\xff\x00\x1b[31m" + b"x" * 5000)
    examine_store(store, repair=True)
    shown = run_view(id, store.do(client_plans.view(store.keys, id)))
    assert shown.status == Status.DEAD
    assert shown.why.startswith(rf"it could not be read: {field} \xff\x00\x1b[31mxxx")
    assert len(shown.why) < 200


def test_key_whose_run_is_gone_can_be_used_again(store: Store) -> None:
    id = store.enqueue(once="a", digest="d")
    store.client.delete(store.keys.run(id))
    examine_store(store, repair=True)
    assert store.enqueue(once="a", digest="d") != id


def test_worker_without_a_record_is_recovered(store: Store) -> None:
    run = store.running()
    store.client.delete(store.keys.worker("w1"))
    examine_store(store, repair=True)
    assert store.judge()[0] == ["w1"]
    assert store.recover().queued == 1
    assert store.status(run.id) == "queued"
    assert examine_store(store).found == 0


# ---- a repair checks the finding again --------------------------------------------------------------------------------------


def test_run_that_became_sound_is_not_touched(store: Store) -> None:
    at = busy(store)
    with store.unchanged():
        for id in at.values():
            assert store.do(doctor_plans.repair_runs(store.keys, [(id, "lineless")], now=store.at)) == ["changed"]
        assert store.do(doctor_plans.repair_runs(store.keys, [(store.id(), "lineless")], now=store.at)) == ["changed"]


def test_run_that_has_another_fault_by_now_is_not_touched(store: Store) -> None:
    id = store.enqueue()
    store.client.delete(store.keys.ready(LINE))
    with store.unchanged():
        assert store.do(doctor_plans.repair_runs(store.keys, [(id, "ownerless")], now=store.at)) == ["changed"]


def test_entry_or_key_that_became_sound_is_not_touched(store: Store) -> None:
    at = busy(store)
    mends = [
        doctor_plans.repair_entries(store.keys, "live", "", [(at["running"], "runless")], now=store.at),
        doctor_plans.repair_entries(store.keys, "owned", "w3", [(at["running"], "elsewhere")], now=store.at),
        doctor_plans.repair_entries(store.keys, "ready", LINE, [(at["queued"], "runless")], now=store.at),
        doctor_plans.repair_entries(store.keys, "live", "", [(store.id(), "runless")], now=store.at),
        doctor_plans.repair_keys(store.keys, "ckpt", "hash", [(at["running"], "leaked")]),
        doctor_plans.repair_keys(store.keys, "once", "string", [("k:key-running", "leaked")]),
    ]
    with store.unchanged():
        for mend in mends:
            assert store.do(mend) == ["changed"]
        for key, name in ((store.keys.live(), "live"), (store.keys.paused(), "paused")):
            assert store.do(doctor_plans.repair_type(store.keys, key, name, "set")) == "changed"


def test_repair_that_depends_on_another_waits_for_it(store: Store) -> None:
    id = store.enqueue()
    store.spoil(store.keys.ready(LINE))
    with store.unchanged():
        assert store.do(doctor_plans.repair_runs(store.keys, [(id, "lineless")], now=store.at)) == ["blocked"]


# ---- temporary states --------------------------------------------------------------------------------------------------------


def test_expired_lease_is_left_to_the_coordinator(store: Store) -> None:
    store.running()
    store.later(10 * LEASE)
    assert examine_store(store).found == 0


def test_list_of_ended_runs_may_lag_behind(store: Store) -> None:
    run = store.running()
    store.complete(run)
    store.client.delete(store.keys.run(run.id))
    store.later(DAY)
    assert examine_store(store).found == 0


def test_key_that_expires_by_itself_is_not_touched(store: Store) -> None:
    gone = store.id()
    store.client.hset(store.keys.ckpt(gone), "head", "x")
    store.client.expire(store.keys.ckpt(gone), 100)
    store.client.set(store.keys.once("k", "a"), f"{gone} d", ex=100)
    assert examine_store(store).found == 0


def test_damage_that_is_gone_at_the_second_look_is_not_reported(store: Store) -> None:
    id = store.enqueue()
    store.client.zrem(store.keys.ready(LINE), id)
    looks = 0

    def meddled(plan: Generator[Any, Any, DoctorReport]) -> Generator[Any, Any, DoctorReport]:
        nonlocal looks
        answer = None
        while True:
            try:
                request = plan.send(answer)
            except StopIteration as done:
                report: DoctorReport = done.value
                return report
            answer = yield request
            if isinstance(request, list) and any(
                isinstance(one, Call) and one.script is scripts.EXAMINE for one in request
            ):
                looks += 1
                store.client.zadd(store.keys.ready(LINE), {id: NOW})  # the run returns after the first look

    report = store.do(meddled(examine(store.ns, now=store.at)))
    assert (report.found, looks) == (0, 2)


def test_every_partition_is_examined(store_url: str, namespace: str) -> None:
    store = Store(store_url, namespace, partitions=3)
    try:
        for partition in range(3):
            store.client.sadd(store.ns.keys(partition).live(), f"0000000000000000000{partition}-0{partition}")
        report = examine_store(store)
        assert sorted(finding.partition for finding in report.findings) == [0, 1, 2]
        assert examine_store(store, repair=True).healthy
    finally:
        store.close()


def test_another_namespace_is_not_touched(store: Store, store_url: str, namespace: str) -> None:
    other = Store(store_url, f"{namespace}.b")
    try:
        store.client.sadd(other.keys.live(), "00000000000000000001-00")
        assert examine_store(store, repair=True).found == 0
        assert examine_store(other).found == 1
    finally:
        other.close()


# ---- words -------------------------------------------------------------------------------------------------------------------


def test_every_answer_of_a_script_has_a_sentence() -> None:
    for fault in set(scripts.EXAMINE.head["Answers"]) - {"mistaken"}:
        detail = {"lineless": "waiting", "twice": "delayed"}.get(fault, "x y")
        assert "damaged" not in Finding("run", 0, "id", fault, detail).sentence, fault
    for fault in scripts.EXAMINE_ENTRIES.head["Answers"]:
        assert Finding("entry", 0, "id", fault, "x", "live").sentence
    for fault in set(scripts.EXAMINE_KEYS.head["Answers"]) - {"mistaken"}:
        for family in page_examiner._FAMILIES:
            assert Finding("key", 0, "id", fault, "", family).sentence


def test_many_findings_are_all_repaired_and_the_first_are_listed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.doctor.report.MAX_FINDINGS", 5)
    ids = {store.enqueue() for _ in range(40)}
    store.client.delete(store.keys.ready(LINE))
    report = examine_store(store, repair=True)
    assert (report.found, report.repaired, len(report.findings)) == (40, 40, 5)
    assert report.counts == {"run: lineless": 40}
    assert set(store.line(store.keys.ready(LINE))) == ids


# ---- spending, effects and children ------------------------------------------------------------------------------------------

BASE = "01hf7wz8001hf7wz800z-00"


def count_spending(store: Store, run: Claimed, *numbers: int) -> Amount:
    """Store what an attempt has spent, and return what earlier attempts and children have spent."""
    word, settled = store.do(attempt_plans.spend(store.keys, run.id, run.token, Amount(*numbers)))
    assert word == "ok"
    return settled


def spent_by(store: Store, id: str) -> Amount:
    return sum_spend(store.run(id)["spend"])


def parent_with_children(store: Store, count: int = 2) -> tuple[Claimed, list[Claimed]]:
    parent = store.running()
    store.join_children(parent, BASE, count)
    for index in range(count):
        store.child(parent, BASE, index)
    store.join("w2")
    return parent, sorted(store.claim("w2")[1], key=lambda run: run.id)


def test_damaged_spending_of_a_parent_is_what_its_children_have_added(store: Store) -> None:
    parent, (child, other) = parent_with_children(store)
    count_spending(store, parent, 1, 1, 1)
    count_spending(store, child, 7, 10, 2)
    count_spending(store, other, 100, 0, 0)
    store.fail(child)
    store.client.hset(store.keys.run(parent.id), "spend", "much")
    assert words(examine_store(store, repair=True)) == ["run misspent"]
    assert spent_by(store, parent.id) == Amount(7, 10, 2)
    assert count_spending(store, parent, 1, 1, 1) == Amount(7, 10, 2), "the attempt knows its own total"
    assert spent_by(store, parent.id) == Amount(8, 11, 3)
    store.revive(child.id)
    store.complete(store.take("w3"))
    store.complete(other)
    assert spent_by(store, parent.id) == Amount(108, 11, 3), "nothing counts twice"
    assert examine_store(store).found == 0


def test_damaged_spending_of_a_child_counts_once_for_its_parent(store: Store) -> None:
    parent, (child,) = parent_with_children(store, 1)
    count_spending(store, child, 7, 10, 2)
    store.fail(child)
    store.client.hset(store.keys.run(child.id), "spend", b"\xff")
    examine_store(store, repair=True)
    store.revive(child.id)
    again = store.take("w3")
    count_spending(store, again, 1, 0, 1)
    store.complete(again)
    assert spent_by(store, parent.id) == Amount(8, 10, 3)


def test_part_that_was_added_to_the_parent_is_at_most_the_whole(store: Store) -> None:
    parent, (child,) = parent_with_children(store, 1)
    count_spending(store, child, 7, 10, 2)
    store.client.hset(store.keys.run(child.id), "spend", store.run(child.id)["spend"].rpartition(" ")[0] + " 50")
    examine_store(store, repair=True)
    count_spending(store, child, 8, 10, 3)
    store.complete(child)
    assert spent_by(store, parent.id) == Amount(8, 10, 1), "the two requests of before count as added"


def test_run_whose_notes_were_lost_gets_its_effects_and_its_spending_again(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, phases=(("effect:begun:charge", b"t"),)))
    count_spending(store, run, 7, 10, 2)
    store.send(run.id)
    store.client.hdel(store.keys.run(run.id), "beside")
    report = examine_store(store, repair=True)
    assert set(words(report)) == {"run unnoted", "key unnoted"}
    assert sorted(store.run(run.id)["beside"]) == ["b", "e", "s"]
    store.crash(run)
    again = store.take("w2")
    assert sum_spend(again.spend) == Amount(7, 10, 2)
    assert pairs(again.checkpoint[2]) == {"begun:charge": b"t"}


def test_child_that_does_not_note_its_parent_is_told_to_it_later(store: Store) -> None:
    parent, (child, other) = parent_with_children(store)
    assert store.suspend(parent, children={BASE: 2}) == "waiting"
    store.client.hdel(store.keys.run(child.id), "beside")
    count_spending(store, child, 7, 10, 2)
    store.complete(other)
    store.client.hdel(store.keys.run(child.id), "beside")
    store.complete(child, result=b"late")
    report = examine_store(store)
    assert words(report) == ["run untold"]
    assert f"but its parent {parent.id} still waits for its ending" in report.findings[0].sentence
    assert examine_store(store, repair=True).healthy
    store.due()
    again = store.take("w3")
    assert again.cause == "wake children"
    assert [one.payload for one in store.collect(again, BASE).endings] == [b"late", b"result"]
    assert spent_by(store, parent.id) == Amount(7, 10, 2)


def test_lost_results_are_stored_again_in_order(store: Store) -> None:
    parent, (first, second, third) = parent_with_children(store, 3)
    store.complete(first)
    store.spoil(store.keys.results(parent.id))
    store.complete(second)
    examine_store(store, repair=True)
    found = store.collect(parent, BASE, by="order", start=1)
    assert (found.ended, sorted(one.index for one in found.endings)) == (2, [0, 1])
    store.complete(third)
    assert [one.index for one in store.collect(parent, BASE, by="order", start=3).endings] == [2]
    assert store.collect(parent, BASE).ended == 3
    assert examine_store(store).found == 0


def test_lost_result_of_the_only_child_counts_again(store: Store) -> None:
    parent, (child,) = parent_with_children(store, 1)
    store.complete(child)
    store.client.delete(store.keys.results(parent.id))
    examine_store(store, repair=True)
    found = store.collect(parent, BASE, by="order", start=1)
    assert (found.ended, [one.index for one in found.endings]) == (1, [0])


def test_result_that_was_stored_after_the_loss_of_others_counts_too(store: Store) -> None:
    parent, (first, second) = parent_with_children(store)
    store.complete(first)
    store.client.delete(store.keys.results(parent.id))
    store.complete(second)
    assert words(examine_store(store, repair=True)) == ["run untold"]
    found = store.collect(parent, BASE, by="order", start=1)
    assert (found.ended, [one.index for one in found.endings]) == (2, [0, 1])


@pytest.mark.parametrize("how", ["dropped", "ended", "revived"])
def test_ending_for_which_no_parent_waits_is_no_fault(store: Store, how: str) -> None:
    parent, (child,) = parent_with_children(store, 1)
    match how:
        case "dropped":
            store.drop_steps(parent, BASE)
        case "ended":
            store.complete(parent)
        case _:
            store.save(parent, delta(1, state=b"s"))
            store.fail(parent)
            store.revive(parent.id)
            assert store.client.hgetall(store.keys.joins(parent.id)) == {BASE.encode(): b"1 0"}
    store.complete(child)
    assert examine_store(store).found == 0
