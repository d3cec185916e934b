"""The command `coordinator`: its subcommands, and the entry point of the program."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated, NoReturn

import typer

from coordinator.cli import (
    changes,
    doctor,
    enqueue,
    grant,
    limits,
    live,
    namespace,
    pause,
    queries,
    rates,
    schedules,
    send,
    stream,
    web,
)
from coordinator.cli.context import CommandContext
from coordinator.cli.exits import run_app
from coordinator.cli.options import command, new_app, parse_log_level
from coordinator.services.daemon import serve
from coordinator.services.retention import KEEP

START_TIMEOUT = 30.0  # seconds for which `start` waits for a server that is not reachable yet

app = new_app("coordinator", "Durable runs on Redis or Valkey.")


def main() -> NoReturn:
    """Run the command `coordinator`, and end the process with its exit code."""
    run_app(app, "coordinator")


def start(
    context: CommandContext,
    health: Annotated[
        str | None,
        typer.Option(
            envvar="RUNS_HEALTH",
            metavar="[HOST:]PORT",
            help="Serve health checks: GET /live and GET /ready. A port alone is open on all interfaces.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            envvar="RUNS_METRICS",
            metavar="[HOST:]PORT",
            help="Serve metrics for Prometheus: GET /metrics. A port alone is open on all interfaces.",
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(envvar="RUNS_LOG_LEVEL", help="DEBUG, INFO or WARNING.")] = "INFO",
    keep: Annotated[
        int, typer.Option(envvar="RUNS_KEEP", min=0, help="Ended runs to keep, for each status and partition.")
    ] = KEEP,
) -> None:
    """Run a coordinator until SIGTERM or SIGINT.

    Several coordinators may run at the same time, on different hosts. If one is lost, the others continue.
    """
    context.configure_logs(parse_log_level(log_level))
    settings = context.settings
    if context.timeout is None:
        settings = replace(settings, timeout=START_TIMEOUT)
    asyncio.run(serve(settings, health=health, keep=keep, metrics=metrics))


# in the order in which --help lists them
command(app)(namespace.init)
command(app)(start)
command(app)(enqueue.enqueue)
command(app)(queries.status)
command(app)(queries.runs)
command(app)(queries.show)
command(app)(live.events)
command(app)(live.top)
command(app)(stream.stream)
command(app)(send.send)
command(app)(grant.grant)
changes.add_to(app)
command(app)(namespace.check)
command(app)(namespace.acl)
command(app)(pause.pause)
command(app)(pause.unpause)
command(app)(doctor.doctor)
command(app)(web.web)
app.add_typer(schedules.app, name="schedule")
app.add_typer(limits.app, name="limit")
app.add_typer(rates.app, name="rate")


if __name__ == "__main__":
    main()
