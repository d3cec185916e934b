"""The judge is worth what it catches: for each rule a made-up history that breaks it, and a good one that breaks none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordinator.run import Counters
from tests.e2e.processes import Event
from tests.faults.checker import RULES, Evidence, Final, FinalRun, costs_nothing, judge
from tests.faults.history import NEVER, History, Operation

RUN = "01m7hcmzdw1qs1t77rgr-00"
ONE, TWO = "1000-1-wone", "2000-1-wtwo"


class Story:
    """A history in the making: each call takes one tick."""

    def __init__(self) -> None:
        self.now = 0
        self.operations: list[Operation] = []
        self.events: list[Event] = []
        self.runs: dict[str, FinalRun] = {}
        self.findings: list[str] = []
        self.leaks: list[str] = []

    def call(self, script: str, answer: Any, **given: Any) -> Operation:
        self.now += 10
        self.operations.append(Operation(1, "worker", script, given, self.now, self.now + 5, "ok", answer))
        return self.operations[-1]

    def enqueue(self, id: str = RUN) -> None:
        self.call("enqueue", ["created", id], id=id)

    def claim(self, token: str, seq: int = 0, life: int = 1, chunks: dict[str, str] | None = None) -> None:
        row: dict[str, Any] = {"id": RUN, "token": token, "cause": "", "counters": f"{life} 1 0 0 0 0 0 0 0 0 0 0"}
        if seq:
            row |= {"head": f"{seq} 0 {seq} 0 0 0 1 0 0 0", "chunks": chunks or {}}
        self.call("claim", ["ok", [row]], worker=token.rpartition("-")[2], number=1)

    def save(self, token: str, seq: int, answer: str = "ok", chunk: str = "#1:a") -> Operation:
        delta = {"seq": seq, "acked": 0, "generation": 0, "base": seq - 1, "count": 1, "chunk": chunk, "iteration": 0}
        return self.call("checkpoint", [answer, 1], id=RUN, token=token, delta=delta)

    def end(self, token: str, script: str = "complete", answer: str = "ok") -> Operation:
        return self.call(script, answer, id=RUN, token=token)

    def event(self, what: str, number: int = 0, token: str = ONE, pid: int = 7) -> None:
        self.now += 10
        self.events.append(Event(float(self.now), pid, RUN, token, what, number))

    def final(self, status: str = "completed", **fields: Any) -> None:
        fields = {"last": f"{TWO} complete ok", "result": "r", "expected": "r", **fields}
        self.runs[RUN] = FinalRun(status, fields.pop("counters", Counters()), **fields)

    def evidence(self) -> Evidence:
        return Evidence(History(self.operations), self.events, Final(self.runs, self.findings, self.leaks))


def good() -> Story:
    """A run whose first owner saves, is given up, and comes back too late; its second owner ends it, and repeats that."""
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


def lost(story: Story) -> None:
    del story.runs[RUN]


def invented(story: Story) -> None:
    story.runs["somebody"] = story.runs[RUN]


def still_waiting(story: Story) -> None:
    story.final("queued")


def dead_without_strikes(story: Story) -> None:
    story.final("dead", counters=Counters(strikes=2))


def dead_in_company(story: Story) -> None:
    story.final("dead", counters=Counters(strikes=3, attempt=1))


def cancelled_by_nobody(story: Story) -> None:
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


def test_a_stale_owner_that_begins_late_with_what_was_there_at_its_claim_breaks_nothing() -> None:
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


def _row(op: Operation) -> dict[str, Any]:
    row: dict[str, Any] = op.answer[1][0]
    return row


BREAKS: list[tuple[Callable[[Story], None], str]] = [
    (lost, "nothing_lost"),
    (invented, "nothing_invented"),
    (still_waiting, "liveness"),
    (dead_without_strikes, "ended_as_it_should"),
    (dead_in_company, "died_alone"),
    (cancelled_by_nobody, "ended_as_it_should"),
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
    (a_condemned_worker_claims, "condemned_stay_out"),
    (a_condemned_worker_is_renewed, "condemned_stay_out"),
    (a_step_twice_under_one_token, "effects_once"),
    (started_twice_under_one_token, "effects_once"),
    (a_finding, "structure"),
    (a_leak, "no_leaks"),
]


def test_a_good_history_passes_and_is_counted() -> None:
    judgement = judge(good().evidence(), faults=1)
    assert judgement.breaches == {}
    wanted = {"attempts": 2, "acknowledged": 1, "finished": 1, "lost": 0, "fenced": 1, "steps": 2, "bound_95": 3.0}
    assert judgement.counts | wanted == judgement.counts


@pytest.mark.parametrize(("spoil", "rule"), BREAKS, ids=lambda one: getattr(one, "__name__", one))
def test_a_breach_is_caught_by_its_rule(spoil: Callable[[Story], None], rule: str) -> None:
    story = good()
    spoil(story)
    assert rule in judge(story.evidence(), faults=1).breaches


def test_every_rule_has_a_history_that_breaks_it() -> None:
    assert {rule for _, rule in BREAKS} == set(RULES)


def test_what_costs_something_is_said() -> None:
    story = good()
    assert list(costs_nothing(story.evidence())) == []
    story.event("step", 0, TWO, 8)
    story.final(counters=Counters(recoveries=1))
    assert len(list(costs_nothing(story.evidence()))) == 2


def test_a_rule_that_is_waived_is_not_judged() -> None:
    story = good()
    lost(story)
    assert judge(story.evidence(), faults=1, waived=["nothing_lost"]).passed


def test_an_ending_that_is_repeated_after_another_owner_has_the_run_is_no_stale_write() -> None:
    """Its first sending was carried out and its reply lost: the repetition gets the old answer."""
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
