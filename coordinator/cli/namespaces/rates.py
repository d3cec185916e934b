"""The command `coordinator rate`: set, list and remove the rates of external calls."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.groups import new_subapp
from coordinator.cli.framework.options import command
from coordinator.errors import BadOption, NotFound
from coordinator.model.policies.rates import decode_rate, describe_rate, encode_rate
from coordinator.views.formatting import clean, format_duration, most_similar
from coordinator.views.table import new_table

app = new_subapp("Limit the external calls that handlers make with run.limit.")

SEE_LIST = "see 'coordinator rate list'"
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name that handlers give to run.limit.")]


@command(app, name="set")
def set_rate(
    context: CommandContext,
    name: Name,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            metavar="N/UNIT",
            help="Tokens per unit of time, as in 90000/min. The units are s, min, h and day.",
        ),
    ] = None,
    burst: Annotated[
        int | None,
        typer.Option(
            "--burst",
            help="Tokens that calls may use at one moment, and the highest cost of a call. "
            "Default: what the rate allows in one second.",
        ),
    ] = None,
    at_once: Annotated[
        int | None, typer.Option("--at-once", help="Calls under way at the same time. With 0, no call starts.")
    ] = None,
) -> None:
    """Set the rate for a name that handlers give to run.limit. All processes share it. It takes effect at once."""
    if rate is None and at_once is None and burst is None:
        raise BadOption("give --rate, --at-once, or both")
    with context.connect() as client:
        changed = client.set_rate(name, rate, burst=burst, at_once=at_once)
    stored = decode_rate(name, encode_rate(rate, burst, at_once))
    assert stored is not None
    limit = describe_rate(stored)
    text = f"rate {name}: {limit}" if changed else f"rate {name} is already set to this: {limit}"
    data = {"name": name, "rate": stored.rate, "burst": stored.burst, "at_once": stored.at_once, "changed": changed}
    context.answer(data, Text(clean(text)))


@command(app, name="list")
def list_rates(context: CommandContext) -> None:
    """List the rates, with the numbers of running and waiting calls, and how long a new call would wait."""
    with context.connect() as client:
        rates = client.rates()
    if context.as_json:
        context.answer({"rates": [asdict(rate) for rate in rates]})
        return
    if not rates:
        context.console.print(Text("no rates"))
        return
    right = ("burst", "at once", "under way", "waiting", "wait")
    table = new_table("name", "rate", *right, right=right)
    for rate in rates:
        table.add_row(
            rate.name,
            rate.rate or "-",
            _number(rate.burst),
            _number(rate.at_once),
            f"{rate.held:,}",
            f"{rate.waiting:,}",
            format_duration(rate.wait) if rate.wait else "-",
        )
    context.console.print(table)


@command(app, name="remove")
def remove_rate(context: CommandContext, name: Name) -> None:
    """Remove a rate. From then on, run.limit refuses the name."""
    with context.connect() as client:
        if not client.remove_rate(name):
            close = most_similar(name, [rate.name for rate in client.rates()])
            raise NotFound(f"there is no rate {name}; {f'did you mean {close!r}?' if close else SEE_LIST}")
    context.answer({"name": name, "changed": True}, Text(clean(f"rate {name} was removed")))


def _number(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
