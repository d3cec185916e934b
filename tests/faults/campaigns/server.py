"""Kill the server with kill -9 and restart it from its append-only file; --fsync always or everysec.

With `always` nothing acknowledged is lost. With `everysec` a server may have answered requests that it has not even
written yet: during an fsync it postpones writes for up to two seconds. The campaign counts these losses.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.campaigns.power import Cuts, measured, with_fsync
from tests.faults.campaigns.runner import Campaign
from tests.faults.lab.lab import Plan


def campaign(fsync: str) -> Campaign:
    kills = Cuts()
    made = Campaign(f"server-{fsync}", kills.kill, Plan(users=1), settings={"appendfsync": fsync})
    return made if fsync == "always" else measured(made, kills)


def main(arguments: Sequence[str]) -> int:
    return with_fsync(arguments, campaign)
