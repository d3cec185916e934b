"""Build a schedule from the arguments of a user, and the view of a schedule from its stored fields. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

from coordinator.client.run_builder import DURATIONS, RunBuilder, as_inputs, without
from coordinator.encoding.codec import decode
from coordinator.encoding.spec import read_spec
from coordinator.errors import BadOption, CoordinatorError
from coordinator.model.enqueue import HandlerOf, Inputs
from coordinator.model.names import name, parse_route
from coordinator.model.policies.groups import describe_ungrouped_schedule, has_limit
from coordinator.model.policies.schedule import ScheduleView, rules_for
from coordinator.store.plans.schedules import NewSchedule
from coordinator.store.replies import text

When = str | float | timedelta
UNREADABLE = "its record can't be read: set the schedule again, or remove it"
_RULE_OPTIONS = ("tz", "jitter", "overlap", "catch_up")
_RUN_OPTIONS = ("queue", "priority", "expires", "retention", "schema", "meta")


class ScheduleOptions(TypedDict, total=False):
    """The options of `schedule`: its own rules, and the options of its runs.

    `overlap` is skip, allow or cancel. `catch_up` is latest, all or none.
    """

    tz: str
    jitter: float | timedelta
    overlap: str
    catch_up: str
    queue: str
    priority: int
    expires: float | timedelta | None
    retention: float | timedelta | None
    schema: int
    meta: Mapping[str, Any] | None


def build_schedule(
    schedule: str,
    when: When,
    what: Inputs[Any] | HandlerOf[Any] | str,
    values: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> NewSchedule:
    """Return the schedule to store, after checking all arguments.

    Args:
        schedule: The name of the schedule.
        when: A cron expression, 'every 30s', seconds, or a timedelta.
        what: `handler.inputs(…)`, a handler, or the kind of the runs.
        values: The inputs, where `what` is a handler or a kind.
        options: The options of `Client.schedule`.

    Raises:
        BadName: The schedule's name or the kind is not a name.
        BadOption: An option is not known, its value is not valid, or the handler has a limit for each group.
    """
    name(schedule, "schedule")
    if unknown := options.keys() - {*_RULE_OPTIONS, *_RUN_OPTIONS}:
        known = ", ".join((*_RULE_OPTIONS, *_RUN_OPTIONS))
        raise BadOption(f"a schedule has no option {', '.join(sorted(unknown))}: it has {known}")
    rules = rules_for(when, **{option: _seconds(options[option]) for option in _RULE_OPTIONS if option in options})
    inputs = as_inputs(what, values)
    if has_limit(inputs.handler):
        raise BadOption(describe_ungrouped_schedule(schedule, inputs.kind))
    run = without(options, *_RULE_OPTIONS)
    run |= {field: _seconds(run[field]) for field in DURATIONS if field in run}
    builder = RunBuilder({**run, "meta": {**(run.get("meta") or {}), "schedule": schedule}})
    request = builder.request(inputs.kind, inputs.values)
    return NewSchedule(
        schedule, rules.packed(), str(rules.overlap), request.route, request.spec, run.get("priority", 0),
        _ms(run.get("expires")), _ms(run.get("retention")),
    )  # fmt: skip


def _seconds(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else str(round(seconds * 1000))


# ---- views -----------------------------------------------------------------------------------------------------------


def schedule_view(schedule: str, fields: Mapping[str, Any] | None) -> ScheduleView:
    """Return the view of a schedule. Damaged parts are left out and named in the view's `trouble`.

    Args:
        schedule: The name of the schedule.
        fields: The fields of its hash, or None if the hash can't be read.
    """
    of = fields or {}
    trouble = _shown(of.get("why", b"")) if of.get("generation") else UNREADABLE
    rules, kind, inputs, counts = {}, {}, {}, {}
    try:
        counts = _counts(of)
        rules = _rules(of.get("rules", b""))
        kind = _route(text(of.get("route", b"")))
        inputs = _inputs(of.get("spec", b""))
    except (CoordinatorError, ValueError, TypeError, OverflowError, OSError):
        trouble = trouble or UNREADABLE
    shown: dict[str, Any] = {"next": None, "fired": 0, "skipped": 0}
    shown |= {"when": "?", "tz": "?", "jitter": 0.0, "overlap": "?", "catch_up": "?", "kind": "?", "queue": "?"}
    paused, due = of.get("state") == b"paused", of.get("next")
    if not trouble and not paused and not due:
        trouble = "no coordinator has looked at it yet"
    return ScheduleView(
        name=schedule,
        paused=paused,
        last=_shown(of["last"]) if of.get("last") else None,
        trouble=trouble,
        **{**shown, "inputs": {}, "meta": {}, **counts, **rules, **kind, **inputs},
    )


def _shown(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _counts(of: Mapping[str, Any]) -> dict[str, Any]:
    due = of.get("next")
    return {
        "next": datetime.fromtimestamp(int(due) / 1000, UTC) if due else None,
        "fired": int(of.get("fired", 0)),
        "skipped": int(of.get("skipped", 0)),
    }


def _rules(packed: bytes) -> dict[str, Any]:
    """Return the stored rules by name. They are not checked: coordinators may know a time zone that this machine does not know."""
    cron, every, tz, jitter, overlap, catch_up = decode(packed, "rules")
    when = cron or f"every {every:g} s"
    return {"when": when, "tz": tz, "jitter": jitter, "overlap": overlap, "catch_up": catch_up}


def _route(route: str) -> dict[str, Any]:
    queue, kind, _ = parse_route(route)
    return {"queue": queue, "kind": kind}


def _inputs(spec: bytes) -> dict[str, Any]:
    inputs, meta, _ = read_spec(spec)
    return {"inputs": inputs, "meta": meta}
