"""Write keys of a wrong type, unreadable numbers and hostile bytes to the server.

Only the damaged run may be affected, and doctor must repair the rest. If a key of a group or a rate is damaged, the runs that need
it may be affected until doctor has repaired it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator import Client, CoordinatorError
from tests.faults.campaigns.runner import Campaign, run
from tests.faults.judge.evidence import ENDED
from tests.faults.lab.lab import Lab, Plan
from tests.faults.programs.app import RATE
from tests.waiting import wait_until

HOSTILE = (
    b"\xc1",  # not valid msgpack
    b"\xc1\x01not zstd",
    b"\x91" * 3000,  # deep nesting
    b"\xdd\xff\xff\xff\xff",  # a header that announces four billion items
    b"\xc7\x05\x63hello",  # an unknown extension type
    b"\xdb\x00\x00\x00\x08short",
    b"",
)
NO_NUMBERS = (*HOSTILE, b"-1", b"nan", b"inf", b"9" * 400, b"1 2", b"\xc2\xb2")

Find = Callable[[Lab, Any], list[str]]
Damage = Callable[[Lab, Any, str], None]


@dataclass(frozen=True)
class Way:
    """A way to damage a run, a group or a rate.

    Attributes:
        damage: The function that does the damage.
        find: Returns the runs, groups or rates that have what the function damages.
        excuse: Returns the runs for which nothing is promised then.
    """

    damage: Damage
    find: Find
    excuse: Callable[[Lab, Any, str], set[str]]


def break_one(lab: Lab) -> str:
    """Damage something in the next way for which there is a candidate. Each way has its turn."""
    lab.work_on(lab.choose.randint(1, 15))
    try:
        found = wait_until(lambda: _next_damage(lab), "there is something to damage", timeout=20)
    except AssertionError:  # No run has needed the keys of the ways that are left for a while.
        lab.deck.clear()
        found = wait_until(lambda: _next_damage(lab), "there is something to damage", timeout=60)
    assert found is not None
    way, name = found
    lab.deck.remove(way)
    lab.excused |= way.excuse(lab, lab.server.admin, name)
    way.damage(lab, lab.server.admin, name)
    if way.find is rates:
        lab.work_on(3)
        repair_all(lab)
        lab.excused |= way.excuse(lab, lab.server.admin, name)
    return way.damage.__name__.replace("_", " ")


def _next_damage(lab: Lab) -> tuple[Way, str] | None:
    """Return the first way of the deck for which there is a candidate, with a candidate."""
    lab.tend()
    if not lab.deck:
        lab.deck.extend(lab.choose.sample(WAYS, len(WAYS)))
    for way in lab.deck:
        if found := way.find(lab, lab.server.admin):
            return way, lab.choose.choice(found)
    return None


# ---- what can be damaged -----------------------------------------------------------------------------------------------


def runs(lab: Lab, admin: Any) -> list[str]:
    """Return runs that are queued or running."""
    found = list(admin.smembers(lab.keys.live()))
    for key in admin.scan_iter(f"{lab.keys.at}:ready:*"):
        found += admin.zrange(key, 0, 50)
    return sorted({id.decode() for id in found} - lab.excused)


def waiting(lab: Lab, admin: Any) -> list[str]:
    """Return runs that wait."""
    return sorted({id.decode() for id in admin.zrange(lab.keys.waiting(), 0, -1)} - lab.excused)


def spending(lab: Lab, admin: Any) -> list[str]:
    """Return runs that have spent something."""
    return [id for id in runs(lab, admin) + waiting(lab, admin) if admin.hexists(lab.keys.run(id), "spend")]


def noting(lab: Lab, admin: Any) -> list[str]:
    """Return runs that note other keys or fields in their hash."""
    return [id for id in runs(lab, admin) + waiting(lab, admin) if admin.hexists(lab.keys.run(id), "beside")]


def having(family: str) -> Find:
    """Return a function that returns the runs that have not ended and have a key of a family."""

    def find(lab: Lab, admin: Any) -> list[str]:
        ids = set(_sound_names(lab, admin, family))
        statuses = {id: (admin.hget(lab.keys.run(id), "status") or b"").decode() for id in ids - lab.excused}
        return sorted(id for id, status in statuses.items() if status and status not in ENDED)

    return find


def places(lab: Lab, admin: Any) -> list[str]:
    """Return the groups that have runs with a place."""
    return _sound_names(lab, admin, "admitted")


def lines(lab: Lab, admin: Any) -> list[str]:
    """Return the groups that have runs in their lines."""
    return _sound_names(lab, admin, "line")


def rates(lab: Lab, admin: Any) -> list[str]:
    return [RATE] if admin.exists(lab.keys.bucket(RATE)) else []


def _names(lab: Lab, admin: Any, family: str) -> list[str]:
    prefix = f"{lab.keys.at}:{family}:"
    return sorted(
        key.decode(errors="replace").removeprefix(prefix) for key in admin.scan_iter(f"{prefix}*", count=1000)
    )


def _sound_names(lab: Lab, admin: Any, family: str) -> list[str]:
    """Return the names of the keys of a family that have not been replaced by `_spoil`."""
    return [name for name in _names(lab, admin, family) if admin.type(f"{lab.keys.at}:{family}:{name}") != b"string"]


def only_the_run(lab: Lab, admin: Any, id: str) -> set[str]:
    return {id}


def no_run(lab: Lab, admin: Any, group: str) -> set[str]:
    """Return no run: those of a damaged group wait until doctor has repaired it."""
    return set()


def callers(lab: Lab, admin: Any, rate: str) -> set[str]:
    """Return the runs that make external calls. A call under a damaged rate raises an error in its handler."""
    ids = _names(lab, admin, "run")
    return {id for id in ids if admin.type(lab.keys.run(id)) == b"hash" and b":calling@" in lab._route(id.encode())}


# ---- runs --------------------------------------------------------------------------------------------------------------


def _spoil(admin: Any, key: str) -> None:
    """Replace a key by one of another type."""
    admin.delete(key)
    admin.set(key, "x")


def checkpoint_of_another_type(lab: Lab, admin: Any, id: str) -> None:
    _spoil(admin, lab.keys.ckpt(id))


def messages_of_another_type(lab: Lab, admin: Any, id: str) -> None:
    _spoil(admin, lab.keys.messages(id, "1"))


def run_of_another_type(lab: Lab, admin: Any, id: str) -> None:
    admin.delete(lab.keys.run(id))
    admin.rpush(lab.keys.run(id), "x")


def run_gone(lab: Lab, admin: Any, id: str) -> None:
    admin.delete(lab.keys.run(id))


def counters_unreadable(lab: Lab, admin: Any, id: str) -> None:
    admin.hset(lab.keys.run(id), "counters", "seven")


def hostile_spec(lab: Lab, admin: Any, id: str) -> None:
    admin.hset(lab.keys.run(id), "spec", lab.choose.choice(HOSTILE))


def hostile_head(lab: Lab, admin: Any, id: str) -> None:
    admin.hset(lab.keys.ckpt(id), "head", lab.choose.choice(HOSTILE))


def hostile_state(lab: Lab, admin: Any, id: str) -> None:
    admin.hset(lab.keys.ckpt(id), "state", lab.choose.choice(HOSTILE))


def hostile_messages(lab: Lab, admin: Any, id: str) -> None:
    admin.hset(lab.keys.messages(id, "1"), "0", lab.choose.choice(HOSTILE))


# ---- waits and signals -------------------------------------------------------------------------------------------------


def hostile_wait(lab: Lab, admin: Any, id: str) -> None:
    admin.hset(lab.keys.run(id), "wait", lab.choose.choice(NO_NUMBERS))


def wait_lost(lab: Lab, admin: Any, id: str) -> None:
    admin.hdel(lab.keys.run(id), "wait")
    admin.zrem(lab.keys.waiting(), id)


def signals_of_another_type(lab: Lab, admin: Any, id: str) -> None:
    _spoil(admin, lab.keys.signals(id))


def hostile_signals(lab: Lab, admin: Any, id: str) -> None:
    """Damage a stored signal of a run, or the numbers of a topic."""
    fields = sorted(field for field in admin.hkeys(lab.keys.signals(id)) if b":" in field)
    if fields:
        admin.hset(lab.keys.signals(id), lab.choose.choice(fields), lab.choose.choice(NO_NUMBERS))


# ---- children ----------------------------------------------------------------------------------------------------------


def joins_of_another_type(lab: Lab, admin: Any, id: str) -> None:
    _spoil(admin, lab.keys.joins(id))


def hostile_joins(lab: Lab, admin: Any, id: str) -> None:
    for base in admin.hkeys(lab.keys.joins(id)):
        admin.hset(lab.keys.joins(id), base, lab.choose.choice(NO_NUMBERS))


def results_of_another_type(lab: Lab, admin: Any, id: str) -> None:
    _spoil(admin, lab.keys.results(id))


def hostile_results(lab: Lab, admin: Any, id: str) -> None:
    for field in admin.hkeys(lab.keys.results(id)):
        admin.hset(lab.keys.results(id), field, lab.choose.choice(HOSTILE))


# ---- output, effects, spending -----------------------------------------------------------------------------------------


def output_of_another_type(lab: Lab, admin: Any, id: str) -> None:
    _spoil(admin, lab.keys.output(id))


def hostile_output(lab: Lab, admin: Any, id: str) -> None:
    admin.xadd(lab.keys.output(id), {lab.choose.choice([b"e0", b"", b"r-1", b"\xff"]): lab.choose.choice(HOSTILE)})
    admin.hset(lab.keys.run(id), "output", lab.choose.choice(NO_NUMBERS))


def effects_of_another_type(lab: Lab, admin: Any, id: str) -> None:
    _spoil(admin, lab.keys.effects(id))


def hostile_effects(lab: Lab, admin: Any, id: str) -> None:
    for field in admin.hkeys(lab.keys.effects(id)):
        admin.hset(lab.keys.effects(id), field, lab.choose.choice(HOSTILE))


def hostile_spending(lab: Lab, admin: Any, id: str) -> None:
    numbers = [lab.choose.choice([*NO_NUMBERS, b"7"]) for _ in range(10)]
    whole = lab.choose.choice(NO_NUMBERS)
    admin.hset(lab.keys.run(id), "spend", lab.choose.choice([b" ".join(numbers), whole]))


def notes_lost(lab: Lab, admin: Any, id: str) -> None:
    """Remove the field in which a run notes that it has signals, effects, a parent, a group or spending."""
    admin.hdel(lab.keys.run(id), "beside")


# ---- groups and rates --------------------------------------------------------------------------------------------------


def places_of_another_type(lab: Lab, admin: Any, group: str) -> None:
    _spoil(admin, lab.keys.admitted(group))


def hostile_places(lab: Lab, admin: Any, group: str) -> None:
    admin.sadd(lab.keys.admitted(group), *HOSTILE)


def line_of_another_type(lab: Lab, admin: Any, group: str) -> None:
    _spoil(admin, lab.keys.line(group))


def hostile_line(lab: Lab, admin: Any, group: str) -> None:
    admin.zadd(lab.keys.line(group), {entry: lab.choose.choice([0, 2**52]) for entry in HOSTILE})


def calls_of_another_type(lab: Lab, admin: Any, rate: str) -> None:
    _spoil(admin, lab.choose.choice([lab.keys.bucket(rate), lab.keys.holders(rate), lab.keys.turns(rate)]))


def hostile_calls(lab: Lab, admin: Any, rate: str) -> None:
    admin.hset(
        lab.keys.bucket(rate), lab.choose.choice(["level", "at", "ticket", "front"]), lab.choose.choice(NO_NUMBERS)
    )
    for key in (lab.keys.holders(rate), lab.keys.turns(rate)):
        admin.zadd(key, dict.fromkeys((*HOSTILE, b"nobody-1"), 0))


WAYS = (
    *(Way(damage, runs, only_the_run) for damage in (
        checkpoint_of_another_type, messages_of_another_type, run_of_another_type, run_gone, counters_unreadable,
        hostile_spec, hostile_head, hostile_state, hostile_messages,
    )),
    *(Way(damage, waiting, only_the_run) for damage in (hostile_wait, wait_lost, run_of_another_type)),
    *(Way(damage, having("signals"), only_the_run) for damage in (signals_of_another_type, hostile_signals)),
    *(Way(damage, having("joins"), only_the_run) for damage in (joins_of_another_type, hostile_joins)),
    *(Way(damage, having("results"), only_the_run) for damage in (results_of_another_type, hostile_results)),
    *(Way(damage, having("output"), only_the_run) for damage in (output_of_another_type, hostile_output)),
    *(Way(damage, having("effects"), only_the_run) for damage in (effects_of_another_type, hostile_effects)),
    Way(hostile_spending, spending, only_the_run),
    Way(notes_lost, noting, only_the_run),
    *(Way(damage, places, no_run) for damage in (places_of_another_type, hostile_places)),
    *(Way(damage, lines, no_run) for damage in (line_of_another_type, hostile_line)),
    *(Way(damage, rates, callers) for damage in (calls_of_another_type, hostile_calls)),
)  # fmt: skip


def repair_all(lab: Lab) -> None:
    """Run doctor until nothing is wrong, as an operator would. Runs in progress may reveal further damage."""
    wait_until(lambda: _doctor(lab), "doctor to have repaired everything", timeout=120)


def repair_and_cancel(lab: Lab) -> None:
    """Repair everything, and cancel the damaged runs that have not ended, as an operator would."""
    repair_all(lab)
    with Client(lab.server.url, lab.namespace) as client:
        for id in sorted(lab.excused):
            with contextlib.suppress(CoordinatorError):
                client.handle(id).cancel(grace=5)
    repair_all(lab)


def _doctor(lab: Lab) -> bool:
    lab.tend()
    return (
        lab._start("coordinator", "doctor", "--repair").wait(60) == 0
        and lab._start("coordinator", "doctor").wait(60) == 0
    )


# While the places of a group or the calls of a rate are lost, more of them are given out than the limit allows.
CAMPAIGN = Campaign("damage", break_one, Plan(users=1), finish=repair_and_cancel, waived=("groups_hold", "rates_hold"))


def main(arguments: Sequence[str]) -> int:
    return run(CAMPAIGN, arguments, count=40)
