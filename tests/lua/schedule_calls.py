"""One valid call of each script about schedules, with the data that it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.model.policies.schedule import rules_for, run_id
from coordinator.store.plans import schedules as schedule_plans
from coordinator.store.plans.schedules import Fire, NewSchedule
from tests.lua.store import NOW, ROUTES, Store

HOURLY = rules_for("0 * * * *").packed()
FIRST, SECOND = 1_700_002_800_000, 1_700_006_400_000  # the full hours after NOW


def new(name: str = "s", **options: Any) -> NewSchedule:
    return NewSchedule(
        **{"name": name, "rules": HOURLY, "overlap": "skip", "route": ROUTES[0], "spec": b"spec"} | options
    )


def put(store: Store, name: str = "s", generation: str = "g1", **options: Any) -> str:
    return store.do(schedule_plans.replace(store.keys, "b1", new(name, **options), generation, now=store.at))


def step(
    name: str = "s",
    generation: str = "g1",
    expected: int | str = "",
    at: int | str = "",
    next: int = FIRST,
    due: int = 0,
) -> Fire:
    """Return one step of a schedule. Without `at` it enqueues nothing."""
    return Fire(
        name,
        generation,
        str(expected),
        str(at),
        str(next),
        str(due or next),
        "0",
        run_id(name, int(at), 0) if at else "",
    )


def fire_all(store: Store, *steps: Fire) -> list[tuple[str, str]]:
    return [*store.do(schedule_plans.fire(store.keys, steps, grace=10, now=store.at))]


def planned(store: Store, **options: Any) -> None:
    """Set a schedule whose next fire time is FIRST, and move the clock to that time."""
    assert put(store, **options) == "ok"
    assert fire_all(store, step(next=FIRST)) == [("moved", "")]
    store.now = FIRST


def schedule(store: Store) -> Any:
    return schedule_plans.replace(store.keys, "b1", new(), "g1", now=store.at)


def pause_schedule(store: Store) -> Any:
    put(store)
    return schedule_plans.pause(store.keys, "s", "g2", paused=True, now=store.at)


def unschedule(store: Store) -> Any:
    put(store)
    return schedule_plans.remove(store.keys, "s", "g2", now=store.at)


def upcoming(store: Store) -> Any:
    put(store)
    return schedule_plans.upcoming(store.keys, batch=10, now=store.at)


def postpone(store: Store) -> Any:
    put(store)
    entry = schedule_plans.DueSchedule("s", "g1", NOW, None, 0, HOURLY)
    return schedule_plans.postpone(store.keys, entry, "why", 30, now=store.at)


def fire(store: Store) -> Any:
    planned(store)
    return schedule_plans.fire(store.keys, [step(expected=FIRST, at=FIRST, next=SECOND)], grace=10, now=store.at)


PREPARE: dict[str, Callable[[Store], Any]] = {
    prepare.__name__: prepare for prepare in (schedule, pause_schedule, unschedule, upcoming, postpone, fire)
}
