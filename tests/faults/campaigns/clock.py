"""Let the server's clock jump: a minute ahead, an hour back, a second to and fro. No run dies, and epochs still grow.

A retry has a due time by the clock of the server. If that clock is an hour back afterwards, the retry is an hour late.
So at the end the clock goes to the latest time that it has ever shown, as after a correction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.faults.campaigns.runner import Campaign, run
from tests.faults.judge.evidence import Evidence
from tests.faults.lab.lab import Lab, Plan
from tests.faults.lab.shim import ShimServer

JUMPS = (60.0, -3600.0, 3600.0, -60.0, 1.0, -1.0, 7.5)


def break_one(lab: Lab) -> str:
    assert isinstance(lab.server, ShimServer)
    lab.work_on(lab.choose.randint(5, 25))
    jump = lab.choose.choice(JUMPS)
    lab.server.ahead += jump
    return f"{jump:+g} s"


def correct_the_clock(lab: Lab) -> None:
    assert isinstance(lab.server, ShimServer)
    lab.server.ahead = lab.server.furthest


def no_run_dies(see: Evidence) -> Iterator[str]:
    """All processes are alive, so no clock jump may cost a run its life, whatever happens to the leases."""
    for id, one in see.final.runs.items():
        if one.status == "dead":
            yield f"run {id} died because of a clock jump"


CAMPAIGN = Campaign(
    "clock", break_one, Plan(users=1, lease=3.0), server=ShimServer, also=no_run_dies, finish=correct_the_clock,
    # The judge measures a rate by its own clock, but each jump forwards frees one burst (docs/guides/limits.md).
    waived=("rates_hold",),
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    return run(CAMPAIGN, arguments, count=20)
