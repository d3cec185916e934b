"""kill -9 of the server and its restart from its append-only file; --fsync always or everysec.

With `always` nothing acknowledged is lost. With `everysec` a server may have answered what it has not even written yet: while a
fsync is under way it postpones its writes for up to two seconds. What that costs is counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.campaigns.power import Cuts, measured, with_fsync
from tests.faults.campaigns.runner import Campaign


def campaign(fsync: str) -> Campaign:
    kills = Cuts()
    made = Campaign(f"server-{fsync}", kills.kill, settings={"appendfsync": fsync})
    return made if fsync == "always" else measured(made, kills)


def main(arguments: Sequence[str]) -> int:
    return with_fsync(arguments, campaign)
