"""The parameters of a seed, drawn before it starts: few processes, short leases, and mostly one focus of faults.

Faults that are spread over all calls rarely meet in the same place, which is what most bugs need. So most seeds have
one kind of call that is hit much more often.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

FOCUSES: dict[str, frozenset[str]] = {
    "producers": frozenset({"enqueue", "revive", "cancel"}),
    "claims": frozenset({"claim", "join", "leave", "heartbeat"}),
    "saves": frozenset({"checkpoint", "note", "extend", "kill"}),
    "endings": frozenset({"complete", "fail", "retry", "release", "reject"}),
    "coordinators": frozenset({"recover", "judge", "abandon", "due", "fire", "lock"}),
    "signals": frozenset({"send", "suspend", "receive", "due"}),
    "nobody": frozenset(),
}
# Each family of features has kinds of runs and a focus of its own. A seed without a family does what it did before.
FAMILIES: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "children": (("family",), frozenset({"enqueue", "join_children", "collect", "suspend", "complete", "due"})),
    "output": (("teller",), frozenset({"emit", "checkpoint", "complete", "release", "suspend"})),
    "effects": (("charging",), frozenset({"checkpoint", "claim", "release"})),
    "budgets": (("thrifty", "begging", "family"), frozenset({"spend", "send", "receive", "complete", "suspend"})),
    "groups": (("grouped",), frozenset({"claim", "complete", "retry", "limit", "sweep", "suspend"})),
    "rates": (("calling",), frozenset({"acquire", "finish", "back_off", "heartbeat"})),
}
FAMILY_CHANCE = 0.5
HARD = 6.0  # how much more often calls of the focus are hit
FAULTS = ("request lost", "reply lost", "late", "repeated", "cut")
LATEST = (1.0, 1.0, 2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 8.0, 45.0)  # seconds: no call is repeated for longer than 50
KINDS = ("agent", "agent", "steps", "watched", "chat")
TALKATIVE = ("chat", "chat", "chat", "agent")
DISTURBANCES = (
    "crash worker", "pause worker", "drain worker", "lose host", "crash coordinator", "pause coordinator", "cut off", "outage",
    "crash producer", "abandon a live worker",
)  # fmt: skip
# These are drawn apart from the others, so that a seed without them does what it did before they were added.
MORE_DISTURBANCES = ("stutter coordinator", "two outages")


@dataclass(frozen=True, slots=True)
class Scenario:
    """The parameters of a seed. Times are virtual seconds."""

    partitions: int
    lease: float
    seconds: float  # the duration of the faults
    pace: float  # the longest time between two disturbances
    disturbances: tuple[str, ...]
    chances: dict[str, float]
    focus: frozenset[str]
    latest: float  # the largest delay of a late request
    coordinators: int
    pods: int
    producers: tuple[int, ...]  # the number of runs of each producer
    operator: bool
    schedule: bool
    kinds: tuple[str, ...]
    family: str = ""  # one of FAMILIES, or none

    @classmethod
    def drawn(cls, dice: random.Random) -> Scenario:
        scenario, more = cls._drawn(dice), random.Random()
        more.setstate(dice.getstate())
        added = tuple(disturbance for disturbance in MORE_DISTURBANCES if more.random() < 0.2)
        scenario = replace(scenario, disturbances=scenario.disturbances + added)
        if more.random() >= FAMILY_CHANCE:
            return scenario
        family = more.choice(list(FAMILIES))
        kinds, focus = FAMILIES[family]
        return replace(
            scenario,
            family=family,
            kinds=(*kinds * 4, "agent"),
            focus=focus if more.random() < 0.5 else scenario.focus,
            producers=(4, 4) if family in ("groups", "rates") else scenario.producers,
        )

    @classmethod
    def _drawn(cls, dice: random.Random) -> Scenario:
        return cls(
            partitions=dice.choice([1, 1, 1, 2]),
            lease=dice.choice([1.0, 1.0, 2.0, 2.0, 3.0, 15.0]),
            seconds=dice.choice([2.0, 3.0, 5.0, 8.0]),
            pace=dice.choice([0.3, 0.6, 1.2]),
            disturbances=tuple(disturbance for disturbance in DISTURBANCES if dice.random() < 0.5),
            chances={fault: dice.choice([0.03, 0.06, 0.12]) for fault in FAULTS if dice.random() < 0.6},
            focus=FOCUSES[dice.choice(list(FOCUSES))],
            latest=dice.choice(LATEST),
            coordinators=dice.choice([1, 1, 2]),
            pods=dice.choice([1, 1, 2, 2, 3]),
            producers=tuple(dice.choice([2, 3, 4]) for _ in range(dice.choice([1, 2]))),
            operator=dice.random() < 0.6,
            schedule=dice.random() < 0.1,
            kinds=dice.choice([KINDS, KINDS, TALKATIVE, (*KINDS, "poison")]),
        )


def seeds_of(family: str | None, first: int, count: int) -> list[int]:
    """Return seeds of a family of features from `first` on; with None, any seeds."""
    fitting = (seed for seed in itertools.count(first) if family in (None, Scenario.drawn(random.Random(seed)).family))
    return list(itertools.islice(fitting, count))


def new_run(dice: random.Random, kinds: Sequence[str]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return kind, inputs and options of a run. A run with a key always has the same inputs."""
    kind = dice.choice(kinds)
    inputs: dict[str, Any] = {"turns": dice.choice([2, 5, 10]), "trouble": dice.choice([0.0, 0.0, 0.1, 0.4])}
    options: dict[str, Any] = {"priority": dice.choice([0, 0, 5])}
    if dice.random() < 0.2:
        options["delay"] = dice.random() * 3
    if dice.random() < 0.1:
        options["expires"] = 0.5 + dice.random() * 5
    if dice.random() < 0.4:
        options["key"], inputs = f"{kind}{dice.randrange(2)}", {"turns": 4, "trouble": 0.0}
    if kind == "grouped":
        options["group"] = dice.choice(["a", "a", "a", "b"])
    if dice.random() < 0.2:
        options["retention"] = dice.choice([0.0, 60.0, 600.0])
    return kind, inputs, options
