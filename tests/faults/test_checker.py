"""Tests of the judge: for each rule an invented history that breaks it, and a good one that breaks none."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordinator.model.policies.schedule import run_id
from coordinator.model.run import Counters
from tests.e2e.processes import Event
from tests.faults.judge import feature_rules
from tests.faults.judge.checker import RULES, costs_nothing, judge
from tests.faults.judge.evidence import Evidence, Final, FinalRun
from tests.faults.judge.history import NEVER, History, Operation

RUN = "01m7hcmzdw1qs1t77rgr-00"
OTHER, KILLED, GONE, CHILD, FIRST, SECOND = (f"01m7hcmzdw1qs1t77rg{letter}-00" for letter in "abcdef")
ONE, TWO, THREE, FOUR = "1000-1-wone", "2000-1-wtwo", "3000-1-wthree", "1500-1-wfour"
TIMES = (2000, 4000, 6000, 8000)  # of a schedule that fires every two seconds
FIRED = [run_id("hourly", at, 0) for at in TIMES]


class Story:
    """A history under construction. Each call takes one tick."""

    def __init__(self) -> None:
        self.now = 0
        self.operations: list[Operation] = []
        self.events: list[Event] = []
        self.runs: dict[str, FinalRun] = {}
        self.findings: list[str] = []
        self.leaks: list[str] = []
        self.records: dict[str, int] = {}

    def call(self, script: str, answer: Any, **given: Any) -> Operation:
        self.now += 10
        self.operations.append(Operation(1, "worker", script, given, self.now, self.now + 5, "ok", answer))
        return self.operations[-1]

    def enqueue(self, id: str = RUN) -> None:
        self.call("enqueue", ["created", id], id=id)

    def claim(
        self,
        token: str,
        seq: int = 0,
        life: int = 1,
        chunks: dict[str, str] | None = None,
        id: str = RUN,
        number: int = 1,
    ) -> None:
        row: dict[str, Any] = {"id": id, "token": token, "cause": "", "counters": f"{life} 1 0 0 0 0 0 0 0 0 0 0"}
        row["route"] = "default:agent@1"
        if seq:
            row |= {"head": f"{seq} 0 {seq} 0 0 0 1 0 0 0", "chunks": chunks or {}}
        self.call("claim", ["ok", [row]], worker=token.rpartition("-")[2], number=number)

    def save(self, token: str, seq: int, answer: str = "ok", chunk: str = "#1:a") -> Operation:
        delta = {"seq": seq, "acked": 0, "generation": 0, "base": seq - 1, "count": 1, "chunk": chunk, "iteration": 0}
        return self.call("checkpoint", [answer, 1], id=RUN, token=token, delta=delta)

    def end(self, token: str, script: str = "complete", answer: str = "ok", id: str = RUN) -> Operation:
        return self.call(script, answer, id=id, token=token)

    def send(self, operation: str, payload: str, key: str = "", answer: str = "sent") -> Operation:
        given = {"operation": operation, "key": key or payload, "payload": payload}
        return self.call("send", [answer], id=OTHER, topic="answer", **given)

    def receive(self, token: str, number: int, payload: str) -> Operation:
        return self.call("receive", ["signal", "5000", "", "answer", number, payload], id=OTHER, token=token)

    def collect(self, *rows: Any, ended: int = 1, base: str = GONE) -> Operation:
        return self.call("collect", ["ok", 2, ended, list(rows)], id=OTHER, token=TWO, base=base)

    def fire(self, step: int, answer: str = "fired", generation: str = "g1") -> Operation:
        """Fire the schedule. Step 0 is the first look, which enqueues nothing. Each later step is for the time before it."""
        given: dict[str, Any] = {"name": "hourly", "generation": generation, "next": str(TIMES[step])}
        if step == 0:
            return self.call("fire", ["moved", ""], **given)
        at = str(TIMES[step - 1])
        return self.call("fire", [answer, FIRED[step - 1]], expected=at, at=at, id=FIRED[step - 1], **given)

    def acquire(self, number: int, cost: str = "2") -> Operation:
        return self.call("acquire", ["ok"], name="outside", worker="wfive", number=number, cost=cost)

    def record(self, script: str, answer: Any, owner: str, **given: Any) -> Operation:
        return self.call(script, answer if isinstance(answer, list) else [answer], id="diary", owner=owner, **given)

    def event(self, what: str, number: int = 0, token: str = ONE, pid: int = 7) -> None:
        self.now += 10
        self.events.append(Event(self.now / 1e9, pid, RUN, token, what, number))

    def final(self, status: str = "completed", **fields: Any) -> None:
        fields = {"last": f"{TWO} complete ok", "result": "r", "expected": "r", **fields}
        self.runs[RUN] = FinalRun(status, fields.pop("counters", Counters()), **fields)

    def evidence(self) -> Evidence:
        final = Final(self.runs, self.findings, self.leaks, self.records)
        return Evidence(History(self.operations), self.events, final)


def good() -> Story:
    """Return a story whose first owner saves, is recovered and returns too late; the second owner ends the run and repeats that."""
    story = Story()
    story.enqueue()
    story.claim(ONE)
    story.event("start")
    story.event("step")
    story.save(ONE, 1)
    story.event("saved", 1)
    story.call("abandon", ["ok", 1, 0, 0, 0, 0, 0], worker="wone")
    story.claim(TWO, seq=1, chunks={"0": "#1:a"})
    story.event("start", 1, TWO, 8)
    story.save(ONE, 2, "fenced")
    story.call("heartbeat", ["gone"], worker="wone")
    story.event("step", 1, TWO, 8)
    story.end(TWO)
    story.end(TWO)
    story.final()
    return story


def orderly() -> Story:
    """Return the same story with orders and records.

    Runs are revived, killed by a deadline and discarded. There is a pause, a schedule that fires, is paused, set again
    and removed, and a record that one program leaves and another takes over.
    """
    story = good()
    for id in (OTHER, KILLED, GONE):
        story.enqueue(id)
    story.claim(FOUR, id=OTHER)
    story.end(FOUR, "fail", id=OTHER)
    story.call("revive", ["queued"], id=OTHER, operation="o1", life=1)
    story.call("revive", ["queued"], id=OTHER, operation="o1", life=1)
    story.claim(TWO, id=OTHER, life=2)
    story.send("one", "0")
    story.send("one", "0")
    story.send("two", "1")
    story.send("again", "1", key="1", answer="found")
    story.receive(TWO, 1, "0")
    story.receive(TWO, 1, "0")
    story.receive(TWO, 2, "1")
    story.call("enqueue", ["created", CHILD], id=CHILD, parent=f"{GONE} 1 {CHILD} 0")
    story.runs[CHILD] = FinalRun("cancelled", Counters(), expected="r")
    story.collect("0", "completed", "r")
    story.collect("0", "completed", "r", "1", "failed", "e", ended=2)
    story.end(TWO, id=OTHER)
    story.runs[OTHER] = FinalRun("completed", Counters(life=2), f"{TWO} complete ok", "r", "r")
    story.claim(FOUR, id=KILLED)
    story.call("kill", ["ok"], id=KILLED, token=FOUR)
    story.end(FOUR, "fail", id=KILLED)
    story.runs[KILLED] = FinalRun("failed", Counters(), f"{FOUR} fail ok", expected_status="failed")
    story.call("cancel", ["cancelled"], id=GONE)
    story.call("discard", ["discarded", "cancelled"], id=GONE, life=1)
    story.runs[GONE] = FinalRun("cancelled", Counters(), bare=True)
    story.call("pause", ["ok"], name="kind:agent")
    story.call("claim", ["ok", []], worker="wtwo", number=3)
    story.call("unpause", ["ok"], name="kind:agent")
    schedule = {"name": "hourly", "overlap": "cancel", "rules": 2.0}
    story.call("schedule", ["ok"], generation="g1", **schedule)
    story.fire(0)
    story.fire(1)
    story.fire(1)
    story.fire(2, "skipped")
    story.call("pause_schedule", ["ok"], name="hourly", generation="g2", paused=1)
    story.fire(3, "changed")
    story.call("schedule", ["ok"], generation="g3", **schedule)
    story.call("pause_schedule", ["ok"], name="hourly", generation="g4", paused=0)
    story.fire(3, generation="g4")
    story.call("unschedule", ["ok"], name="hourly", generation="g5")
    story.runs[FIRED[0]] = FinalRun("cancelled", Counters(), expected="r")
    story.runs[FIRED[2]] = FinalRun("completed", Counters(), result="r", expected="r")
    story.record("record_save", ["ok", "new"], "a", seq=1)
    story.record("record_claim", "ok", "b", seen="a")
    story.record("record_save", "fenced", "a", seq=2)
    story.record("record_save", ["ok", "new"], "b", seq=3)
    story.record("record_load", ["ok", "3 0 3"], "b", page="head")
    story.records["diary"] = 3
    return story


def lost(story: Story) -> None:
    del story.runs[RUN]


def invented(story: Story) -> None:
    story.runs["somebody"] = story.runs[RUN]


def a_run_of_a_fire_time_lost(story: Story) -> None:
    del story.runs[FIRED[2]]


def a_run_of_a_fire_time_that_was_skipped(story: Story) -> None:
    story.runs[FIRED[1]] = story.runs[FIRED[2]]


def discarded_and_given_out(story: Story) -> None:
    story.claim(THREE, id=GONE)


def discarded_and_there(story: Story) -> None:
    story.runs[GONE] = FinalRun("cancelled", Counters())


def bare_by_itself(story: Story) -> None:
    story.runs[RUN] = FinalRun("completed", Counters(), f"{TWO} complete ok", bare=True)


def revived_twice_by_one_order(story: Story) -> None:
    story.runs[OTHER] = replace(story.runs[OTHER], counters=Counters(life=3))


def a_revival_lost(story: Story) -> None:
    story.runs[OTHER] = replace(story.runs[OTHER], counters=Counters(life=1))


def killed_and_given_out(story: Story) -> None:
    story.claim(THREE, id=KILLED)


def claimed_while_paused(story: Story) -> None:
    story.call("pause", ["ok"], name="kind:agent")
    story.claim(THREE, id=OTHER, life=2, number=9)


def another_run_for_a_fire_time(story: Story) -> None:
    op = story.fire(3, generation="g4")
    story.operations[-1] = replace(op, given={**op.given, "id": FIRED[1]})


def answered_with_another_run(story: Story) -> None:
    op = story.fire(3, generation="g4")
    story.operations[-1] = replace(op, answer=["fired", FIRED[1]])


def a_fire_time_passed_over(story: Story) -> None:
    story.call("schedule", ["ok"], name="hourly", rules=2.0, generation="g6")
    story.fire(1, generation="g6")
    story.fire(3, generation="g6")


def fired_between_its_times(story: Story) -> None:
    story.call("schedule", ["ok"], name="hourly", rules=2.0, generation="g6")
    at, id = 7001, run_id("hourly", 7001, 0)
    story.call("fire", ["fired", id], name="hourly", generation="g6", at=str(at), next="8000", id=id)


def fired_after_it_was_removed(story: Story) -> None:
    story.fire(3, generation="g4")


def fired_while_it_was_paused(story: Story) -> None:
    story.call("schedule", ["ok"], name="hourly", rules=2.0, generation="g6")
    story.call("pause_schedule", ["ok"], name="hourly", generation="g7", paused=1)
    story.fire(3, generation="g7")


def overtaken_by_no_other(story: Story) -> None:
    story.runs[FIRED[2]] = FinalRun("cancelled", Counters())


def an_old_record_loaded(story: Story) -> None:
    story.record("record_load", ["ok", "1 0 1"], "b", page="head")


def a_record_not_found(story: Story) -> None:
    story.record("record_load", "missing", "b", page="head")


def a_save_of_the_one_before(story: Story) -> None:
    story.record("record_save", ["ok", "new"], "a", seq=4)
    story.records["diary"] = 4


def a_delete_by_the_one_before(story: Story) -> None:
    story.record("record_delete", "ok", "a", seq=4)


def taken_by_two(story: Story) -> None:
    story.record("record_claim", "ok", "c", seen="a")


def a_record_lost(story: Story) -> None:
    story.records.clear()


def an_old_record_in_the_end(story: Story) -> None:
    story.records["diary"] = 1


def a_deleted_record_in_the_end(story: Story) -> None:
    story.record("record_delete", "ok", "b", seq=4)


def a_record_without_a_save(story: Story) -> None:
    story.records["another"] = 1


def a_signal_stored_twice(story: Story) -> None:
    story.send("again", "1", key="1")


def another_signal_with_the_same_number(story: Story) -> None:
    story.receive(ONE, 2, "0")


def a_signal_passed_over(story: Story) -> None:
    story.receive(ONE, 1, "0")
    story.receive(ONE, 3, "2")


def an_earlier_signal_received_again(story: Story) -> None:
    story.receive(TWO, 1, "0")


def another_answer_received(story: Story) -> None:
    story.event("disordered", 1)


def a_signal_lost(story: Story) -> None:
    story.send("three", "2")


def a_child_that_ends_twice(story: Story) -> None:
    story.collect("0", "failed", "e", ended=2)


def more_endings_than_children(story: Story) -> None:
    story.collect(ended=3)


def an_ending_that_is_gone(story: Story) -> None:
    story.collect(ended=1)


def a_child_cancelled_although_its_parent_waits(story: Story) -> None:
    story.operations = [op for op in story.operations if op.id != CHILD]
    story.call("enqueue", ["created", CHILD], id=CHILD, parent=f"{RUN} 1 {CHILD} 0")


def still_waiting(story: Story) -> None:
    story.final("queued")


def dead_without_strikes(story: Story) -> None:
    story.final("dead", counters=Counters(strikes=2))


def dead_in_company(story: Story) -> None:
    story.final("dead", counters=Counters(strikes=3, attempt=1))


def cancelled_without_a_request(story: Story) -> None:
    story.final("cancelled")


def ended_twice(story: Story) -> None:
    story.end(ONE)


def given_out_after_its_ending(story: Story) -> None:
    story.claim("3000-1-wthree", seq=1)


def another_ending_is_kept(story: Story) -> None:
    story.final(last=f"{ONE} complete ok")


def two_processes_under_one_token(story: Story) -> None:
    story.event("saved", 1, TWO, pid=9)


def an_older_epoch_afterwards(story: Story) -> None:
    story.claim("1500-1-wthree", seq=1)


def the_same_epoch_for_another(story: Story) -> None:
    story.claim("2000-1-wthree", seq=1)


def resumed_without_a_save(story: Story) -> None:
    story.operations[4] = replace(story.operations[4], answer=["ok", [{**_row(story.operations[4]), "head": "0"}]])


def began_with_less_than_was_saved(story: Story) -> None:
    story.events = [replace(event, number=0) for event in story.events if event.what != "step"]
    story.events[1] = replace(story.events[1], number=1)


def test_a_stale_owner_that_starts_late_from_the_checkpoint_of_its_claim_is_no_breach() -> None:
    story = good()
    story.claim("500-1-wzero")
    story.operations.insert(1, replace(story.operations.pop(), invoked=11, ended=12))
    story.event("start", 0, "500-1-wzero", 9)
    assert judge(story.evidence(), faults=1).breaches == {}


def damaged(story: Story) -> None:
    story.event("damaged", token=TWO, pid=8)


def another_result(story: Story) -> None:
    story.final(result="x")


def other_bytes(story: Story) -> None:
    story.operations[4] = replace(
        story.operations[4], answer=["ok", [{**_row(story.operations[4]), "chunks": {"0": "#1:b"}}]]
    )


def a_stale_save(story: Story) -> None:
    story.save(ONE, 3)


def a_stale_release(story: Story) -> None:
    story.end(ONE, "release")


def a_condemned_worker_claims(story: Story) -> None:
    story.call("claim", ["ok", []], worker="wone", number=2)


def a_condemned_worker_is_renewed(story: Story) -> None:
    story.call("heartbeat", ["ok", [], [], [], ""], worker="wone")


def a_step_twice_under_one_token(story: Story) -> None:
    story.event("step", 1, TWO, 8)


def started_twice_under_one_token(story: Story) -> None:
    story.event("start", 1, TWO, 8)


def a_finding(story: Story) -> None:
    story.findings.append("run x is nowhere")


def a_leak(story: Story) -> None:
    story.leaks.append("ckpt:x")


def busy() -> Story:
    """Return the orderly story with output, effects, a budget, a group of two runs that take turns, and calls under a rate."""
    story = orderly()
    for number in range(2):
        story.event("effect", number, TWO, 8)
        story.event("spent", 1, TWO, 8)
    story.final(events=[0, 1], expected_events=(0, 1), effects=2, budget=2, spent=2)
    story.call("limit", ["ok"], kind="plain", group="acme", at_once="1")
    for id, token in ((FIRST, "4000-1-wfive"), (SECOND, "5000-1-wfive")):
        story.call("enqueue", ["created", id], id=id, group="acme")
        story.claim(token, id=id)
        story.now += 10
        story.end(token, id=id)
        story.runs[id] = FinalRun("completed", Counters(), f"{token} complete ok", "r", "r")
    story.call("rate", ["ok"], name="outside", rate="10 1000 5 1")
    for number in (1, 2):
        story.acquire(number)
        story.now += 10
        story.call("finish", "ok", name="outside", worker="wfive", number=number)
    return story


def an_event_twice(story: Story) -> None:
    story.runs[RUN] = replace(story.runs[RUN], events=[0, 1, 1])


def an_event_lost(story: Story) -> None:
    story.runs[RUN] = replace(story.runs[RUN], events=[0])


def an_effect_twice(story: Story) -> None:
    story.event("effect", 1, ONE)


def an_effect_that_never_happened(story: Story) -> None:
    story.runs[RUN] = replace(story.runs[RUN], effects=3)


def more_spent_than_the_budget(story: Story) -> None:
    for _ in range(3):
        story.event("spent", 1, TWO, 8)


def spending_counted_twice(story: Story) -> None:
    story.runs[RUN] = replace(story.runs[RUN], spent=3)


def two_runs_of_a_group_at_once(story: Story) -> None:
    story.claim("6000-1-wfive", id=FIRST, life=2)
    story.claim("7000-1-wfive", id=SECOND, life=2)
    story.now += 10
    story.end("6000-1-wfive", "release", id=FIRST)
    story.end("7000-1-wfive", "release", id=SECOND)


def calls_above_the_burst(story: Story) -> None:
    for number in range(3, 7):
        story.acquire(number)


def two_calls_at_once(story: Story) -> None:
    story.acquire(3, cost="0")
    story.acquire(4, cost="0")
    story.now += 10
    for number in (3, 4):
        story.call("finish", "ok", name="outside", worker="wfive", number=number)


def _row(op: Operation) -> dict[str, Any]:
    row: dict[str, Any] = op.answer[1][0]
    return row


BREAKS: list[tuple[Callable[[Story], None], str]] = [
    (lost, "nothing_lost"),
    (invented, "nothing_invented"),
    (a_run_of_a_fire_time_lost, "nothing_lost"),
    (a_run_of_a_fire_time_that_was_skipped, "nothing_invented"),
    (discarded_and_given_out, "discarded_for_good"),
    (discarded_and_there, "discarded_for_good"),
    (bare_by_itself, "discarded_for_good"),
    (revived_twice_by_one_order, "revived_once"),
    (a_revival_lost, "revived_once"),
    (killed_and_given_out, "killed_for_good"),
    (claimed_while_paused, "paused_stays"),
    (another_run_for_a_fire_time, "fired_once"),
    (answered_with_another_run, "fired_once"),
    (a_fire_time_passed_over, "fired_once"),
    (fired_between_its_times, "fires_on_time"),
    (fired_after_it_was_removed, "fires_on_time"),
    (fired_while_it_was_paused, "fires_on_time"),
    (overtaken_by_no_other, "ended_as_it_should"),
    (an_old_record_loaded, "records_fresh"),
    (a_record_not_found, "records_fresh"),
    (a_save_of_the_one_before, "records_owned"),
    (a_delete_by_the_one_before, "records_owned"),
    (taken_by_two, "records_owned"),
    (a_record_lost, "records_kept"),
    (an_old_record_in_the_end, "records_kept"),
    (a_deleted_record_in_the_end, "records_kept"),
    (a_record_without_a_save, "records_kept"),
    (a_signal_stored_twice, "signals_stored_once"),
    (another_signal_with_the_same_number, "signals_stored_once"),
    (a_signal_passed_over, "signals_received_in_order"),
    (an_earlier_signal_received_again, "signals_received_in_order"),
    (a_signal_lost, "signals_kept"),
    (another_answer_received, "answers_in_order"),
    (a_child_that_ends_twice, "children_end_once"),
    (more_endings_than_children, "endings_only_grow"),
    (an_ending_that_is_gone, "endings_only_grow"),
    (a_child_cancelled_although_its_parent_waits, "ended_as_it_should"),
    (still_waiting, "liveness"),
    (dead_without_strikes, "ended_as_it_should"),
    (dead_in_company, "died_alone"),
    (cancelled_without_a_request, "ended_as_it_should"),
    (ended_twice, "one_ending"),
    (given_out_after_its_ending, "one_ending"),
    (another_ending_is_kept, "one_ending"),
    (two_processes_under_one_token, "one_owner"),
    (an_older_epoch_afterwards, "epochs_grow"),
    (the_same_epoch_for_another, "epochs_grow"),
    (resumed_without_a_save, "resumed_fresh"),
    (began_with_less_than_was_saved, "resumed_fresh"),
    (damaged, "bytes_kept"),
    (another_result, "bytes_kept"),
    (other_bytes, "chunks_kept"),
    (a_stale_save, "no_stale_write"),
    (a_stale_release, "no_stale_write"),
    (a_condemned_worker_claims, "recovered_workers_stay_out"),
    (a_condemned_worker_is_renewed, "recovered_workers_stay_out"),
    (a_step_twice_under_one_token, "effects_once"),
    (started_twice_under_one_token, "effects_once"),
    (an_event_twice, "events_settled_once"),
    (an_event_lost, "events_settled_once"),
    (an_effect_twice, "effects_never_repeated"),
    (an_effect_that_never_happened, "effects_never_repeated"),
    (more_spent_than_the_budget, "budgets_hold"),
    (spending_counted_twice, "budgets_hold"),
    (two_runs_of_a_group_at_once, "groups_hold"),
    (calls_above_the_burst, "rates_hold"),
    (two_calls_at_once, "rates_hold"),
    (a_finding, "structure"),
    (a_leak, "no_leaks"),
]


def test_a_good_history_passes_and_is_counted() -> None:
    judgement = judge(good().evidence(), faults=1)
    assert judgement.breaches == {}
    wanted = {"attempts": 2, "acknowledged": 1, "finished": 1, "lost": 0, "fenced": 1, "steps": 2, "bound_95": 3.0}
    assert judgement.counts | wanted == judgement.counts


def test_orders_that_take_effect_are_no_breach() -> None:
    judgement = judge(orderly().evidence(), faults=1)
    assert judgement.breaches == {}
    assert judgement.counts | {"acknowledged": 7, "fired": 3, "records": 1} == judgement.counts


def test_output_effects_budgets_groups_and_rates_that_are_kept_are_no_breach() -> None:
    assert judge(busy().evidence(), faults=1).breaches == {}


def test_first_answer_to_a_pause_pauses_nothing() -> None:
    """The answer names the present state, and the caller asks again with it."""
    story = orderly()
    story.call("pause", ["changed", "a@1"], name="kind:agent")
    story.claim(THREE, id=OTHER, life=2, number=9)
    assert "paused_stays" not in judge(story.evidence(), faults=1).breaches


def test_tokens_that_a_call_has_given_back_may_be_used_again() -> None:
    story = busy()
    for number, cost in ((3, "0"), (4, "2")):
        story.acquire(number, cost="9")
        story.call("finish", "ok", name="outside", worker="wfive", number=number, cost=cost)
    assert "rates_hold" not in judge(story.evidence(), faults=1).breaches


def test_call_of_a_worker_that_was_declared_lost_has_no_place() -> None:
    """A process that stood still ends its call after another one has got its place."""
    story = busy()
    story.acquire(3, cost="0")
    story.call("recover", ["ok", []], worker="wfive")
    story.call("acquire", ["ok"], name="outside", worker="wsix", number=1, cost="0")
    for worker, number in (("wfive", 3), ("wsix", 1)):
        story.call("finish", "ok", name="outside", worker=worker, number=number)
    assert judge(story.evidence(), faults=1).breaches == {}


@pytest.mark.parametrize("seed", range(50))
def test_every_window_of_calls_is_judged(seed: int) -> None:
    """Compare the judge with a search of all windows, for calls that overlap in any way."""
    dice = random.Random(seed)
    calls = [
        Operation(1, "worker", "acquire", {"cost": dice.randint(1, 5)}, at, at + dice.randint(0, 8))
        for at in (dice.randint(0, 20) for _ in range(dice.randint(0, 12)))
    ]
    speed = dice.choice([0.1, 0.5, 1.0, 2.0])  # tokens per tick
    windows = [
        sum(op.given["cost"] for op in calls if first.invoked <= op.invoked and first.ended <= op.ended <= last.ended)
        - (last.ended - first.invoked) * speed
        for first in calls
        for last in calls
        if last.invoked >= first.invoked and last.ended >= first.ended
    ]
    assert feature_rules._excess(calls, speed * 1e6) == pytest.approx(max([0.0, *windows]))


def test_a_run_with_effects_may_fail_if_an_outcome_is_unknown() -> None:
    story = busy()
    story.runs[FIRST] = replace(story.runs[FIRST], status="failed", may_fail=True, last="4000-1-wfive complete ok")
    assert judge(story.evidence(), faults=1).breaches == {}


def test_an_order_without_a_reply_may_or_may_not_take_effect() -> None:
    """A discard, a revive, an unpause and a delete without a reply may or may not have taken effect. Neither is a breach."""
    story = orderly()
    for script, given in (
        ("discard", {"id": FIRED[2]}),
        ("revive", {"id": KILLED, "operation": "o2"}),
        ("record_delete", {"id": "diary", "owner": "b", "seq": 4}),
        ("unpause", {"name": "kind:agent"}),
    ):
        story.operations[-1] = replace(story.call(script, None, **given), ended=NEVER, outcome="unknown")
    assert judge(story.evidence(), faults=1).breaches == {}
    del story.runs[FIRED[2]]
    story.runs[KILLED] = replace(story.runs[KILLED], counters=Counters(life=2))
    story.records.clear()
    story.call("pause", ["ok"], name="kind:agent")
    story.claim(THREE, id=KILLED, life=2, number=9)
    assert judge(story.evidence(), faults=1).breaches == {}


@pytest.mark.parametrize(("spoil", "rule"), BREAKS, ids=lambda one: getattr(one, "__name__", one))
def test_a_breach_is_caught_by_its_rule(spoil: Callable[[Story], None], rule: str) -> None:
    story = busy()
    spoil(story)
    assert rule in judge(story.evidence(), faults=1).breaches


def test_a_record_that_its_owner_deleted_may_be_deleted_again() -> None:
    story = orderly()
    story.record("record_delete", "ok", "b", seq=4)
    story.record("record_delete", "ok", "a", seq=5)
    story.records.clear()
    assert judge(story.evidence(), faults=1).breaches == {}


def test_after_a_revive_from_the_start_only_later_saves_must_be_present() -> None:
    story = orderly()
    story.call("cancel", ["cancelled"], id=RUN)
    story.call("revive", ["queued"], id=RUN, operation="o3", life=1, from_start=1)
    story.claim("4000-1-wfive", life=2)
    story.event("start", 0, "4000-1-wfive", 9)
    story.runs[RUN] = FinalRun("cancelled", Counters(life=2))
    assert judge(story.evidence(), faults=1).breaches == {}
    story.save("4000-1-wfive", 1)
    story.event("saved", 1, "4000-1-wfive", 9)
    story.claim("5000-1-wsix", life=2)
    story.event("start", 0, "5000-1-wsix", 10)
    assert len(judge(story.evidence(), faults=1).breaches["resumed_fresh"]) == 2


def test_saves_after_a_revive_from_the_start_may_have_the_numbers_of_earlier_ones() -> None:
    story = orderly()
    newest = max(save.seq for save in story.evidence().saves[RUN])
    story.call("cancel", ["cancelled"], id=RUN)
    story.call("revive", ["queued"], id=RUN, operation="o3", life=1, from_start=1)
    story.claim("4000-1-wfive", life=2)
    story.save("4000-1-wfive", newest, chunk="#1:z")
    story.claim("5000-1-wsix", seq=newest, life=2, chunks={str(newest - 1): "#1:z"})
    assert "chunks_kept" not in judge(story.evidence(), faults=1).breaches


def test_every_rule_has_a_history_that_breaks_it() -> None:
    assert {rule for _, rule in BREAKS} == set(RULES)


def test_costs_of_graceful_faults_are_reported() -> None:
    story = good()
    assert list(costs_nothing(story.evidence())) == []
    story.event("step", 0, TWO, 8)
    story.final(counters=Counters(recoveries=1))
    assert len(list(costs_nothing(story.evidence()))) == 2


def test_a_rule_that_is_waived_is_not_judged() -> None:
    story = good()
    lost(story)
    assert judge(story.evidence(), faults=1, waived=["nothing_lost"]).passed


def test_a_signal_whose_receive_has_no_reply_is_no_breach() -> None:
    story = orderly()
    story.send("three", "2")
    op = story.receive(TWO, 3, "2")
    story.operations[-1] = replace(op, ended=NEVER, outcome="unknown", answer=None)
    assert judge(story.evidence(), faults=1).breaches == {}


def test_a_repeated_ending_is_no_stale_write_although_another_owner_has_the_run() -> None:
    """The first call was executed and its reply lost, so the repeated call gets the old answer."""
    story = Story()
    story.enqueue()
    story.claim(ONE)
    first = story.end(ONE, "release")
    story.operations[-1] = replace(first, ended=NEVER, outcome="unknown", answer=None)
    story.claim(TWO)
    story.end(ONE, "release")
    story.end(TWO)
    story.final()
    assert judge(story.evidence(), faults=1).breaches == {}
