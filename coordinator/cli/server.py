"""The commands about the server itself: check and acl."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from coordinator.cli.options import BADLY, DONE, Here
from coordinator.clock import SystemClock
from coordinator.store import server_checks as checks
from coordinator.store.rights import acl
from coordinator.store.transport.wire import Wire, drive
from coordinator.views.formatting import clean


def check(here: Here) -> int:
    """Say what is wrong with the server, and which command mends it; exit code 1 where something is found."""
    settings = here.settings
    wire = Wire(settings.address, settings.timeout)
    try:
        found = drive(wire, checks.examine(settings.address, settings.namespace, now=SystemClock().now))
    finally:
        wire.close()
    found = [*checks.of_address(settings.address), *found]
    rows = [{"sentence": finding.sentence, "refused": finding.refused} for finding in found]
    lines = [
        Text.assemble(("refused  ", "red") if finding.refused else ("warning  ", "yellow"), clean(finding.sentence))
        for finding in found
    ]
    good = Text(f"{settings.address} can be trusted with namespace {settings.namespace}", "green")
    here.answer({"server": str(settings.address), "findings": rows}, *(lines or [good]))
    return BADLY if found else DONE


def rights(
    here: Here,
    role: Annotated[
        str,
        typer.Argument(metavar="ROLE", help="producer, worker, coordinator, read-only, or worker+coordinator in one."),
    ],
) -> None:
    """Print the ACL user that a role needs on the server, with exactly its rights; put a password in place of PASSWORD."""
    words = acl(role, here.settings.namespace)
    if here.as_json:
        here.answer({"role": role, "user": words[0], "rules": words[1:]})
    else:
        here.console.out(" ".join(["ACL", "SETUSER", *words]))
