"""The command `coordinator limit`: set, list and remove the limits of groups."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.groups import new_subapp
from coordinator.cli.framework.options import command
from coordinator.errors import BadOption, NotFound
from coordinator.model.policies.groups import UNCHANGED, GroupLimit, Unchanged
from coordinator.views.formatting import clean, most_similar
from coordinator.views.namespace_display import has_coordinator
from coordinator.views.namespace_view import Overview
from coordinator.views.run_display import suggest_kind
from coordinator.views.table import new_table

app = new_subapp("Limit how many runs of a group are ready or running at once, and how many start per unit of time.")

SEE_LIST = "see 'coordinator limit list'; a limit whose source is a handler ends with the workers that have it"
NO_COORDINATOR = (
    "no coordinator is running: the change applies when a run of the group is enqueued or ends, and runs that wait are not "
    "admitted before that; start one with 'coordinator start'"
)
Kind = Annotated[str, typer.Argument(metavar="KIND", help="Kind of the runs.")]
Group = Annotated[str | None, typer.Option("--group", help="Only this group. Default: each group of the kind.")]


@command(app, name="set")
def set_limit(
    context: CommandContext,
    kind: Kind,
    at_once: Annotated[
        str | None,
        typer.Option(
            "--at-once",
            metavar="N",
            help="Most runs of a group that are ready or running at once. 0 admits no run; 'none' removes the limit.",
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            metavar="RATE",
            help="Most runs of a group that start per unit of time, as in 10/min; 'none' removes the rate.",
        ),
    ] = None,
    burst: Annotated[
        int | None,
        typer.Option(
            "--burst",
            metavar="N",
            help="Most runs that start at one moment. Default: what the rate allows in one second.",
        ),
    ] = None,
    group: Group = None,
) -> None:
    """Set the limits of a kind or of a group. They take effect within a second if a coordinator is running.

    Running runs continue.
    """
    places = UNCHANGED if at_once is None else None if at_once == "none" else _parse(at_once)
    starts = UNCHANGED if rate is None else None if rate == "none" else rate
    if at_once is None and rate is None and burst is None:
        raise BadOption("give --at-once, --rate, or both")
    with context.connect() as client:
        changed = client.set_limit(kind, at_once=places, rate=starts, burst=burst, group=group)
        overview = client.status()
    given: dict[str, Any] = {}
    if not isinstance(places, Unchanged):
        given["at_once"] = places
    if not isinstance(starts, Unchanged):
        given |= {"rate": starts, "burst": burst}
    said = [describe_limit(places)] if not isinstance(places, Unchanged) else []
    said += [describe_rate(starts, burst)] if not isinstance(starts, Unchanged) else []
    what, limits = describe_subject(kind, group), ", ".join(said)
    text = f"{what}: {limits}" if changed else f"{what} already has this limit: {limits}"
    context.answer({"kind": kind, "group": group, **given, "changed": changed}, Text(clean(text)))
    if hint := suggest_kind(kind, overview.workers):
        context.stderr.print(Text(f"no live worker handles kind {clean(kind)}; {hint}", "yellow"))
    _warn_without_coordinator(context, overview)


@command(app, name="list")
def list_limits(context: CommandContext) -> None:
    """List the limits of kinds and groups."""
    with context.connect() as client:
        limits = client.limits()
    if context.as_json:
        context.answer({"limits": [_row(limit) for limit in limits]})
        return
    if not limits:
        context.console.print(Text("no limits"))
        return
    table = new_table("kind", "group", "at once", "starts", "burst", "set by", right=("at once", "starts", "burst"))
    for limit in limits:
        table.add_row(
            limit.kind,
            clean(limit.group or "each"),
            _describe_places(limit),
            limit.rate or "",
            "" if limit.burst is None else f"{limit.burst:,}",
            limit.source,
        )
    context.console.print(table)


@command(app, name="remove")
def remove_limit(context: CommandContext, kind: Kind, group: Group = None) -> None:
    """Remove the limits that 'limit set' has set. Then the limit of the kind or of its handler applies, if there is one."""
    what = describe_subject(kind, group)
    with context.connect() as client:
        if not client.remove_limit(kind, group=group):
            others = [describe_subject(one.kind, one.group) for one in client.limits() if one.source == "operator"]
            close = most_similar(what, others)
            raise NotFound(f"no limit is set for {what}; {f'did you mean {close}?' if close else SEE_LIST}")
        overview = client.status()
    context.answer({"kind": kind, "group": group, "changed": True}, Text(clean(f"the limit of {what} was removed")))
    _warn_without_coordinator(context, overview)


def _warn_without_coordinator(context: CommandContext, overview: Overview) -> None:
    if not has_coordinator(overview):
        context.stderr.print(Text(NO_COORDINATOR, "yellow"))


def describe_subject(kind: str, group: str | None) -> str:
    """Return a phrase for the groups to which a limit applies: `group 'acme' of kind k`, or `each group of kind k`."""
    return f"each group of kind {kind}" if group is None else f"group {group!r} of kind {kind}"


def describe_limit(at_once: int | None) -> str:
    """Return a limit as a phrase: `2 runs at once`, or `no limit`."""
    if at_once is None:
        return "no limit"
    return "1 run at once" if at_once == 1 else f"{at_once:,} runs at once"


def describe_rate(rate: str | None, burst: int | None) -> str:
    """Return a rate of starts as a phrase: `10/min starts`, or `no rate of starts`."""
    if rate is None:
        return "no rate of starts"
    return f"{rate} starts" + ("" if burst is None else f", {burst:,} at one moment")


def _describe_places(limit: GroupLimit) -> str:
    if not limit.known:
        return "not known: no run starts"
    return "no limit" if limit.at_once is None else f"{limit.at_once:,}"


def _parse(at_once: str) -> int:
    if not at_once.isdecimal():
        raise BadOption(f"--at-once {at_once!r} is neither a whole number nor 'none'")
    return int(at_once)


def _row(limit: GroupLimit) -> dict[str, object]:
    return {
        "kind": limit.kind,
        "group": limit.group,
        "at_once": limit.at_once,
        "rate": limit.rate,
        "burst": limit.burst,
        "source": limit.source,
        "known": limit.known,
    }
