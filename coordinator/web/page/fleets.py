"""A plan that reads the fleets of a namespace: their supervisors, and the last roll of each."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from coordinator.client.operations.open_namespace import OpenNamespace, reading
from coordinator.client.reading import overview
from coordinator.store.keys import Namespace
from coordinator.store.plans import fleets as fleet_plans
from coordinator.store.plans.merge import Plan
from coordinator.store.replies import pairs, require_all, text
from coordinator.store.script import Request, read
from coordinator.views.json_data import to_json_data
from coordinator.views.namespace_display import group_by_process, use_of_slots

Steps = Generator[list[Request], Any, Any]


def read_fleets(namespace: OpenNamespace) -> Plan[dict[str, Any]]:
    """Return the fleets, each with its processes, its supervisors and its last roll, as data for JSON."""
    space = yield from namespace.space()
    found: dict[str, Any] = yield from reading(_fleets(space))
    return found


def _fleets(space: Namespace) -> Steps:
    workers = yield from overview.workers(space)
    keys = space.keys(0)
    fleets: dict[str, dict[str, Any]] = {}
    for group in group_by_process(workers):
        one = group[0]
        fleet = fleets.setdefault(one.fleet, {"name": one.fleet, "processes": [], "supervisors": [], "roll": None})
        use = use_of_slots(group)
        facts = {"busy": use.busy, "finishing": use.finishing, "expired": one.expired}
        fleet["processes"].append(to_json_data(one) | facts)
    for name, fleet in fleets.items():
        view = yield from fleet_plans.read_roll(keys, name)
        facts, seen = require_all(
            (
                yield [
                    read(keys.at, "HGETALL", keys.roll(name)),
                    read(keys.at, "ZRANGE", keys.supervisors(name), 0, -1, "WITHSCORES"),
                ]
            )
        )
        fleet["supervisors"] = [{"id": text(seen[i]), "at": float(seen[i + 1]) / 1000} for i in range(0, len(seen), 2)]
        if view.roll:
            stored = {field: text(value) for field, value in pairs(facts).items()}
            fleet["roll"] = {
                "id": view.roll,
                "under_way": view.under_way,
                "by": stored.get("by", ""),
                "asked": int(stored.get("asked", "0") or 0) / 1000,
                "parts": {name: to_json_data(part) for name, part in view.parts.items()},
                "lost": sorted(view.lost),
            }
    return {"fleets": sorted(fleets.values(), key=lambda fleet: str(fleet["name"]))}
