"""The commands pause and unpause, for a queue or a kind."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from coordinator.cli.framework.context import CommandContext

QueueName = Annotated[str | None, typer.Option("--queue", help="Name of the queue.")]
KindName = Annotated[str | None, typer.Option("--kind", help="Name of the kind.")]


def pause(context: CommandContext, queue: QueueName = None, kind: KindName = None) -> None:
    """Pause a queue or a kind: workers take no more of its runs. Runs that have started continue."""
    with context.connect() as client:
        changed = client.pause(queue=queue, kind=kind)
    _print_answer(context, queue, kind, paused=True, changed=changed)


def unpause(context: CommandContext, queue: QueueName = None, kind: KindName = None) -> None:
    """Let workers take the runs of a paused queue or kind again."""
    with context.connect() as client:
        changed = client.unpause(queue=queue, kind=kind)
    _print_answer(context, queue, kind, paused=False, changed=changed)


def _print_answer(context: CommandContext, queue: str | None, kind: str | None, *, paused: bool, changed: bool) -> None:
    what = f"queue {queue}" if queue is not None else f"kind {kind}"
    if paused:
        text = f"{what} is paused" if changed else f"{what} was already paused"
    else:
        text = f"{what} is not paused any more" if changed else f"{what} was not paused"
    facts = {"queue": queue} if queue is not None else {"kind": kind}
    context.answer({**facts, "paused": paused, "changed": changed}, Text(text))
