"""Hit each script in turn: lose its reply after the server executed it, or delay its request until its caller has given up."""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coordinator.store.script import Script
from tests.faults.campaigns.runner import Campaign, run
from tests.faults.lab.lab import Lab, Plan
from tests.faults.lab.triggers import AGAIN, HIT, LONG, MANY_STEPS, SOON, trigger
from tests.proxy import Fault, naming
from tests.waiting import wait_until

MOST_MISSED = 10  # how often a script may not be sent although it was triggered; after that, the lab must be wrong
LONGER = 3.0  # seconds by which each other waiting turn prolongs the wait


class Turn(NamedTuple):
    """The next fault: the reply of a script is lost, or its request is late."""

    script: Script
    late: bool
    missed: int = 0

    def __str__(self) -> str:
        return f"{self.script.name} {'late' if self.late else 'cut'}"


def halves(choose: random.Random) -> tuple[list[Turn], list[Turn]]:
    """Return every script in one way, and then every script in the other."""
    first = [Turn(script, choose.random() < 0.4) for script in HIT]
    second = [Turn(script, not late) for script, late, _ in first]
    choose.shuffle(first)
    choose.shuffle(second)
    return first, second


@dataclass(frozen=True, eq=False)
class Armed:
    """A turn that waits for the next call of its script, and since when, in seconds and in steps of work."""

    turn: Turn
    fault: Fault
    since: float
    steps: int


class Hand:
    """The turns that wait for their call, and the turns that follow.

    The second half of the deck is started when the first half is finished. So no script is left out, and no call is hit
    in two ways at once.
    """

    def __init__(self, lab: Lab, at_once: int) -> None:
        self._lab, self._at_once = lab, at_once
        self._to_come: deque[list[Turn]] = deque()
        self._half: deque[Turn] = deque()
        self.armed: deque[Armed] = deque()

    def fill(self) -> None:
        if not self._half and not self.armed:
            if not self._to_come:
                self._to_come.extend(halves(self._lab.choose))
            self._half.extend(self._to_come.popleft())
        while self._half and len(self.armed) < self._at_once:
            self.armed.append(self._arm(self._half.popleft()))

    def _arm(self, turn: Turn) -> Armed:
        proxy, of_it = self._lab.proxy, naming(turn.script.sha.encode())
        assert proxy is not None
        seconds = self._lab.choose.choice([0.3, 2.5, 6.0])
        fault = proxy.delay_next_request(seconds, of_it) if turn.late else proxy.cut_next_reply(of_it)
        return Armed(turn, fault, time.monotonic(), self._lab.steps_so_far())

    def happened(self, one: Armed) -> bool:
        """Return whether a turn that leaves the hand has happened. If not, it is repeated later in its half."""
        assert self._lab.proxy is not None
        self.armed.remove(one)
        if one.fault.happened.is_set() or not self._lab.proxy.call_off(one.fault):
            return True
        missed = one.turn.missed + 1
        assert missed < MOST_MISSED, f"no process sends {one.turn.script.name}"
        self._half.append(one.turn._replace(missed=missed))
        return False

    def call_off(self) -> None:
        assert self._lab.proxy is not None
        while self.armed:
            self._lab.proxy.call_off(self.armed.pop().fault)


def first_of(lab: Lab, armed: deque[Armed]) -> Armed:
    """Return the first turn that happened, or that has waited in vain although work continued. All are triggered in turn."""
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
        if (
            done >= then
        ):  # Trigger it again: a drained worker may have nothing to release, and a run may end before it is cancelled.
            trigger(lab, armed[0].turn.script)
            armed.rotate(-1)
            then = done + max(SOON, AGAIN // len(armed))
        return False

    names = ", ".join(str(one.turn) for one in armed)
    wait_until(is_over, f"one is sent, or work goes on without it: {names}", timeout=90 + LONGER * len(armed))
    return found[0]


def campaign(at_once: int = 1) -> Campaign:
    """Return the campaign in which a number of turns wait at the same time. When one has happened, the next turn waits."""
    hands: dict[Lab, Hand] = {}

    def break_one(lab: Lab) -> str:
        hand = hands[lab]
        while True:
            hand.fill()
            one = first_of(lab, hand.armed)
            if hand.happened(one):
                return str(one.turn)

    def begin(lab: Lab) -> None:
        hands[lab] = Hand(lab, at_once)

    return Campaign(
        "replies",
        break_one,
        Plan(operators=1, record_keepers=1),
        proxied=True,
        begin=begin,
        finish=lambda lab: hands.pop(lab).call_off(),
        measures=lambda evidence: {"at_once": at_once},
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults replies", add_help=False)
    parser.add_argument("--at-once", type=int, default=1)
    chosen, others = parser.parse_known_args(arguments)
    return run(campaign(chosen.at_once), others, count=2 * len(HIT))
