"""The command `coordinator limit`: set, list and remove the limits of groups."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.groups import new_subapp
from coordinator.cli.framework.options import command
from coordinator.errors import BadOption
from coordinator.model.policies.groups import GroupLimit
from coordinator.views.formatting import clean
from coordinator.views.table import new_table

app = new_subapp("Limit how many runs of a group are ready or running at once.")

Kind = Annotated[str, typer.Argument(metavar="KIND", help="Kind of the runs.")]
Group = Annotated[str | None, typer.Option("--group", help="Only this group. Default: each group of the kind.")]


@command(app, name="set")
def set_limit(
    context: CommandContext,
    kind: Kind,
    at_once: Annotated[
        str,
        typer.Option("--at-once", metavar="N", help="Runs of a group at once; 0 admits none, 'none' lifts the limit."),
    ],
    group: Group = None,
) -> None:
    """Set the limit of a kind or of a group. It takes effect within a second, and stops no run."""
    limit = None if at_once == "none" else _parse(at_once)
    with context.connect() as client:
        changed = client.set_limit(kind, at_once=limit, group=group)
    what = describe_subject(kind, group)
    text = f"{what}: {describe_limit(limit)}" if changed else f"{what} had this limit before: {describe_limit(limit)}"
    context.answer({"kind": kind, "group": group, "at_once": limit, "changed": changed}, Text(clean(text)))


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
    table = new_table("kind", "group", "at once", "set by", right=("at once",))
    for limit in limits:
        at_once = "no limit" if limit.at_once is None else f"{limit.at_once:,}"
        table.add_row(limit.kind, clean(limit.group or "each"), at_once, limit.source)
    context.console.print(table)


@command(app, name="remove")
def remove_limit(context: CommandContext, kind: Kind, group: Group = None) -> None:
    """Remove a limit that was set. The limit of the kind or of its handler counts again, if there is one."""
    with context.connect() as client:
        changed = client.remove_limit(kind, group=group)
    what = describe_subject(kind, group)
    text = f"the limit of {what} was removed" if changed else f"no limit was set for {what}"
    context.answer({"kind": kind, "group": group, "changed": changed}, Text(clean(text)))


def describe_subject(kind: str, group: str | None) -> str:
    """Return a phrase that names the groups to which a limit applies."""
    return f"each group of kind {kind}" if group is None else f"group {group!r} of kind {kind}"


def describe_limit(at_once: int | None) -> str:
    """Return a limit as a phrase: `2 runs at once`, or `no limit`."""
    if at_once is None:
        return "no limit"
    return "1 run at once" if at_once == 1 else f"{at_once:,} runs at once"


def _parse(at_once: str) -> int:
    if not at_once.isdecimal():
        raise BadOption(f"--at-once {at_once!r} is neither a whole number nor 'none'")
    return int(at_once)


def _row(limit: GroupLimit) -> dict[str, object]:
    return {"kind": limit.kind, "group": limit.group, "at_once": limit.at_once, "source": limit.source}
