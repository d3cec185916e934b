"""The command `workers start`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.options import Health, LogLevel, Metrics, parse_log_level
from workers.cli import options as cli_options
from workers.program.name_clash import refuse_name_clash


def start(
    context: CommandContext,
    registries: cli_options.Registries,
    processes: Annotated[
        int, typer.Option(min=1, max=1000, envvar="RUNS_PROCESSES", help="Number of worker processes.")
    ] = 1,
    concurrency: cli_options.Concurrency = 100,
    queues: cli_options.Queues = "default",
    grace: cli_options.Grace = 10.0,
    lease: Annotated[
        float,
        typer.Option(
            envvar="RUNS_LEASE",
            metavar="SECONDS",
            help="A worker without a heartbeat for this long counts as lost, and its runs are requeued.",
        ),
    ] = 15.0,
    fleet: Annotated[
        str,
        typer.Option(
            envvar="RUNS_FLEET",
            metavar="NAME",
            help="Name of the fleet. 'workers roll' rolls all supervisors of a fleet, on all hosts.",
        ),
    ] = "default",
    code: Annotated[
        str,
        typer.Option(
            envvar="RUNS_CODE",
            metavar="VERSION",
            help="Version of the handlers' code, shown by 'workers list'; by default the git commit.",
        ),
    ] = "",
    health: Health = None,
    metrics: Metrics = None,
    with_coordinator: Annotated[
        bool,
        typer.Option("--coordinator", envvar="RUNS_COORDINATOR", help="Run a coordinator in the supervisor's process."),
    ] = False,
    log_level: LogLevel = "INFO",
) -> int:
    """Start a supervisor and worker processes that execute the handlers of the given registries.

    SIGTERM or SIGINT (Ctrl-C) drains the workers: each run stops at its next cut and is released.
    A second signal skips the grace.
    SIGHUP replaces the worker processes one by one with new ones that run the code on disk.
    """
    from workers.process.options import WorkerOptions
    from workers.program.process_exit import exit_process
    from workers.supervisor.sidecars import SidecarOptions
    from workers.supervisor.signals import serve

    context.configure_logs(parse_log_level(log_level))
    refuse_name_clash(Path.cwd())
    settings = context.settings
    options = WorkerOptions(
        settings=settings if context.timeout is not None else replace(settings, timeout=30.0),
        concurrency=concurrency,
        queues=cli_options.split_queues(queues),
        grace=grace,
        lease=lease,
        fleet=fleet,
        code=code,
        processes=processes,
    )
    exit_code = serve(registries, options, SidecarOptions(health, with_coordinator, metrics))
    exit_process(exit_code)
    return exit_code
