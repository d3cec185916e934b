"""The command `coordinator start`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

import typer

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.options import parse_log_level
from coordinator.services.daemon import serve
from coordinator.services.retention import KEEP

START_TIMEOUT = 30.0  # seconds for which `start` waits for a server that is not reachable yet


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
