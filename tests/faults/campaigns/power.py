"""Simulate power failures: kill the server and remove every byte that no fsync confirmed; --fsync always or everysec.

With `always` all rules are judged. With `everysec` the campaign counts the losses: acknowledged runs that are gone, and
how long before the power failure the oldest of them was acknowledged.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tests.faults.campaigns.runner import Campaign, run
from tests.faults.judge.evidence import Evidence
from tests.faults.lab.lab import Lab, Plan
from tests.faults.lab.shim import ShimServer

# rules that a server which loses the last second cannot keep
FORGOTTEN = (
    "nothing_lost", "one_ending", "epochs_grow", "resumed_fresh", "chunks_kept", "no_stale_write", "recovered_workers_stay_out",
    "one_owner", "effects_once", "revived_once", "events_settled_once", "effects_never_repeated", "budgets_hold", "groups_hold",
    "rates_hold", "signals_stored_once", "signals_received_in_order", "signals_kept", "answers_in_order",
    "children_end_once", "endings_only_grow", "fires_on_time",
)  # fmt: skip
MOST_SECONDS = 3.0  # everysec: one fsync per second; the server waits at most two seconds for a slow one


@dataclass
class Cuts:
    """The moments of the power failures, and the number of lost bytes."""

    at: list[int] = field(default_factory=list)
    bytes_lost: int = 0

    def cut_power(self, lab: Lab) -> str:
        assert isinstance(lab.server, ShimServer)
        lab.work_on(lab.choose.randint(5, 40))
        self.bytes_lost += lab.server.power_cut()
        self.at.append(time.monotonic_ns())
        lab.server.start()
        return "power cut"

    def kill(self, lab: Lab) -> str:
        lab.work_on(lab.choose.randint(1, 30))
        lab.server.kill()
        self.at.append(time.monotonic_ns())
        lab.server.start()
        return "server killed"

    def window(self, see: Evidence) -> float:
        """Return for how many seconds a lost write had been acknowledged, at most."""
        acknowledged = {str(op.answer[1]): op.ended for op in see.history.of("enqueue") if op.word == "created"}
        gone = set(acknowledged) - set(see.final.runs)
        ages = [min((cut - acknowledged[id] for cut in self.at if cut >= acknowledged[id]), default=0) for id in gone]
        return max(ages, default=0) / 1e9

    def measured(self, see: Evidence) -> dict[str, int | float]:
        return {"bytes_lost": self.bytes_lost, "window_seconds": round(self.window(see), 3)}

    def lost_within_the_window(self, see: Evidence) -> Iterator[str]:
        """All lost writes were acknowledged in the last moments before a power failure."""
        window = self.window(see)
        if window > MOST_SECONDS:
            yield f"a run was lost {window:.1f} s after it had been acknowledged"


def campaign(fsync: str) -> Campaign:
    cuts = Cuts()
    made = Campaign(f"power-{fsync}", cuts.cut_power, Plan(users=1), settings={"appendfsync": fsync}, server=ShimServer)
    return made if fsync == "always" else measured(made, cuts)


def measured(made: Campaign, cuts: Cuts) -> Campaign:
    """Return a campaign with a server that may lose writes: judge what is promised, and count the rest."""
    return replace(made, waived=FORGOTTEN, also=cuts.lost_within_the_window, measures=cuts.measured)


def with_fsync(arguments: Sequence[str], make: Callable[[str], Campaign]) -> int:
    """Run the campaign for the setting of `--fsync` (default: always)."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--fsync", choices=["always", "everysec"], default="always")
    chosen, others = parser.parse_known_args(arguments)
    return run(make(chosen.fsync), others, count=10)


def main(arguments: Sequence[str]) -> int:
    return with_fsync(arguments, campaign)
