"""Each script in turn: its reply is cut after it was carried out, or its request arrives seconds late, after its caller gave up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from coordinator.store.script import Script
from tests.faults.campaign import Campaign, run
from tests.faults.lab import Lab, Plan
from tests.faults.provoking import HIT, all_sent, sent
from tests.proxy import naming

MOST_MISSED = 3  # times that a script may not be sent although it was provoked: then something is wrong with the lab


class Turn(NamedTuple):
    """What is broken next: the reply of a script is cut, or its request is late."""

    script: Script
    late: bool
    missed: int = 0

    def __str__(self) -> str:
        return f"{self.script.name} {'late' if self.late else 'cut'}"


def deck(choose: random.Random) -> list[Turn]:
    """Every script in one way, and then every script in the other."""
    first = [Turn(script, choose.random() < 0.4) for script in HIT]
    second = [Turn(script, not late) for script, late, _ in first]
    choose.shuffle(first)
    choose.shuffle(second)
    return first + second


def break_one(lab: Lab) -> str:
    while True:
        if not lab.deck:
            lab.deck.extend(deck(lab.choose))
        turn: Turn = lab.deck.popleft()
        if _hit(lab, turn.script, lab.choose.choice([0.3, 2.5, 6.0]) if turn.late else None):
            return str(turn)
        assert turn.missed + 1 < MOST_MISSED, f"nobody sends {turn.script.name}"
        lab.deck.append(turn._replace(missed=turn.missed + 1))


def _hit(lab: Lab, script: Script, seconds: float | None) -> bool:
    """Whether the next call of a script was hit."""
    assert lab.proxy is not None
    of_it = naming(script.sha.encode())
    fault = lab.proxy.cut_next_reply(of_it) if seconds is None else lab.proxy.delay_next_request(seconds, of_it)
    return sent(lab, script, fault.happened.is_set) or not lab.proxy.call_off(fault)


def break_all(lab: Lab) -> str:
    """One reply of every script is cut, each when it comes."""
    assert lab.proxy is not None
    faults = {script: lab.proxy.cut_next_reply(naming(script.sha.encode())) for script in HIT}
    all_sent(lab, lambda script: faults[script].happened.is_set())
    return "all cut"


CAMPAIGN = Campaign("replies", break_one, Plan(operators=1, diarists=1), proxied=True)
ALL_AT_ONCE = Campaign("replies-all", break_all, Plan(operators=1, diarists=1), proxied=True)


def main(arguments: Sequence[str]) -> int:
    return run(CAMPAIGN, arguments, count=2 * len(HIT))
