"""The command stream: print the output of a run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.text import Text

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.inputs import parse_run_id
from coordinator.model.output import Event, Gap, Item
from coordinator.printable import clean, json_text
from coordinator.views.formatting import format_count
from coordinator.views.json_data import to_json_data


def stream(
    context: CommandContext,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")],
    settled: Annotated[
        bool, typer.Option("--settled", help="Only events that a checkpoint covers: each exactly once.")
    ] = False,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Continue after the item with this id, which --json prints.")
    ] = None,
) -> None:
    """Print the events that a run emits, until the run has ended or Ctrl-C.

    Text is printed as it is, other values as JSON, one event on each line. With --json, each line is an object.
    """
    id = parse_run_id(run)
    with context.connect() as client:
        handle = client.handle(id)
        try:
            for item in handle.stream(after=after, settled=settled):
                _print(context, item)
        except KeyboardInterrupt:
            return
        status = handle.wait()
    if not context.as_json:
        context.stderr.print(Text(f"run {id} is {status}", "dim"))


def _print(context: CommandContext, item: Item) -> None:
    if context.as_json:
        line = {"type": type(item).__name__.lower(), **to_json_data(item)}
        sys.stdout.write(json_text(line) + "\n")
    elif isinstance(item, Event):
        value = item.value
        sys.stdout.write((clean(value) if isinstance(value, str) else json_text(to_json_data(value))) + "\n")
    else:
        sys.stdout.flush()
        what = (
            f"{format_count(item.count, 'event')} missing"
            if isinstance(item, Gap)
            else f"the run continues after event {item.to}: later events above are void"
        )
        context.stderr.print(Text(what, "yellow"))
    sys.stdout.flush()
