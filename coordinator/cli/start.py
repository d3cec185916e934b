"""The command `coordinator start`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

import typer

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.options import Health, LogLevel, Metrics, parse_log_level
from coordinator.services.daemon import serve
from coordinator.services.retention import KEEP

START_TIMEOUT = 30.0  # seconds for which `start` waits for a server that is not reachable yet


def start(
    context: CommandContext,
    health: Health = None,
    metrics: Metrics = None,
    log_level: LogLevel = "INFO",
    keep: Annotated[
        int,
        typer.Option(envvar="RUNS_KEEP", min=0, help="Number of ended runs to keep, for each status and partition."),
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
