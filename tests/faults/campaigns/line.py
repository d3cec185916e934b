"""Put a slow line with a high latency between all processes and the server, and kill and replace processes meanwhile.

    scripts/faults line [--rate BYTES] [--latency SECONDS] [--count N] [--seconds S]

The line carries 5 MB per second in each direction, and each byte is 80 ms on its way, so a trip takes at least 160 ms.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tests.faults.campaigns.kill import kill_a_worker
from tests.faults.campaigns.roll import break_one as roll_one
from tests.faults.campaigns.runner import Campaign, run
from tests.faults.lab.lab import Lab, Plan
from tests.proxy import SlowLine

RATE = 5_000_000  # bytes per second
LATENCY = 0.08  # seconds in one direction


def break_one(lab: Lab) -> str:
    if lab.choose.random() < 0.6:
        return kill_a_worker(lab)
    return roll_one(lab)


def campaign(rate: float = RATE, latency: float = LATENCY) -> Campaign:
    plan = Plan(lease=5.0, grace=10.0, operators=1, record_keepers=1)
    return Campaign("line", break_one, plan, line=lambda port: SlowLine(port, rate, latency))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults line", add_help=False)
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--latency", type=float, default=LATENCY)
    chosen, rest = parser.parse_known_args(arguments)
    return run(campaign(chosen.rate, chosen.latency), rest, count=20)
