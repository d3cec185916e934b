"""The command grant: let a run spend more than its budget."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.inputs import parse_run_id
from coordinator.errors import BadOption
from coordinator.model.policies.budget import Amount, spending


def grant(
    context: CommandContext,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")],
    usd: Annotated[float, typer.Option(help="Dollars to add to the budget.", show_default=False)] = 0.0,
    tokens: Annotated[int, typer.Option(help="Tokens to add to the budget.", show_default=False)] = 0,
    requests: Annotated[int, typer.Option(help="Requests to add to the budget.", show_default=False)] = 0,
) -> None:
    """Let a run spend more than its budget. A run that waits for a grant is woken."""
    id, amount = parse_run_id(run), Amount.of(usd, tokens, requests)
    if not any(amount):
        raise BadOption("a grant needs an amount: --usd, --tokens or --requests")
    with context.connect() as client:
        client.handle(id).grant(usd=usd, tokens=tokens, requests=requests)
    said = {"run": id, "usd": usd, "tokens": tokens, "requests": requests}
    context.answer(said, Text(f"granted to run {id}: {spending(amount)}"))
