"""Fill the server's disk for a while: it refuses writes, and when there is space again, work continues."""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.campaigns.runner import Campaign, run
from tests.faults.lab.lab import Lab, Plan
from tests.faults.lab.shim import ShimServer
from tests.waiting import wait_until


def break_one(lab: Lab) -> str:
    server = lab.server
    assert isinstance(server, ShimServer)
    lab.work_on(lab.choose.randint(5, 25))
    refused = server.refused
    server.full = True
    try:
        wait_until(lambda: server.refused > refused + lab.choose.randint(1, 4), "the server has noticed", timeout=60)
    finally:
        server.full = False
    return "disk full"


CAMPAIGN = Campaign("disk", break_one, Plan(users=1, lease=5.0), server=ShimServer)


def main(arguments: Sequence[str]) -> int:
    return run(CAMPAIGN, arguments, count=10)
