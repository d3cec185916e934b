"""Each script in turn: its reply is cut after it was carried out, or its request arrives seconds late, after its caller gave up."""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coordinator.store.script import Script
from tests.faults.campaign import Campaign, run
from tests.faults.lab import Lab, Plan
from tests.faults.provoking import AGAIN, HIT, LONG, MANY_STEPS, SOON, provoke
from tests.proxy import Fault, naming
from tests.waiting import wait_until

MOST_MISSED = 10  # times that a script may not be sent although it was provoked: then something is wrong with the lab
LONGER = 3.0  # seconds: each that waits beside it makes one wait so much longer


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


@dataclass(frozen=True, eq=False)
class Armed:
    """A turn that waits for the next call of its script; since when, by the clock and by the work that was done."""

    turn: Turn
    fault: Fault
    since: float
    steps: int


def arm(lab: Lab) -> Armed:
    """The next turn of the deck."""
    assert lab.proxy is not None
    if not lab.deck:
        lab.deck.extend(deck(lab.choose))
    turn: Turn = lab.deck.popleft()
    of_it = naming(turn.script.sha.encode())
    seconds = lab.choose.choice([0.3, 2.5, 6.0])
    fault = lab.proxy.delay_next_request(seconds, of_it) if turn.late else lab.proxy.cut_next_reply(of_it)
    return Armed(turn, fault, time.monotonic(), lab.steps_so_far())


def first_of(lab: Lab, armed: deque[Armed]) -> Armed:
    """The first that happens, or that has waited in vain although work went on. They are provoked in turn."""
    found, then = list[Armed](), 0

    def is_over() -> bool:
        nonlocal then
        lab.tend()
        now, done = time.monotonic(), lab.steps_so_far()
        for one in armed:
            vain = done - one.steps > MANY_STEPS and now - one.since > LONG + LONGER * (len(armed) - 1)
            if one.fault.happened.is_set() or vain:
                found.append(one)
                return True
        if done >= then:  # again: who is drained may have nothing to release, a run may be gone before it is cancelled
            provoke(lab, armed[0].turn.script)
            armed.rotate(-1)
            then = done + max(SOON, AGAIN // len(armed))
        return False

    names = ", ".join(str(one.turn) for one in armed)
    wait_until(is_over, f"one is sent, or work goes on without it: {names}", timeout=90 + LONGER * len(armed))
    return found[0]


def campaign(at_once: int = 1) -> Campaign:
    """So many wait for their calls at once, and the next is armed when one has happened."""
    armed: deque[Armed] = deque()

    def break_one(lab: Lab) -> str:
        assert lab.proxy is not None
        while True:
            while len(armed) < at_once:
                armed.append(arm(lab))
            one = first_of(lab, armed)
            armed.remove(one)
            if one.fault.happened.is_set() or not lab.proxy.call_off(one.fault):
                return str(one.turn)
            missed = one.turn.missed + 1
            assert missed < MOST_MISSED, f"nobody sends {one.turn.script.name}"
            lab.deck.append(one.turn._replace(missed=missed))

    def finish(lab: Lab) -> None:
        assert lab.proxy is not None
        while armed:
            lab.proxy.call_off(armed.pop().fault)

    return Campaign("replies", break_one, Plan(operators=1, diarists=1), proxied=True, finish=finish)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults replies", add_help=False)
    parser.add_argument("--at-once", type=int, default=1)
    chosen, others = parser.parse_known_args(arguments)
    return run(campaign(chosen.at_once), others, count=2 * len(HIT))
