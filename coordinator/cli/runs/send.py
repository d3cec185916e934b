"""The command send: send a signal to a run."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.inputs import PayloadOption, PayloadPairs, parse_payload, parse_run_id
from coordinator.model.run import RunView
from coordinator.views.status_reason import describe_wait


def send(
    context: CommandContext,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic that the handler receives.")],
    pairs: PayloadPairs = None,
    payload: PayloadOption = None,
    key: Annotated[
        str | None,
        typer.Option(help="Idempotency key: if a signal with this key was sent to the run before, nothing is sent."),
    ] = None,
) -> None:
    """Send a signal to a run that has not ended.

    The signal is stored until the handler receives its topic. A run that waits for it is woken.
    """
    id, value = parse_run_id(run), parse_payload(pairs or [], payload)
    with context.connect() as client:
        handle = client.handle(id)
        sent = handle.send(topic, value, key=key)
        remark = "" if context.as_json or not sent else _remark(handle.view(), topic)
    said = f"signal {topic} sent to run {id}"
    if not sent:
        said = f"not sent: a signal with this key was sent to run {id} before"
    context.answer({"run": id, "topic": topic, "sent": sent}, Text(said))
    if remark:
        context.stderr.print(Text(remark, "yellow"))


def _remark(view: RunView, topic: str) -> str:
    """Return a sentence that says what the run waits for, if it waits and not for this topic; otherwise an empty string."""
    if view.waiting is None or topic in view.waiting.topics:
        return ""
    other = f"not for {topic!r}" if view.waiting.topics else f"and does not wait for signal {topic!r}"
    return f"the run still waits: it {describe_wait(view.waiting)}, {other}"
