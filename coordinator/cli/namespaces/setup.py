"""The commands that prepare and check a server and a namespace: init, check, acl."""

from __future__ import annotations

import logging
from typing import Annotated
from uuid import uuid4

import typer
from rich.text import Text

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.exits import DONE, PROBLEM
from coordinator.clock import SystemClock
from coordinator.model.durability import check_durability
from coordinator.store import server_checks as checks
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.rights import ROLES
from coordinator.store.rights import acl as acl_rules
from coordinator.store.role_checks import examine_roles
from coordinator.store.server_requirements import of_address
from coordinator.store.transport.wire import Wire, drive
from coordinator.views.formatting import clean, format_count


def init(
    context: CommandContext,
    partitions: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Number of partitions. It can't be changed later. Default: 1.")
    ] = None,
    durability: Annotated[
        str | None, typer.Option(help="none, local, synced, managed or replicated(N). Default: local.")
    ] = None,
) -> None:
    """Create a namespace with a number of partitions and a durability.

    Without this command, the first client, worker or coordinator that uses the namespace creates it with the defaults.
    If the namespace exists, the command changes nothing; other partitions or another durability are an error.
    """
    settings = context.settings
    if durability is not None:
        check_durability(durability)
    wire = Wire(settings.address, settings.timeout)
    try:
        problems = drive(wire, checks.examine(settings.address, settings.namespace, durability, partitions=partitions))
        checks.refuse(problems)
        birth = uuid4().hex
        space = drive(
            wire, namespace_plans.create(settings.namespace, birth=birth, partitions=partitions, durability=durability)
        )
    finally:
        wire.close()
    for problem in problems:
        logging.getLogger(__name__).warning("%s", problem.sentence)
    created = space.birth == birth
    facts = {
        "namespace": space.name,
        "partitions": space.partitions,
        "durability": space.durability,
        "created": created,
    }
    context.answer(
        facts,
        Text(
            f"{'created' if created else 'found existing'} namespace {space.name} on {settings.address}: "
            f"{format_count(space.partitions, 'partition')}, durability {space.durability}"
        ),
    )


def check(context: CommandContext) -> int:
    """Check the server's settings, run a script of each role, and show the command that fixes each problem.

    The command exits with 1 if it finds a problem.
    """
    settings = context.settings
    wire = Wire(settings.address, settings.timeout)
    try:
        found = drive(wire, checks.examine(settings.address, settings.namespace, now=SystemClock().now))
        roles, failures = drive(wire, examine_roles(settings.namespace))
    finally:
        wire.close()
    problems = [*of_address(settings.address), *dict.fromkeys([*found, *failures])]
    rows = [{"sentence": problem.sentence, "refused": problem.refused} for problem in problems]
    lines = [
        Text.assemble(("refused  ", "red") if problem.refused else ("warning  ", "yellow"), clean(problem.sentence))
        for problem in problems
    ]
    user = "" if len(roles) == len(ROLES) else f" for the roles of this user: {', '.join(roles)}"
    good = Text(f"{settings.address} meets all requirements of namespace {settings.namespace}{user}", "green")
    context.answer({"server": str(settings.address), "findings": rows, "roles": roles}, *(lines or [good]))
    return PROBLEM if problems else DONE


def acl(
    context: CommandContext,
    role: Annotated[
        str,
        typer.Argument(metavar="ROLE", help="producer, worker, coordinator, worker+coordinator, or read-only."),
    ],
) -> None:
    """Print the ACL SETUSER command that gives a role exactly the rights it needs.

    Replace PASSWORD in the output, then run the command on the server.
    """
    words = acl_rules(role, context.settings.namespace)
    if context.as_json:
        context.answer({"role": role, "user": words[0], "rules": words[1:]})
    else:
        context.console.out(" ".join(["ACL", "SETUSER", *words]))
