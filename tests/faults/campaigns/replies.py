"""Each script in turn: its reply is cut after it was carried out, or its request arrives seconds late, after its caller gave up."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from coordinator.store.script import Script
from tests.faults.campaign import Campaign, run
from tests.faults.lab import Lab, Plan
from tests.faults.provoking import HIT, provoke
from tests.proxy import Fault, naming
from tests.waiting import wait_until

MANY_STEPS = (
    150  # after so many, and so many seconds, a call that was not sent is not waited for; some are sent every 5 s
)
LONG = 12.0
AGAIN = 40  # steps after which it is provoked once more
MOST_MISSED = 4


def deck(choose: random.Random) -> list[tuple[Script, bool]]:
    """What is broken, in order: every script in one way, and then every script in the other. True is late, False is cut."""
    first = [(script, choose.random() < 0.4) for script in HIT]
    second = [(script, not late) for script, late in first]
    choose.shuffle(first)
    choose.shuffle(second)
    return first + second


def break_one(lab: Lab) -> str:
    missed: list[str] = []
    while len(missed) < MOST_MISSED:
        if not lab.deck:
            lab.deck.extend(deck(lab.choose))
        script, late = lab.deck.popleft()
        if _hit(lab, script, lab.choose.choice([0.3, 2.5, 6.0]) if late else None):
            return f"{script.name} {'late' if late else 'cut'}"
        lab.deck.append((script, late))  # nobody sent it
        missed.append(script.name)
    raise AssertionError(f"nobody sent {', '.join(missed)}")


def _hit(lab: Lab, script: Script, seconds: float | None) -> bool:
    """Whether the next call of a script was hit."""
    assert lab.proxy is not None
    of_it = naming(script.sha.encode())
    fault = lab.proxy.cut_next_reply(of_it) if seconds is None else lab.proxy.delay_next_request(seconds, of_it)
    waiting = _Waiting(lab, script, fault)
    wait_until(waiting.is_over, "the call is hit, or work goes on without it", timeout=90)
    if not fault.happened.is_set():
        return not lab.proxy.call_off(fault)
    return True


class _Waiting:
    """For a call to be hit."""

    def __init__(self, lab: Lab, script: Script, fault: Fault) -> None:
        self._lab, self._script, self._fault = lab, script, fault
        self._begun, self._since = lab.steps_so_far(), time.monotonic()
        self._next = 0

    def is_over(self) -> bool:
        self._lab.tend()
        if self._fault.happened.is_set():
            return True
        done = self._lab.steps_so_far() - self._begun
        if (
            done >= self._next
        ):  # a worker that is drained may have nothing to release, a run be gone before it is cancelled
            provoke(self._lab, self._script)
            self._next = done + AGAIN
        return done > MANY_STEPS and time.monotonic() - self._since > LONG


CAMPAIGN = Campaign("replies", break_one, Plan(operators=1, diarists=1), proxied=True)


def main(arguments: Sequence[str]) -> int:
    return run(CAMPAIGN, arguments, count=2 * len(HIT))
